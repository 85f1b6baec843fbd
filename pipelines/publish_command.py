"""publish: exports as revisions of one Hugging Face repository, or of a folder.

This is a command and no step: it acts outside of the prefix, so a record of it could not say what is there now. Each
call compares the target with the exports instead, and writes what is missing.
"""

import fnmatch
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from marin_dag.cli.session import NOTHING_WOULD_RUN, SOMETHING_WOULD_RUN, Session, command
from marin_dag.errors import UserError, listed
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.ledger.records import FileEntry, Record, Records
from marin_dag.quantities import in_bytes
from marin_dag.store.redact import redact
from marin_dag.values.changes import nearest
from pipelines.finished import finished
from pipelines.milestone_evaluations import milestone_of
from pipelines.output import aligned, flag, value
from steps.hf_export import HfExportResult, hf_export

if TYPE_CHECKING:
    from runtime.interop.revisions import Revision, RevisionFile, Target

HUB = "hub:"
CARD = "README.md"
MOST_NAMES = 5


class _Export(NamedTuple):
    """A finished export, and the revision that it becomes."""

    step: Step[Any]
    record: Record
    result: HfExportResult
    revision: str


@command(
    "publish STEP|GLOB... --to hub:ORGANIZATION/NAME|FOLDER",
    "publish exports as revisions of one Hugging Face repository or of a folder; the last one becomes main",
    "--set --dry-run",
    own={
        "--to": value("hub:ORGANIZATION/NAME|FOLDER", "the repository, or a local folder"),
        "--private": flag("make a new repository private"),
        "--rewind-main": flag("let main go back to an earlier revision"),
    },
)
def publish(session: Session) -> int:
    from runtime.interop.revisions import PublishError

    target = _target(session)
    exports = list(_exports(session))
    try:
        return _publish_all(session, exports, target)
    except PublishError as error:
        raise UserError(redact(str(error))) from error


def _publish_all(session: Session, exports: Sequence[_Export], target: "Target") -> int:
    from runtime.interop.revisions import MAIN

    is_dry = session.parsed.dry_run
    there = set(target.names())
    held, newest = target.held_by_main(), exports[-1].revision
    _check_main(session, target, held, newest)
    for export in exports:
        for name in [export.revision, MAIN] if export is exports[-1] else [export.revision]:
            target.check_own(name, _entries(export))
    rows, is_equal = [], True
    for revision in _revisions(session, exports, target, there):
        changes = target.changes(revision)
        size = sum(revision.files[name].size for name in changes.written)
        state = "is there" if not changes else "new" if changes.is_new else "changed"
        files = f"{len(changes.written)} of {len(revision.files)} files, {in_bytes(size)}" if changes else ""
        files += f"; removes {listed(changes.removed, MOST_NAMES)}" if changes.removed else ""
        rows.append([revision.name, state, files])
        is_equal = is_equal and not changes
        if changes and not is_dry:
            target.write(revision, lambda problem: print(f"{problem}", file=sys.stderr))
            print(f"published {revision.name}: {files}", flush=True)
        elif not is_dry:
            print(f"{revision.name} is there", flush=True)
    if held not in (None, newest):
        print(f"main: {held} -> {newest}")
    if is_dry:
        print("\n".join([f"{target.address} would get", *aligned(rows, left=(0, 1, 2))]))
        print(f"publish it  {session.line('publish', *session.parsed.names)}" if not is_equal else "nothing to publish")
        return NOTHING_WOULD_RUN if is_equal else SOMETHING_WOULD_RUN
    print(f"{target.address}: main is {newest}")
    return NOTHING_WOULD_RUN


def _check_main(session: Session, target: "Target", held: str | None, newest: str) -> None:
    """Raise UserError where main would go back to an earlier revision, unless that is asked for."""
    from runtime.interop.revisions import is_ahead

    if held is not None and is_ahead(held, newest) and not session.parsed.rewind_main:
        raise UserError(
            f"publish: main of {target.address} is {held}, which is ahead of {newest}. To publish that and keep main, "
            "name the export of main last; to move main back, add --rewind-main."
        )


def _target(session: Session) -> "Target":
    from runtime.interop.hub_repository import HubRepository
    from runtime.interop.revisions import RevisionsFolder

    to = session.parsed.to
    if not to:
        raise UserError("publish: give the target: --to hub:ORGANIZATION/NAME, or --to FOLDER.")
    if to.startswith(HUB):
        repo = to.removeprefix(HUB)
        if repo.count("/") != 1 or not all(repo.split("/")):
            raise UserError(f"--to {to}: write the owner and the name of the repository: --to hub:ORGANIZATION/NAME.")
        _check_repo(to, repo)
        return HubRepository(repo, endpoint=os.environ.get("HF_ENDPOINT"), is_private=session.parsed.private)
    if "://" in to:
        raise UserError(f"--to {to}: only a local folder or a hub can be published to; copy the folder there yourself.")
    if session.parsed.private:
        raise UserError(f"--private: has no effect on the folder {to}; remove it.")
    if Path(to).resolve().is_relative_to(Path(session.store.prefix).resolve()):
        raise UserError(f"--to {to}: is the prefix of the run, or in it; name a folder outside.")
    if Path(to).exists() and not Path(to).is_dir():
        raise UserError(f"--to {to}: is a file; name a folder, which need not exist.")
    return RevisionsFolder(to)


