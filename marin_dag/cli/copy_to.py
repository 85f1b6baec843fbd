"""--copy-to PREFIX: a run that copies what it commits; and what a plan says of it."""

from typing import Any, NamedTuple

from marin_dag.cli.copy import begun, still_to_copy, target_of
from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, SELECTION, Session
from marin_dag.graph.step import Step
from marin_dag.keep.copy.certified_copies import CertifiedStates
from marin_dag.keep.copy.copying import Copier
from marin_dag.keep.copy.run_copying import RunCopying, Voice
from marin_dag.plan.plan import Plan
from marin_dag.quantities import counted, in_bytes
from marin_dag.run.early_interrupt import INTERRUPTED


def refuse_no_second_place(session: Session) -> None:
    """Before anything starts; raises UserError."""
    if session.parsed.copy_to is not None:
        target_of(session, "--copy-to")


class Outstanding(NamedTuple):
    """What of a plan's finished outputs a run would copy, beside those that it makes."""

    prefix: str
    num_outputs: int
    """That are finished."""
    num_left: int
    """Of them, not at the target."""
    size_in_bytes: int
    """Of those."""
    num_certified_left: int
    """Trajectories whose newest certified state is not there."""

    @property
    def said(self) -> str:
        """For a person."""
        there = f"{self.num_outputs - self.num_left:,} of {counted(self.num_outputs, 'finished output')} there"
        there = there if self.num_outputs else "nothing is finished yet"
        left = f", {in_bytes(self.size_in_bytes)} to copy" if self.num_left else ""
        states = f", {counted(self.num_certified_left, 'certified state')} to copy" if self.num_certified_left else ""
        return f"{self.prefix}; {there}{left}{states}"

    @property
    def is_empty(self) -> bool:
        """Whether a run would copy nothing of it."""
        return not self.num_left and not self.num_certified_left


def outstanding(session: Session, plan: Plan) -> Outstanding | None:
    """None where no copies are asked for."""
    if session.parsed.copy_to is None:
        return None
    target = target_of(session, "--copy-to")
    left, num_outputs, size = still_to_copy(session.store, target, _steps(plan))
    states = CertifiedStates(session.store, target, _steps(plan)).left()
    return Outstanding(target.prefix, num_outputs, len(left), size, len(states))


def copies_of(session: Session, plan: Plan, voice: Voice) -> RunCopying | None:
    """The copies of a run, begun; None where there are to be none."""
    if session.parsed.copy_to is None:
        return None
    target = target_of(session, "--copy-to")
    copier = Copier(session.store, target, say=voice.say, option="--copy-to")
    copies = RunCopying(
        copier,
        begun(copier, session),
        CertifiedStates(session.store, target, _steps(plan)),
        _steps(plan),
        voice,
        command=session.line("copy", "--to", session.parsed.copy_to),
        command_to_force=lambda name: session.line("--force", name, "--until", name, without=SELECTION),
    )
    copies.start()
    return copies


def concluded(copies: RunCopying | None, code: int) -> int:
    """The exit code of a run that ended with `code`, when its copies have ended too."""
    if copies is None:
        return code
    try:
        is_whole = copies.finish(is_interrupted=code == INTERRUPTED)
    except KeyboardInterrupt:
        return INTERRUPTED
    return FAILED if code == NOTHING_WOULD_RUN and not is_whole else code


def _steps(plan: Plan) -> list[Step[Any]]:
    return [planned.step for planned in plan.steps if planned.is_selected]
