"""copy [STEP...] --to PREFIX: copy committed outputs to another prefix, and verify them there."""

from collections.abc import Callable, Sequence
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
from marin_dag.run.interrupts import interrupt, signals_handled
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store, StoreError


def copy_job(
    session: Session,
    option: str,
    steps: Sequence[Step[Any]],
    say: Callable[[str], None],
    *,
    check: bool = False,
    slow_seconds: float = 0.0,
) -> CopyJob:
    """Return the copies of `steps` from --prefix to the place that `option` names.

    Raises:
        UserError: that place cannot be reached, or is not apart from --prefix.
    """
    return CopyJob(
        Copier(session.store, target_of(session, option), check=check),
        steps,
        session.forks.folder,
        # Errors of the target name the option of other commands.
        lambda text: say(text.replace("another --prefix", f"another {option}")),
        command_to_force=lambda step: session.line("--force", step, "--until", step, without=[*SELECTION, "--to"]),
        slow_seconds=slow_seconds,
    )


def target_of(session: Session, option: str) -> Store:
    """Return the store that `option` names, after a first contact that writes nothing; raise as `copy_job`."""
    store, prefix = session.store, session.parsed.to if option == "--to" else session.parsed.copy_to
    if not prefix.strip():
        raise UserError(f"{option} is empty. Name a folder or a bucket.")
    try:
        target = open_store(prefix)
        here, there = f"{_place(store)}/", f"{_place(target)}/"
        if here.startswith(there) or there.startswith(here):
            raise UserError(
                f"{option} {prefix}: it is --prefix {store.prefix}, or one lies inside the other. Name another place."
            )
        target.list(COMMITS)
    except StoreError as error:
        raise UserError(f"nothing was started. {str(error).replace('--prefix', option)}") from None
    return target


def _place(store: Store) -> str:
    return str(Path(store.prefix).resolve()) if isinstance(store, LocalStore) else store.prefix


def _copy(session: Session) -> int:
    parsed = session.parsed
    if parsed.to is None:
        raise UserError("copy: where to? Add --to DIR, --to gs://bucket/folder or --to s3://bucket/folder.")
    job = copy_job(session, "--to", _selected(session), _print, check=parsed.check)
    tasks, num_outputs = job.tasks()
    if not num_outputs:
        what = " ".join(["copy", *parsed.names])
        raise UserError(
            f"{what}: none of it is committed in {session.store.prefix}. Run it first, or pass its --prefix."
        )
    if parsed.dry_run:
        for task in tasks:
            print(f"{task.name}: {'to be checked' if parsed.check else 'not there yet'}")
        print(f"{len(tasks):,} to copy, of {counted(num_outputs, 'output')}")
        return SOMETHING_WOULD_RUN if tasks else NOTHING_WOULD_RUN
    again = session.line("copy", *parsed.names)
    with signals_handled(interrupt):  # SIGTERM acts like Ctrl-C
        try:
            job.add(*tasks)
            job.wait()
            conflicts = job.copy_attachments()
        except StoreError as error:
            conflicts = [str(error).replace("--prefix", "--to")]
        except KeyboardInterrupt:
            job.cancel()
            print(f"{counted(job.counts['copied'], 'output')} copied so far. To continue:  {again}", flush=True)
            raise
        job.cancel()
    for conflict in conflicts:
        print(conflict)
    return _conclude(job, num_outputs, again, has_conflicts=bool(conflicts))


def _print(text: str) -> None:
    print(f"{text}\n", end="", flush=True)  # in one piece: several threads print


def _conclude(job: CopyJob, num_outputs: int, again: str, *, has_conflicts: bool) -> int:
    left = [] if job.copier.check else [task.name for task in job.tasks()[0]]
    left = list(dict.fromkeys([*left, *job.failed]))
    counts, there = job.counts, f"{counted(num_outputs - job.counts['gone'], 'output')} in {job.copier.target.prefix}"
    if left:
        print(
            f"{len(left):,} not copied: {', '.join(left[:5])}{' ...' if len(left) > 5 else ''}. To continue:  {again}"
        )
    elif counts["copied"] or counts["repaired"]:
        repaired = f", {counts['repaired']:,} repaired" if counts["repaired"] else ""
        print(f"{counts['copied']:,} copied{repaired} ({in_bytes(job.size_in_bytes)}): {there}")
    else:
        print(f"nothing to copy: {there}")
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