def _check_repo(to: str, repo: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise UserError(
            f"--to {to}: no hub has such a name. Use letters, digits, '-', '_' and '.', at most 96, without '--' and "
            "'..', with neither '-' nor '.' at an end, and no '.git' there: --to hub:ORGANIZATION/NAME."
        ) from error


def _exports(session: Session) -> Iterator[_Export]:
    """Yield the exports that the user named, those of one pattern by their tokens; the last becomes main."""
    graph = session.graph()
    taken: dict[str, str] = {}
    for pattern in session.parsed.names:
        found = []
        for step, record in _finished(session, pattern, _matching(graph, pattern)):
            result = HfExportResult.model_validate(record.result)
            found.append(_Export(step, record, result, _revision_name(step, result)))
        for export in sorted(found, key=lambda each: each.result.consumed_tokens):
            if (other := taken.setdefault(export.revision, export.step.name)) == export.step.name:
                yield export
                continue
            raise UserError(
                f"publish: {other} and {export.step.name} are both the revision {export.revision}; publish them to "
                "two repositories."
            )


def _finished(session: Session, pattern: str, steps: Sequence[Step[Any]]) -> list[tuple[Step[Any], Record]]:
    """Return the finished exports of a pattern, and name the others; an export that is named itself has to be done."""
    records = Records(session.store).find_all({step.key for step in steps})
    missing = [step for step in steps if step.key not in records]
    if missing and (len(missing) == len(steps) or pattern == missing[0].name):
        finished(session.store, missing[0], "publish")  # raises
    if missing:
        names = listed([step.name for step in missing], MOST_NAMES)
        print(f"not done, so not published: {names}", file=sys.stderr)
    return [(step, records[step.key]) for step in steps if step.key in records]


def _matching(graph: Graph, pattern: str) -> list[Step[Any]]:
    exports = [step for step in graph.steps if step.kind is hf_export]
    found = [step for step in exports if fnmatch.fnmatchcase(step.name, pattern)]
    if not found:
        names = [step.name for step in exports]
        known = f"the exports are {', '.join(names)}" if names else "the recipe has no export; add recipe.export(...)"
        raise UserError(f"publish: {pattern}: no export has this name; {known}.{nearest(pattern, names)}")
    return found


def _revision_name(step: Step[Any], result: HfExportResult) -> str:
    from runtime.interop.revisions import revision_name

    return revision_name(milestone_of(step).step.name, result.step, result.consumed_tokens)


def _revisions(session: Session, exports: Sequence[_Export], target: "Target", there: set[str]) -> "Iterator[Revision]":
    """Yield the revisions and then main; copies of remote files last until the next one is asked for."""
    from runtime.interop.revisions import MAIN, Revision, RevisionFile, in_order, revision_card

    others = in_order(there | {export.revision for export in exports})
    for index, export in enumerate(exports):
        with tempfile.TemporaryDirectory(prefix="publish-") as folder:
            files = _files(session, export, Path(folder))
            names = [export.revision, MAIN] if index == len(exports) - 1 else [export.revision]
            for name in names:
                listed = others if name == MAIN else ()
                held = export.revision if name == MAIN else ""
                path = Path(folder, f"{name}.md")
                text = files[CARD].path.read_text(encoding="utf-8")
                card = revision_card(text, name=name, target=target, held=held, others=listed)
                path.write_text(card, encoding="utf-8")
                title = f"{export.revision} ({export.result.weights} weights, {export.result.dtype})"
                yield Revision(name, title, {**files, CARD: RevisionFile.of(path)})


def _entries(export: _Export) -> dict[str, FileEntry]:
    """Return the manifest's entries of an export's files by their names."""
    root = f"{export.result.folder}/"
    return {each.path.removeprefix(root): each for each in export.record.manifest if each.path.startswith(root)}


def _files(session: Session, export: _Export, folder: Path) -> "dict[str, RevisionFile]":
    """Return the files of an export by their names, verified by the manifest of its record."""
    from runtime.interop.revisions import RevisionFile

    files = {}
    for name, entry in _entries(export).items():
        url = session.store.url(f"{export.record.output_path}/{entry.path}")
        files[name] = RevisionFile.read(url, folder / "files" / name)
        if (files[name].size, files[name].crc32c) != (entry.size_in_bytes, entry.crc32c):
            raise UserError(
                f"publish: {url} is damaged: it is not the file that {export.step.name} wrote. Make it again: "
                f"{session.line('--force', export.step.name, '--only', export.step.name)}"
            )
    return files
