"""documents: show what a step keeps and drops, with reasons, and what a filter would drop with other limits."""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from marin_dag.cli.session import Session
from pipelines.output import Shown, aligned, command, flag, positive, value
from runtime.report.markup import printable

if TYPE_CHECKING:
    from pipelines.document_browser import Query
    from pipelines.document_judges import DocumentVerdict, Judged
    from pipelines.stored_documents import Numbered

EXCERPT_CHARACTERS = 90
MOST_CHANGED = 20
"""Most documents of a comparison that are listed."""


@command(
    "documents STEP [--search WORDS] [--dropped]",
    "show the documents that a step keeps and drops, and why; with --set, what a filter would drop",
    "--set --json",
    page="write kept and dropped as a page, with sliders",
    own={
        "--search": value("WORDS", "texts that contain all these words", default=""),
        "--id": value("TEXT", "ids that contain TEXT", default=""),
        "--source": value("NAME", "only documents of this source", default=""),
        "--dropped": flag("only dropped documents"),
        "--reason": value("TEXT", "dropped, with TEXT in the reason", default=""),
        "--after": value("N", "begin at document N", type=int, default=0),
        "--rows": value("N", "at most N (default 20)", type=positive, default=20),
    },
)
def documents(session: Session) -> Shown:
    from pipelines.document_browser import Query, browse, page_data
    from pipelines.document_judges import open_judged

    parsed = session.parsed
    step = session.graph().step(session.step)
    made = session.graph([]).step(step.name) if parsed.set else step
    judged = open_judged(session.store, step, made)
    query = Query(
        search=parsed.search,
        identifier=parsed.id,
        source=parsed.source,
        reason=parsed.reason,
        is_dropped=True if parsed.dropped or parsed.reason else None,
        first=parsed.after,
        rows=parsed.rows,
    )
    lines: Iterator[str]
    if parsed.page is not None:  # which has them all
        lines = iter(())
    elif step.digest != made.digest:
        lines = _comparison(open_judged(session.store, made), judged)
    else:
        lines = _lines(session, judged, query)
    return Shown(
        lines,
        document=lambda: page_data(judged, browse(judged, query)),
        page=lambda: _page(session, judged, query),
    )


def _page(session: Session, judged: "Judged", query: "Query") -> str:
    from pipelines.document_browser import browse, page_data, sample_data
    from runtime.report.html import document, macro, source

    found = {name: browse(judged, query.of(is_dropped=name == "dropped")) for name in ("kept", "dropped")}
    lists = {name: page_data(judged, each) for name, each in found.items()}
    lead = f"Documents of {judged.step.name} from number {query.first:,} of {len(judged.documents):,} on."
    shown = macro("documents.html", "of_step", lists, sample_data(judged))
    return document(f"{judged.step.name} of {session.pipeline}", lead, shown, scripts=(source("documents.js"),))


def _lines(session: Session, judged: "Judged", query: "Query") -> Iterator[str]:
    from pipelines.document_browser import browse

    found = browse(judged, query)
    yield f"{judged.step.name}: {len(found.documents):,} found, documents up to {found.after:,} of {found.total:,} read"
    for each, verdict in found.documents:
        yield _line(each, verdict)
        for title, _ in judged.judge.beside(verdict):
            yield f"    {printable(title)}"
    if found.next is not None:
        words = ("documents", session.step, "--after", str(found.next))
        yield f"for more: {session.line(*words, without=('--after',))}"


def _line(each: "Numbered", verdict: "DocumentVerdict") -> str:
    parts = [verdict.reason, verdict.detail, verdict.rule]
    why = f"dropped ({', '.join(filter(None, parts))})" if verdict.reason else "kept"
    text = printable(each.document.text[:EXCERPT_CHARACTERS]).replace("\n", "\u23ce")
    return f"  {each.number:,}  {printable(each.document.id)}  {why}: {text}"


def _comparison(recipe: "Judged", judged: "Judged") -> Iterator[str]:
    """Yield the drops of a filter in a sample, as the recipe has it and with --set, and documents that differ."""
    sample = judged.documents.sample()
    yield f"drops among {len(sample):,} sampled documents; nothing is run or written"
    before, after = recipe.judge.judge(sample), judged.judge.judge(sample)
    drops = [Counter(verdict.reason for verdict in side if verdict.reason) for side in (before, after)]
    rows = [[reason, *(f"{side[reason]:,}" for side in drops)] for reason in sorted({*drops[0], *drops[1]})]
    total = ["total", *(f"{side.total():,}" for side in drops)]
    yield from aligned([["reason", "recipe", "with --set"], *rows, total])
    pairs = zip(sample, before, after, strict=True)
    changed = [(each, now) for each, was, now in pairs if bool(was.reason) != bool(now.reason)]
    yield f"documents with another verdict: {len(changed):,}"
    yield from (_line(each, verdict) for each, verdict in changed[:MOST_CHANGED])
