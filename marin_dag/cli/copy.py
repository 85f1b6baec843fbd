"""copy [STEP...] --to PREFIX: copy committed outputs to another prefix, and verify them there."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, SELECTION, SOMETHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.graph.graph import Selection
from marin_dag.graph.step import Step
from marin_dag.keep.copy.copier import Copier
from marin_dag.keep.copy.job import CopyJob
from marin_dag.ledger.records import COMMITS
from marin_dag.quantities import counted, in_bytes
from marin_dag.run.interrupts import heard, interrupt
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store, StoreError

PROGRESS_SECONDS = 15.0
POLL_SECONDS = 0.2


def target_of(session: Session, option: str) -> Store:
    """Return the store that `option` names, after a first contact that writes nothing.

    Raises:
        UserError: the store cannot be reached, or is not apart from --prefix.
    """
    store, prefix = session.store, session.parsed.to if option == "--to" else session.parsed.copy_to
    if not prefix.strip():
        raise UserError(f"{option} is empty. Name a folder or a bucket.")
    try:
        target = open_store(prefix)
        here, there = _place(store), _place(target)
        if f"{here}/".startswith(f"{there}/") or f"{there}/".startswith(f"{here}/"):
            raise UserError(
                f"{option} {prefix}: this is --prefix {store.prefix}, or one lies inside the other. Name another place."
            )
        target.list(COMMITS)
    except StoreError as error:
        raise UserError(f"nothing was started. {str(error).replace('--prefix', option)}") from None
    return target


def _place(store: Store) -> str:
    return str(Path(store.prefix).resolve()) if isinstance(store, LocalStore) else store.prefix


def make_job(session: Session, target: Store, steps: Sequence[Step[Any]], say: Any, **options: bool) -> CopyJob:
    """Return the copies of `steps` from the session's prefix to `target`."""
    return CopyJob(
        Copier(session.store, target, check=options.pop("check", False)),
        steps,
        session.forks.folder,
        say,
        command_to_force=lambda step: session.line(
            "--force", step, "--until", step, without=[*SELECTION, "--to", "--check"]
        ),
        **options,
    )


def _copy(session: Session) -> int:
    with heard(interrupt):  # SIGTERM like Ctrl-C: print what is there, and the command that continues
        return _copy_outputs(session)


def _copy_outputs(session: Session) -> int:
    parsed = session.parsed
    if parsed.dry_run and parsed.check:
        raise UserError("copy --check --dry-run: a check reads all files of the target. Use one of the two.")
    if parsed.to is None:
        raise UserError("copy: where to? Add --to DIR, --to gs://bucket/folder or --to s3://bucket/folder.")
    target = target_of(session, "--to")
    job = make_job(session, target, _selected(session), _print, check=parsed.check)
    tasks, num_outputs = job.outputs()
    if not num_outputs:
        what = " ".join(["copy", *parsed.names])
        raise UserError(
            f"{what}: none of it is committed in {session.store.prefix}. Run it first, or pass its --prefix."
        )
    tasks += job.good_checkpoints()
    if parsed.dry_run:
        for task in tasks:
            print(f"{task.name}: not there yet")
        print(f"{len(tasks):,} to copy, of {counted(num_outputs, 'output')}")
        return SOMETHING_WOULD_RUN if tasks else NOTHING_WOULD_RUN
    again = session.line("copy", *parsed.names)
    job.add(*tasks)
    job.end()
    job.start()
    try:
        _wait(job)
        conflicts = job.copy_attachments()
    except KeyboardInterrupt:
        job.cancel()
        print(f"{counted(job.counts['copied'], 'output')} copied so far. To continue:  {again}", flush=True)
        raise
    except StoreError as error:
        conflicts = [str(error).replace("--prefix", "--to")]
    finally:
        job.copier.close()
    for conflict in conflicts:
        print(conflict)
    return _conclude(job, num_outputs, again, has_conflicts=bool(conflicts))


def _print(text: str) -> None:
    print(text.replace("--prefix, then", "--to, then") + "\n", end="", flush=True)


def _wait(job: CopyJob) -> None:
    started = last = time.monotonic()
    while not job.is_over(POLL_SECONDS):
        now = time.monotonic()
        if now - last >= PROGRESS_SECONDS:
            last = now
            done = job.copier.bytes_done
            _print(f"  {in_bytes(done)} done, {in_bytes(done / (now - started))}/s, {job.num_left:,} left")


def _conclude(job: CopyJob, num_outputs: int, again: str, *, has_conflicts: bool) -> int:
    left = [] if job.copier.check else [task.name for task in job.outputs()[0]]
    left = list(dict.fromkeys([*left, *job.failed]))
    counts, there = job.counts, f"in {job.copier.target.prefix}"
    if left:
        print(
            f"{len(left):,} not copied: {', '.join(left[:5])}{' ...' if len(left) > 5 else ''}. To continue:  {again}"
        )
    elif counts["copied"] or counts["repaired"]:
        repaired = f", {counts['repaired']:,} repaired" if counts["repaired"] else ""
        size = in_bytes(job.size_in_bytes)
        print(f"{counts['copied']:,} copied{repaired} ({size}): {counted(num_outputs, 'output')} {there}")
    else:
        print(f"nothing to copy: {counted(num_outputs, 'output')} {there}")
    return FAILED if left or has_conflicts else NOTHING_WOULD_RUN


def _selected(session: Session) -> list[Step[Any]]:
    graph, selection = session.graph(), session.selection()
    if session.parsed.names:
        if selection != Selection():
            raise UserError("copy: name steps, or select them with --only, --until and --from; not both.")
        named = {name for text in session.parsed.names for name in graph.matching(text, "copy")}
    else:
        named = set(selection.names(graph))
    return [step for step in graph.steps if step.name in named]


def _add_arguments(parser: Any) -> None:
    parser.add_argument(
        "--check", action="store_true", help="(copy) compare the files at the target, and replace damaged ones"
    )


COMMAND = Command(
    "copy",
    "[STEP...] --to DIR|gs://...",
    "copy committed outputs to another prefix, and verify them there",
    _copy,
    0,
    1_000,
    _add_arguments,
    options=("--set", "--to", "--dry-run", "--only", "--until", "--from"),
)
