"""Plan: one verdict for each step, with its reasons; made from a few listings, without writing a byte."""

import dataclasses
import functools
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from marin_dag.graph.cost import Cost
from marin_dag.graph.graph import Graph, Selection
from marin_dag.graph.step import Step
from marin_dag.identity.diff import Difference, code_difference
from marin_dag.ledger.acceptances import Acceptances
from marin_dag.ledger.lease import Held, Leases
from marin_dag.ledger.marks import marked
from marin_dag.ledger.records import Record, Records
from marin_dag.ledger.work_files import standing_failures, work_codes
from marin_dag.paused_collection import collection_paused
from marin_dag.plan.causes import Cause, Causes, Siblings
from marin_dag.plan.config_checks import check_configs, check_name_lengths, undecided, with_fix
from marin_dag.plan.milestones import (
    LostMilestones,
    MilestoneMissing,
    MilestoneOutsideRun,
    WantedMilestones,
    wanted_milestones,
)
from marin_dag.plan.planned import Compared, PlannedStep, Verdict
from marin_dag.plan.reasons import (
    Accepted,
    BlockedBy,
    Changed,
    Continues,
    Drifted,
    Failed,
    Forced,
    KeptParts,
    NeverMade,
    NotSelected,
    Reason,
    RecordGone,
    Resumes,
    Running,
    RunsAgain,
    SameAs,
    Silent,
    Warned,
)
from marin_dag.plan.remainder import StopRequests, with_remainders
from marin_dag.record_key import key_of
from marin_dag.store.store import Store


class Root(NamedTuple):
    """A change, the steps where it was made, and the stale steps that follow from it."""

    made_at: tuple[str, ...]
    difference: Difference
    follow: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Plan:
    """The verdicts of a graph, and the steps that would run."""

    graph: Graph
    steps: tuple[PlannedStep, ...]
    """Inputs first."""
    uncovered: Mapping[str, tuple[str, ...]]
    """Uses of finished steps that their digests do not cover, by name of the step."""

    @property
    def will_run(self) -> tuple[PlannedStep, ...]:
        return tuple(planned for planned in self.steps if planned.will_run)

    @property
    def num_shared(self) -> int:
        """Number of selected steps, not done, whose output another step makes."""
        undone = [planned for planned in self.steps if planned.is_selected and planned.verdict is not Verdict.DONE]
        return sum(any(isinstance(reason, SameAs) for reason in planned.reasons) for planned in undone)

    @property
    def roots(self) -> tuple[Root, ...]:
        """The changes that make steps stale, each once; those that most steps follow from come first."""
        made_at: dict[Difference, dict[str, None]] = {}
        follow: dict[Difference, list[str]] = {}
        for planned in self.steps:
            for reason in planned.reasons if planned.is_selected else ():
                if isinstance(reason, Changed):
                    made_at.setdefault(reason.difference, {}).update(dict.fromkeys(reason.steps))
                    follow.setdefault(reason.difference, []).append(planned.name)
        roots = [Root(tuple(steps), difference, tuple(follow[difference])) for difference, steps in made_at.items()]
        return tuple(sorted(roots, key=lambda root: -len(root.follow)))

    @property
    def drifted(self) -> tuple[PlannedStep, ...]:
        """The selected steps that the user must accept or bump before anything runs."""
        return tuple(planned for planned in self.steps if planned.is_selected and planned.verdict is Verdict.DRIFTED)

    @property
    def blocked(self) -> tuple[PlannedStep, ...]:
        """The selected steps with inputs that are missing and that this plan does not make."""
        return tuple(planned for planned in self.steps if planned.is_selected and planned.verdict is Verdict.BLOCKED)

    @functools.cached_property
    def wanted_milestones(self) -> WantedMilestones:
        """Milestones that runs are to publish, for all steps of the graph, selected or not."""
        return wanted_milestones(self.graph.steps)

    @property
    def open_questions(self) -> dict[str, str]:
        """Return the settings that runs refuse to start with, by step: open ones, and starts outside of a run."""
        found = {name: with_fix(name, error) for name, error in self.undecided.items()}
        for planned in self.blocked:
            for reason in planned.reasons:
                if isinstance(reason, MilestoneOutsideRun):
                    found[planned.name] = str(reason)
        return found

    @functools.cached_property
    def undecided(self) -> dict[str, ValueError]:
        return undecided(planned.step for planned in self.will_run)

    @property
    def cost(self) -> Cost:
        return sum((planned.cost for planned in self.will_run), Cost())

    @property
    def saved(self) -> Cost:
        """Work that the steps that would run do not repeat."""
        return sum((planned.saved for planned in self.will_run), Cost())

    def __getitem__(self, name: str) -> PlannedStep:
        self.graph.step(name)
        return next(planned for planned in self.steps if planned.name == name)


