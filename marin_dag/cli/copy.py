"""copy and --copy-to: copies of committed outputs at another prefix, verified there."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, SELECTION, SOMETHING_WOULD_RUN, Session, command
from marin_dag.errors import UserError
from marin_dag.graph.graph import Selection
from marin_dag.graph.step import Step
from marin_dag.keep.copy.copier import Copier
from marin_dag.keep.copy.job import Copies
from marin_dag.ledger.records import COMMITS
from marin_dag.plan.plan import Plan
from marin_dag.quantities import counted
from marin_dag.run.interrupts import INTERRUPTED, interrupt, signals_handled
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store, StoreError

Say = Callable[[str], None]


def _copies(session: Session, option: str, steps: Sequence[Step[Any]], say: Say, complain: Say) -> Copies:
    """Return the copies of `steps` from --prefix to the place that `option` names; raise as `target_of`."""
    is_command = option == "--to"
    words = ("copy", *session.parsed.names) if is_command else ("copy", "--to", session.parsed.copy_to)

    def printing(say: Say) -> Say:
        beginning = "" if is_command else "copies: "
        # Errors of the target name the option of other commands.
        return lambda text: say(beginning + text.replace("another --prefix", f"another {option}"))

    return Copies(
        Copier(session.store, target_of(session, option), check=is_command and session.parsed.check),
        steps,
        session.forks.folder,
        say=printing(say),
        complain=printing(complain),
        command=session.line(*words),
        command_to_force=lambda step: session.line("--force", step, "--until", step, without=[*SELECTION, "--to"]),
        is_quiet=not is_command,
    )


def target_of(session: Session, option: str) -> Store:
    """Return the store that `option` names, after a first contact that writes nothing."""
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
    "--set --to --check --dry-run --only --until --from",
)
def copy(session: Session) -> int:
    parsed = session.parsed
    if parsed.to is None:
        raise UserError("copy: where to? Add --to DIR, --to gs://bucket/folder or --to s3://bucket/folder.")
    copies = _copies(session, "--to", _selected(session), _print, _print)
    names, num_outputs = copies.outstanding()
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
    copies.start()
    with signals_handled(interrupt):  # SIGTERM acts like Ctrl-C
        return NOTHING_WOULD_RUN if copies.finish() else FAILED


def _print(text: str) -> None:
    print(f"{text}\n", end="", flush=True)  # in one piece: several threads print


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
    copies = _copies(session, "--copy-to", _steps(plan), _print, _print)
    names, num_outputs = copies.outstanding()
    return {"prefix": copies.copier.target.prefix, "num_outputs": num_outputs, "num_left": len(names)}


def start_copies(session: Session, plan: Plan, display: Any) -> Copies | None:
    """Start the copies of a run; return None without --copy-to. Raises UserError if there is no place to copy to."""
    if session.parsed.copy_to is None:
        return None
    copies = _copies(session, "--copy-to", _steps(plan), display.say, display.complain)
    copies.start()
    return copies


def finish_copies(copies: Copies | None, code: int) -> int:
    """Wait for the copies of a run that ended with `code`; return the exit code of both."""
    if copies is None:
        return code
    try:
        with signals_handled(interrupt):  # SIGTERM and SIGUSR2 act like Ctrl-C
            is_whole = copies.finish(is_interrupted=code == INTERRUPTED)
    except KeyboardInterrupt:
        return INTERRUPTED
    return FAILED if code == NOTHING_WOULD_RUN and not is_whole else code


def _steps(plan: Plan) -> list[Step[Any]]:
    return [planned.step for planned in plan.steps if planned.is_selected]
