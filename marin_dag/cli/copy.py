"""copy and --copy-to: copies of committed outputs at another prefix, verified there."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, SELECTION, SOMETHING_WOULD_RUN, Session, command
from marin_dag.errors import UserError
from marin_dag.graph.graph import Selection
from marin_dag.graph.step import Step
from marin_dag.keep.copy.copier import Copier
from marin_dag.keep.copy.job import CopyJob
from marin_dag.ledger.records import COMMITS, Records, first_lines
from marin_dag.plan.plan import Plan
from marin_dag.quantities import counted, in_bytes
from marin_dag.run.interrupts import INTERRUPTED, interrupt, signals_handled
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store, StoreError

INTERVAL_SECONDS = 600.0
"""Names, pins and the like are copied this often, and failed outputs are tried again."""
MAX_NAMED = 10


def copy_job(
    session: Session,
    option: str,
    steps: Sequence[Step[Any]],
    say: Callable[[str], None],
    *,
    check: bool = False,
    is_quiet: bool = False,
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
        is_quiet=is_quiet,
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


@command(
    "copy [STEP...] --to DIR|gs://...",
    "copy committed outputs to another prefix, and verify them there",
    "--set",
    "--to",
    "--check",
    "--dry-run",
    "--only",
    "--until",
    "--from",
)
def copy(session: Session) -> int:
    parsed = session.parsed
    if parsed.to is None:
        raise UserError("copy: where to? Add --to DIR, --to gs://bucket/folder or --to s3://bucket/folder.")
    job = copy_job(session, "--to", _selected(session), _print, check=parsed.check)
    names, num_outputs = job.to_copy()
    if not num_outputs:
        what = " ".join(["copy", *parsed.names])
        raise UserError(
            f"{what}: none of it is committed in {session.store.prefix}. Run it first, or pass its --prefix."
        )
    if parsed.dry_run:
        for name in names.values():
            print(f"{name}: {'to be checked' if parsed.check else 'not there yet'}")
        print(f"{len(names):,} to copy, of {counted(num_outputs, 'output')}")
        return SOMETHING_WOULD_RUN if names else NOTHING_WOULD_RUN
    again = session.line("copy", *parsed.names)
    with signals_handled(interrupt):  # SIGTERM acts like Ctrl-C
        try:
            job.add(names)
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
    is_whole = _report(job, again, _print, _print)
    return NOTHING_WOULD_RUN if is_whole and not conflicts else FAILED


def _print(text: str) -> None:
    print(f"{text}\n", end="", flush=True)  # in one piece: several threads print


def _report(job: CopyJob, again: str, say: Callable[[str], None], complain: Callable[[str], None]) -> bool:
    """Print what was copied or what is missing; return whether nothing is."""
    names, num_outputs = job.to_copy()
    missing = {} if job.copier.check else dict.fromkeys(names.values(), "not copied yet")
    missing |= job.failed
    there, counts = job.copier.target.prefix, job.counts
    if not missing:
        repaired = f", {counts['repaired']:,} repaired" if counts["repaired"] else ""
        copied = f"{counts['copied']:,} copied{repaired} ({in_bytes(job.size_in_bytes)})"
        what = copied if counts["copied"] or counts["repaired"] else "nothing to copy"
        say(f"{what}: {counted(num_outputs - counts['gone'], 'output')} in {there}")
        return True
    complain(f"{len(missing):,} not copied to {there}:")
    for name, why in list(missing.items())[:MAX_NAMED]:
        complain(f"  {name}: {why}")
    if len(missing) > MAX_NAMED:
        complain(f"  and {len(missing) - MAX_NAMED:,} more")
    complain(f"to continue:  {again}")
    return False


def _selected(session: Session) -> list[Step[Any]]:
    graph, selection = session.graph(), session.selection()
    if session.parsed.names:
        if selection != Selection():
            raise UserError("copy: name steps, or select them with --only, --until and --from; not both.")
        named = {name for text in session.parsed.names for name in graph.matching(text, "copy")}
    else:
        named = set(selection.names(graph))
    return [step for step in graph.steps if step.name in named]


def outstanding(session: Session, plan: Plan) -> dict[str, Any] | None:
    """Return how many finished outputs there are and how many of them a run would copy; None without --copy-to."""
    if session.parsed.copy_to is None:
        return None
    job = copy_job(session, "--copy-to", _steps(plan), lambda text: None)
    names, num_outputs = job.to_copy()
    return {"prefix": job.copier.target.prefix, "num_outputs": num_outputs, "num_left": len(names)}


class RunCopies:
    """The copies beside one run, whose display prints. No step waits for a copy, or fails because of one."""

    def __init__(self, job: CopyJob, display: Any, command: str) -> None:
        self._job, self._command = job, command
        self._say: Callable[[str], None] = lambda text: display.say(f"copies: {text}")
        self._complain: Callable[[str], None] = lambda text: display.complain(f"copies: {text}")
        self._fresh: set[str] = set()
        """Keys committed since the start; their logs grow for some seconds after the copy."""
        self._problems: list[str] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="copies", daemon=True)
        self._thread.start()

    def add(self, key: str) -> None:
        """Copy an output that was just committed, or a milestone that was just published."""
        self._fresh.add(key)
        self._job.add_key(key)

    def leave(self) -> None:
        self._ended.set()
        self._job.cancel()
        self._thread.join()

    def finish(self, *, is_interrupted: bool) -> bool:
        """Wait for the copies and print what is missing; return whether nothing is.

        Raises:
            KeyboardInterrupt: the user does not wait; what is missing has been printed.
        """
        with signals_handled(interrupt):  # SIGTERM and SIGUSR2 act like Ctrl-C
            try:
                if not is_interrupted:
                    self._wait()
            finally:
                self.leave()
                is_whole = self._conclude()
            return is_whole

    def _repeat(self) -> None:
        while True:
            self._copy_once()
            if self._ended.wait(INTERVAL_SECONDS):
                return

    def _copy_once(self) -> None:
        try:
            self._job.add(self._job.to_copy()[0])
        except StoreError as error:
            self._complain(first_lines(error))
        self._copy_attachments()

    def _copy_attachments(self) -> None:
        try:
            problems = self._job.copy_attachments()
        except StoreError as error:
            problems = [first_lines(error)]
        for problem in problems:
            if problem not in self._problems:
                self._complain(problem)
        self._problems = problems

    def _wait(self) -> None:
        self._ended.set()
        self._thread.join()
        for _ in range(2):  # again for what failed
            self._copy_once()
            self._job.wait()
        try:
            for record in Records(self._job.copier.source).find_all(self._fresh).values():
                self._job.copier.copy_beside(record)
        except StoreError as error:
            self._complain(first_lines(error))
        self._copy_attachments()

    def _conclude(self) -> bool:
        try:
            is_whole = _report(self._job, self._command, self._say, self._complain)
        except StoreError as error:
            self._complain(first_lines(error))
            return False
        return is_whole and not self._problems


def start_copies(session: Session, plan: Plan, display: Any) -> RunCopies | None:
    """Start the copies of a run; return None without --copy-to. Raises UserError if there is no place to copy to."""
    if session.parsed.copy_to is None:
        return None
    job = copy_job(session, "--copy-to", _steps(plan), display.say, is_quiet=True)
    return RunCopies(job, display, session.line("copy", "--to", session.parsed.copy_to))


def finish_copies(copies: RunCopies | None, code: int) -> int:
    """Wait for the copies of a run that ended with `code`; return the exit code of both."""
    if copies is None:
        return code
    try:
        is_whole = copies.finish(is_interrupted=code == INTERRUPTED)
    except KeyboardInterrupt:
        return INTERRUPTED
    return FAILED if code == NOTHING_WOULD_RUN and not is_whole else code


def _steps(plan: Plan) -> list[Step[Any]]:
    return [planned.step for planned in plan.steps if planned.is_selected]