def make_plan(graph: Graph, store: Store, selection: Selection | None = None) -> Plan:
    """Return the verdicts of all steps of `graph`.

    Raises:
        RefusedStepsError: an unfinished step's config is refused by its kind, or a name is too long for the store.
        UserError: the selection is empty.
    """
    selection = selection or Selection()
    selected = selection.names(graph)
    with collection_paused():
        steps = [graph.step(name) for name in graph.names if name in selected]
        check_name_lengths(steps, store)
        planner = _Planner(graph, store, selection, selected)
        check_configs(step for step in steps if step.key not in planner.committed or step.name in planner.forced)
        return planner.plan()


class _Planner:
    def __init__(self, graph: Graph, store: Store, selection: Selection, selected: frozenset[str]) -> None:
        self.graph, self.selected, self.forced = graph, selected, selection.forced(graph)
        self.asked_for = frozenset((*selection.only, *selection.until, *selection.force))
        """Steps that the user named, besides patterns."""
        self.records = Records(store)
        self.store = store
        self.committed = self.records.committed_keys()
        self._uncovered = self._check_records()
        self.planned: dict[str, PlannedStep] = {}
        self.makers: dict[str, str] = {}
        """Record key to the step of this plan that makes it, or made it."""
        self.acceptances = Acceptances(store)
        self.causes = Causes(graph, self.records)
        self.compared: dict[str, Compared] = {}
        self.stops = StopRequests(store)
        self.lost_milestones = LostMilestones(graph, store, self.committed)
        self.left_behind = self.lost_milestones.left_behind
        self.unable: frozenset[str] = frozenset()
        """Selected steps that cannot run."""
        self.able = selected
        """All other selected steps."""
        # Listings that a plan of finished steps does not need.
        self.siblings = functools.cache(lambda: Siblings(self.records, self.records.labels(), self.committed))
        self.marked = functools.cache(lambda: marked(store))
        self.codes, self.failed_keys = functools.cache(self.records.codes), functools.cache(self.records.failed_keys)
        self._running_and_silent = functools.cache(Leases(store).running_and_silent)

    @functools.cached_property
    def warned(self) -> Mapping[str, Record]:
        keys = self.marked()["warned"].intersection(step.key for step in self.graph.steps)
        return self.records.find_all(keys) if keys else {}

    def _check_records(self) -> dict[str, tuple[str, ...]]:
        made = {step.key for step in self.graph.steps if step.name in self.selected} & self.committed
        if len(made) <= self.store.max_records_checked:
            return self.records.check(sorted(made))
        return {}

    def plan(self) -> Plan:
        while True:
            for step in self.graph.steps:
                self.planned[step.name] = self._plan_step(step)
            unable = {planned.name for planned in self.planned.values() if self._is_unable(planned)}
            if unable <= self.unable or self.lost_milestones.makers.isdisjoint(unable - self.unable):
                break
            self.unable |= unable  # steps that counted on a milestone of one of them are planned again without it
            self.able = self.selected - self.unable
            self.makers.clear()
        steps = with_remainders(self.planned.values(), self.left_behind, self.lost_milestones.kept)
        uncovered = {step.name: self._uncovered[step.key] for step in self.graph.steps if step.key in self._uncovered}
        return Plan(self.graph, tuple(map(_with_begun, steps)), uncovered)

    def _plan_step(self, step: Step[Any]) -> PlannedStep:
        is_selected = step.name in self.selected
        verdict, reasons = self._verdict(step)
        will_run = is_selected and verdict not in (Verdict.DONE, Verdict.DRIFTED)
        if step.name in self.forced and verdict is Verdict.DONE:
            reasons, will_run = (Forced(),), is_selected
        maker = self.makers.get(step.key)
        runs_alone = will_run and maker is not None and not self.planned[maker].will_run
        if maker is not None and will_run and step.background is None:
            runs_alone |= self._yield_to(step, self.planned[maker])
        if maker is None or runs_alone or (is_selected and not self.planned[maker].is_selected):
            maker = self.makers[step.key] = step.name
        if maker != step.name:
            reasons, will_run = (SameAs(maker),), False
        blockers = self._blockers(step) if verdict not in (Verdict.DONE, Verdict.DRIFTED) else ()
        lost = self.lost_milestones.of(step, self.able) if verdict is not Verdict.DONE else ()
        if (blockers or lost) and step.background is not None and step.name not in self.asked_for:
            is_selected = will_run = False
            reasons = (*lost, *reasons)
        if (blockers or lost) and is_selected:
            blocked: tuple[Reason, ...] = (BlockedBy(blockers),) if blockers else ()
            verdict, will_run, reasons = Verdict.BLOCKED, False, (*lost, *blocked)
        elif not is_selected and verdict is not Verdict.DONE:
            reasons = (NotSelected(), *reasons)
        if verdict is not Verdict.DONE and any(item.milestone is not None for _, item in step.inputs):
            passed = self.lost_milestones.passed_by(step, self.running)
            reasons = (*reasons, *(reason for reason in passed if reason not in reasons))
        if will_run and verdict not in (Verdict.DONE, Verdict.RUNNING, Verdict.QUEUED):
            reasons = (*reasons, *self.stops.of(step), *self._silent(step))
        compared = self.compared.get(step.name)
        return PlannedStep(step, verdict, reasons, will_run, is_selected, compared=compared)

    def _yield_to(self, step: Step[Any], maker: PlannedStep) -> bool:
        """Let a step make the output instead of a background step, which a driver may skip; return whether it does."""
        if maker.step.background is None or not maker.will_run:
            return False
        self.planned[maker.name] = dataclasses.replace(maker, reasons=(SameAs(step.name),), will_run=False)
        return True

    def _is_unable(self, planned: PlannedStep) -> bool:
        maker = self.planned[self.makers[planned.step.key]]
        return planned.is_selected and planned.verdict is not Verdict.DONE and not maker.will_run

    def _verdict(self, step: Step[Any]) -> tuple[Verdict, tuple[Reason, ...]]:
        if step.key in self.committed:
            return self._verdict_of_made(step)
        kept = sorted(self.lost_milestones.kept.get(step.digest, ())) if step.until is not None else []
        earlier = [at for at in kept if step.until is not None and at < step.until]
        accepted: tuple[Accepted, ...] = ()
        if earlier:
            # To continue with other code under the same version would mix both in one run.
            drift, accepted = self._drift(step, key_of(step.digest, earlier[-1]))
            if drift is not None:
                return Verdict.DRIFTED, (drift,)
        held = self.running.get(step.digest)
        if held is not None:
            return Verdict.QUEUED if held.is_queued else Verdict.RUNNING, (Running.of(step.name, held),)
        drift, accepted_work = self._drift_of_work(step)
        if drift is not None:
            return Verdict.DRIFTED, (drift,)
        accepted = tuple(dict.fromkeys((*accepted, *accepted_work)))
        if failed := self._failed(step):
            return Verdict.FAILED, failed
        if kept and step.until is not None:
            reason = Continues(earlier[-1], step.until) if earlier else MilestoneMissing(step.until, kept[0])
            return Verdict.MISSING, (reason, *accepted)
        return self._verdict_by_siblings(step)

    def _verdict_of_made(self, step: Step[Any]) -> tuple[Verdict, tuple[Reason, ...]]:
        drift, accepted = self._drift(step, step.key)
        return (Verdict.DONE, (*accepted, *self._marked(step))) if drift is None else (Verdict.DRIFTED, (drift,))

    def _marked(self, step: Step[Any]) -> tuple[Warned | RunsAgain, ...]:
        """Return what a plan says of a done step beside its verdict: warnings, and an attempt that runs it again."""
        found: list[Warned | RunsAgain] = []
        if step.key in self.warned:
            record = self.warned[step.key]
            output = self.store.url(record.output_path)
            files = ((each, f"{output}/{each.file}" if each.file else "") for each in record.warnings)
            found += [Warned(each.text, each.samples, file) for each, file in files]
        if step.key in self.marked()["forced"] and step.digest in self.running:
            holder = self.running[step.digest].holder
            found.append(RunsAgain(holder.host, holder.pid, holder.since))
        return tuple(found)

    def _failed(self, step: Step[Any]) -> tuple[Failed, ...]:
        if step.key not in self.failed_keys():
            return ()
        failures = standing_failures(self.records, step.key, step.kind.resumes_at)
        if not failures:
            return ()
        newest = failures[-1]
        return (Failed(len(failures), newest.attempt, newest.error, self.store.url(newest.log_path)),)

    def _verdict_by_siblings(self, step: Step[Any]) -> tuple[Verdict, tuple[Reason, ...]]:
        """Return whether a step without an output is missing or stale."""
        if self.siblings().is_noted(step.name, step.key):
            if self.records.find(step.key) is not None:  # committed since the records were listed
                return self._verdict_of_made(step)
            return Verdict.MISSING, (RecordGone(),)
        nearest = self.siblings().nearest(step, self.causes)
        if nearest is None:
            return Verdict.MISSING, (NeverMade(),)
        self.compared[step.name], causes = nearest
        return Verdict.STALE, _changes(step, causes)

    def _drift(self, step: Step[Any], key: str) -> tuple[Drifted | None, tuple[Accepted, ...]]:
        """Return the drift from the code of a record, or the acceptances that cover it."""
        code = step.identity["code"]
        if "counts_as" in code:
            return None, self._accepted(step, code["counts_as"], code["fingerprint"])
        if step.policy != "versioned" or not code["definitions"]:  # adopted outputs have none
            return None, ()
        if self.codes().get(key) == code["fingerprint"]:
            return None, ()
        return self._drift_from(step, self.records.get(key).identity)

    def _drift_from(self, step: Step[Any], identity: dict[str, Any]) -> tuple[Drifted | None, tuple[Accepted, ...]]:
        difference = code_difference(identity, step.identity)
        if difference is None:
            return None, ()
        accepted = self._accepted(step, difference.old_fingerprint, difference.new_fingerprint)
        return (None, accepted) if accepted else (Drifted(str(step.version), difference), ())

    def _accepted(self, step: Step[Any], old_code: str, new_code: str) -> tuple[Accepted, ...]:
        path = self.acceptances.path(step.digest, old_code, new_code)
        return tuple(Accepted(item.author, item.because, item.created, item.definitions) for item in path)

    def _drift_of_work(self, step: Step[Any]) -> tuple[Drifted | None, tuple[Accepted, ...]]:
        """Return the drift from the code that wrote the saved states, which the next attempt would resume."""
        if step.policy != "versioned" or step.until is None or step.kind.resumes_at is None:
            return None, ()
        kept = self.left_behind.of(step.digest)
        if not step.kind.resumes_at(kept):
            return None, ()
        accepted: list[Accepted] = []
        for identity in work_codes(self.store, step.digest, kept):
            drift, acceptances = self._drift_from(step, identity)
            if drift is not None:
                return drift, ()
            accepted.extend(acceptances)
        return None, tuple(accepted)

    def _blockers(self, step: Step[Any]) -> tuple[tuple[str, str], ...]:
        """Return name and verdict of the steps at the start of each chain of missing inputs that nothing will make."""
        roots: dict[tuple[str, str], None] = {}
        for _, item in step.inputs:
            other = self.planned[item.step.name]
            if other.verdict is Verdict.DONE:
                continue
            if item.key in self.committed and other.verdict is not Verdict.DRIFTED:
                continue
            maker = self.planned[self.makers.get(item.step.key, other.name)]
            if other.will_run or maker.will_run:
                continue
            if other.verdict is Verdict.BLOCKED:
                inner = [root for reason in other.reasons if isinstance(reason, BlockedBy) for root in reason.steps]
                # None where a milestone that it starts from was not kept: then it is the root itself.
                roots.update(dict.fromkeys(inner or [(other.name, str(other.verdict))]))
            else:
                is_known = other.is_selected or other.verdict is Verdict.DRIFTED
                roots[other.name, str(other.verdict) if is_known else "not selected"] = None
        return tuple(roots)

    def _silent(self, step: Step[Any]) -> tuple[Silent, ...]:
        held = self._running_and_silent()[1].get(step.digest)
        if held is None or not held.holder.host:
            return ()
        holder = held.holder
        return (Silent(holder.host, holder.pid, round(time.time() - held.updated), holder.does),)

    @property
    def running(self) -> Mapping[str, Held]:
        return self._running_and_silent()[0]


def _changes(step: Step[Any], causes: tuple[Cause, ...]) -> tuple[Reason, ...]:
    # One edit of a function that many steps share is one reason.
    made_at: dict[Difference, list[str]] = {}
    for cause in causes:
        made_at.setdefault(cause.difference, []).append(cause.step)
    return tuple(
        Changed((step.name,) if step.name in names else tuple(names), difference, step.name in names)
        for difference, names in made_at.items()
    )


def _with_begun(planned: PlannedStep) -> PlannedStep:
    """Return the step; one with resumable state is `begun`, not `missing`."""
    if planned.verdict is not Verdict.MISSING:
        return planned
    is_begun = any(isinstance(reason, Continues | Resumes | KeptParts) for reason in planned.reasons)
    return dataclasses.replace(planned, verdict=Verdict.BEGUN) if is_begun else planned
