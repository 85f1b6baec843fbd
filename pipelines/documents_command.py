"""documents: show what a step keeps and drops, with reasons, and what a filter would drop with other limits."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from pipelines.output import aligned, check_writable, positive, write_page
from runtime.report.markup import printable

if TYPE_CHECKING:
    from pipelines.document_browser import Found, Query
    from pipelines.document_judges import DocumentVerdict, Judged
    from pipelines.stored_documents import Numbered

EXCERPT_CHARACTERS = 90
MOST_CHANGED = 20
"""Most documents of a comparison that are listed."""


def _documents(session: Session) -> int:
    from pipelines.document_browser import Query, browse, page_data
    from pipelines.document_judges import open_judged

    parsed = session.parsed
    check_writable("--page", parsed.page)
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
    if parsed.page is not None:
        write_page("--page", parsed.page, _page(session, judged, query))
    elif parsed.json:
        print(json.dumps(page_data(judged, browse(judged, query)), ensure_ascii=False, indent=1))
    elif step.digest != made.digest:
        print("\n".join(_comparison(open_judged(session.store, made), judged)))
    else:
        print("\n".join(_lines(session, judged, browse(judged, query))))
    return NOTHING_WOULD_RUN


def _page(session: Session, judged: "Judged", query: "Query") -> str:
    from pipelines.document_browser import browse, page_data, sample_data
    from runtime.report.html import document, macro, source

    found = {name: browse(judged, query.of(is_dropped=name == "dropped")) for name in ("kept", "dropped")}
    lists = {name: page_data(judged, each) for name, each in found.items()}
    lead = f"Documents of {judged.step.name} from number {query.first:,} of {len(judged.documents):,} on."
    shown = macro("documents.html", "of_step", lists, sample_data(judged))
    return document(f"{judged.step.name} of {session.pipeline}", lead, shown, scripts=(source("documents.js"),))


def _lines(session: Session, judged: "Judged", found: "Found") -> Iterator[str]:
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


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--search", metavar="WORDS", default="", help="(documents) texts that contain all these words")
    parser.add_argument("--id", metavar="TEXT", default="", help="(documents) ids that contain TEXT")
    parser.add_argument("--source", metavar="NAME", default="", help="(documents) only documents of this source")
    parser.add_argument("--dropped", action="store_true", help="(documents) only dropped documents")
    parser.add_argument("--reason", metavar="TEXT", default="", help="(documents) dropped, with TEXT in the reason")
    parser.add_argument("--after", metavar="N", type=int, default=0, help="(documents) begin at document N")
    parser.add_argument("--rows", metavar="N", type=positive, default=20, help="(documents) at most N (default 20)")
    parser.add_argument(
        "--page", metavar="FILE.html", help="(documents) write kept and dropped as a page, with sliders"
    )


COMMAND = Command(
    "documents", "STEP [--search WORDS] [--dropped]",
    "show the documents that a step keeps and drops, and why; with --set, what a filter would drop",
    _documents, 1, 1, _add_arguments, ("--set", "--json"),
)  # fmt: skip
