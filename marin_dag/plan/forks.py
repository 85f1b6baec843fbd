"""Forks made on the command line: stored with author and reason, and added to the graph of each command."""

import contextlib
import datetime
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from marin_dag.errors import UserError
from marin_dag.graph.assignments import parse_fork_settings
from marin_dag.graph.fork import Follow, Fork, ForkError, followers, forked
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import NAME, Step
from marin_dag.ledger.lease import Leases
from marin_dag.ledger.provenance import user_name
from marin_dag.ledger.records import Records
from marin_dag.ledger.requests import PUBLISH, Requests
from marin_dag.ledger.work_files import standing_failures
from marin_dag.plan.accepted_code import apply_acceptances
from marin_dag.plan.config_checks import RefusedStepsError, check_configs
from marin_dag.plan.milestones import (
    Lost,
    LostMilestones,
    MilestoneMissing,
    MilestoneNotRequested,
    end_not_requested,
    lost_in,
)
from marin_dag.store.redact import check_no_secrets, redact
from marin_dag.store.store import Store
from marin_dag.values.changes import nearest, value_at

NAMES = "names"
MAX_NAME_LENGTH = 100
"""Longest name whose paths every file system and store takes, "/attempt/file" included."""

WithForks = Callable[[Graph, Sequence[Fork], Sequence[Fork]], Sequence[Step[Any]]]
"""Returns further targets, given the graph with all forks in it, the forks that can be made, and those that would hold
the others up."""


class NewFork(NamedTuple):
    """A fork that was just made, its step, and the steps that follow it."""

    fork: Fork
    step: Step[Any]
    followers: tuple[Step[Any], ...]


class Forks:
    """The forks of one variant of a recipe, such as one scale, in one store."""

    def __init__(
        self,
        store: Store,
        pipeline: str,
        follow: Follow | None = None,
        *,
        variant: str = "",
        with_forks: WithForks | None = None,
    ) -> None:
        self._store = store
        self._follow = follow or {}
        self._with_forks = with_forks
        # A fork of one scale names steps and milestones that another scale lacks.
        self.folder = f"{NAMES}/{pipeline}@{variant}" if variant else f"{NAMES}/{pipeline}"

    def all(self) -> tuple[Fork, ...]:
        return tuple(sorted(self._kept(self._paths()), key=lambda fork: (fork.created, fork.name)))

    def add(self, graph: Graph, *, base: str, name: str, assignments: Sequence[str], reason: str) -> NewFork:
        """Store a fork after building it once."""
        where = f"fork {base} --as {name}"
        run, at, _ = base.partition("@")
        start = graph.step(run).kind.continues if at and run in graph and base not in graph else None
        if start is not None:
            raise ForkError(f"{base!r} is a milestone of {run!r}. Use a step; to start there, add --set {start}={base}")
        if name in graph:
            raise ForkError(f"{where}: a step of this name exists. Choose another, or `drop {name}` if it is a fork.")
        if len(name) > MAX_NAME_LENGTH or not NAME.fullmatch(name):
            raise ForkError(
                f"{where}: use at most {MAX_NAME_LENGTH} letters, digits, '_', '-', '.', and '/' between parts."
            )
        changes = parse_fork_settings(assignments, graph, base=base, name=name)
        for field, text in changes.items():
            # Hidden, it could not be built again.
            check_no_secrets({field.rpartition(".")[2]: text}, where)
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
        fork = Fork(name=name, base=base, changes=changes, author=user_name(), reason=redact(reason), created=created)
        step, old = forked(graph, fork), graph.step(base).config
        same = [field for field in changes if value_at(step.config, field) == value_at(old, field)]
        if same or not changes:
            what = (
                f"{', '.join(f'{field} is {changes[field]}' for field in same)} there already" if same else "no change"
            )
            raise ForkError(f"{where}: {what}. Add --set FIELD=VALUE with another value.")
        following = followers(graph, step, self._follow)
        try:
            check_configs([step, *following])
        except RefusedStepsError as error:  # reworded for this command, whose fields are the fork's own
            own = str(error).replace(f"--set '{name}.", "--set '").replace(f"--set {name}.", "--set ")
            raise ForkError(own) from None
        for lost in self.lost_by(graph, step):
            if not lost.is_saved:
                raise ForkError(f"{where}: {lost}.")
        taken = [follower.name for follower in following if follower.name in graph]
        if taken:
            raise ForkError(f"{where}: a step {taken[0]} exists, which would follow the fork. Choose another name.")
        _check_identities([step, *following])
        if not self._store.create(self._path(name), fork.model_dump_json(indent=1).encode()):
            raise ForkError(f"{where}: another command has just made a fork of this name. Choose another.")
        return NewFork(fork, step, tuple(following))

    def drop(self, name: str) -> Fork:
        paths = {path.removeprefix(f"{self.folder}/").removesuffix(".json"): path for path in self._paths()}
        if name not in paths:
            kept = ", ".join(paths) or "none"
            raise ForkError(f"drop {name}: no fork has this name.{nearest(name, paths)} Forks: {kept}.")
        try:
            fork = self._read(paths[name])
        except ForkError:  # unreadable, which is why it is dropped
            fork = Fork(name=name, base="an unreadable record", changes={}, author="", reason="", created="")
        others = self._kept(path for other, path in paths.items() if other != name)
        based = [other.name for other in others if other.base == name]
        if based:
            raise ForkError(f"drop {name}: first drop its own forks: {', '.join(based)}.")
        self._store.delete(paths[name])
        self._store.tidy(paths[name])
        Requests(self._store).withdraw(self._named(name))
        return fork

    def added_to(self, graph: Graph) -> Graph:
        """Return `graph` with all forks, and the steps that the recipe adds for them, as further targets."""
        forks = self.all()
        for fork in forks:
            with _naming(fork):
                step = forked(graph, fork)
                made = [step, *followers(graph, step, self._follow)]
                _check_identities(made)
                graph = graph.with_targets(made)
        if forks and self._with_forks is not None:
            apply_acceptances(graph, self._store)
            stuck = self._stuck(graph, forks)
            able = [fork for fork in forks if fork.name not in stuck]
            graph = graph.with_targets(self._with_forks(graph, able, [fork for fork in forks if fork.name in stuck]))
        return graph

    def _stuck(self, graph: Graph, forks: Sequence[Fork]) -> frozenset[str]:
        """Return the forks that would block a step over all forks, and the forks of these.

        They wait for an unpublished milestone; or they, their inputs or their followers failed, and no attempt has made
        progress since.
        """
        lost = lost_in(graph, [graph.step(fork.name) for fork in forks], self._store)
        below = frozenset().union(*(graph.descendants(name) for name in (*lost, *self._failed(graph, forks))))
        stuck: set[str] = set()
        for fork in forks:  # oldest first, so that a fork comes before its own forks
            if fork.base in stuck or not below.isdisjoint(self._names_of(graph, fork)):
                stuck.add(fork.name)
        return frozenset(stuck)

    def _failed(self, graph: Graph, forks: Sequence[Fork]) -> list[str]:
        """Return the forks whose inputs, followers or selves failed without progress since."""
        records = Records(self._store)
        failed = records.failed_keys()
        if not failed:
            return []
        names = {other for fork in forks for name in self._names_of(graph, fork) for other in graph.ancestors(name)}
        steps = [graph.step(name) for name in names]
        undone = {step.key for step in steps} & failed - records.committed_keys()
        return [
            step.name
            for step in steps
            if step.key in undone and standing_failures(records, step.key, step.kind.resumes_at)
        ]

    def lost_by(self, graph: Graph, step: Step[Any], *, alone: bool = False) -> tuple[Lost, ...]:
        """Return the lost inputs of a step that is not in `graph` yet; for `alone` see `lost_in`."""
        return lost_in(graph.with_targets([step]), [step], self._store, alone=alone).get(step.name, ())

    def request_inputs(
        self, graph: Graph, new: NewFork
    ) -> tuple[list[MilestoneNotRequested], list[MilestoneNotRequested | MilestoneMissing]]:
        """Request the milestones that a new fork needs from running and later attempts.

        A driver that has built its graph learns of the fork in no other way. `drop` withdraws the requests.

        Returns:
            The milestones that running attempts were not asked for when they started: those that are requested now, and
            those that cannot be, without the ones that `lost_by` returns.
        """
        fork, step, _ = new
        running, committed = Leases(self._store).at_work(), Records(self._store).committed_keys()
        lost = self.lost_by(graph, step, alone=True)
        requests = Requests(self._store)
        lost_milestones = LostMilestones(graph.with_targets([step]), self._store, committed)
        # A running attempt may also pass the fork's own stop.
        passed = [*lost_milestones.passed_by(step, running), *end_not_requested(step, running, committed)]
        requested = [each for each in passed if isinstance(each, MilestoneNotRequested) and each.can_request]
        wanted = {(each.digest, each.step, each.wanted) for each in requested}
        if not lost:
            wanted |= {
                (item.digest, item.step.name, item.milestone)
                for _, item in step.inputs
                if item.milestone not in (None, item.step.until) and item.key not in committed
            }
        for digest, name, milestone in sorted(wanted):
            why = fork.reason or f"for {fork.name}"
            requests.send(digest, name, PUBLISH, milestone=milestone, reason=why, fork=self._named(fork.name))
        return requested, [each for each in passed if each not in requested and each not in lost]

    def _named(self, name: str) -> str:
        """Return a fork's name among those of all recipes and variants."""
        return f"{self.folder.removeprefix(f'{NAMES}/')}/{name}"

    def names_in(self, graph: Graph) -> tuple[str, ...]:
        """Return the names of the forks in `graph`, each with the steps that follow it."""
        found = [name for fork in self.all() if fork.name in graph for name in self._names_of(graph, fork)]
        return tuple(dict.fromkeys(found))

    def refused_in(self, graph: Graph, names: Collection[str]) -> tuple[Fork, ...]:
        """Return the forks in `graph` that are, or whose followers are, among `names`; not those whose base is too."""
        forks = (fork for fork in self.all() if fork.name in graph and fork.base not in names)
        return tuple(fork for fork in forks if any(name in names for name in self._names_of(graph, fork)))

    def _names_of(self, graph: Graph, fork: Fork) -> list[str]:
        # Followers are in `graph` already: steps of a following kind that read the fork.
        kinds = self._follow.get(graph.step(fork.name).kind, ())
        readers = (step for step in graph.steps if any(item.step.name == fork.name for _, item in step.inputs))
        return [fork.name, *(step.name for step in readers if step.kind in kinds)]

    def _paths(self) -> list[str]:
        return [entry.path for entry in self._store.list(self.folder)]

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}.json"

    def _kept(self, paths: Iterable[str]) -> Iterator[Fork]:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):  # dropped since the listing
                yield self._read(path)

    def _read(self, path: str) -> Fork:
        try:
            return Fork.model_validate_json(self._store.read(path))
        except ValidationError as error:
            name = path.removeprefix(f"{self.folder}/").removesuffix(".json")
            raise ForkError(
                f"{self._store.url(path)}: not a fork ({error.error_count()} errors); `drop {name}` forgets it."
            ) from None


@contextlib.contextmanager
def _naming(fork: Fork) -> Iterator[None]:
    """Let an error about a stored fork name it, and say how to forget it."""
    try:
        yield
    except UserError as error:
        raise ForkError(f"{error} (fork {fork.name!r} of {fork.base!r}; `drop {fork.name}` forgets it)") from None


def _check_identities(steps: Iterable[Step[Any]]) -> None:
    """Raise UserError for a config that has no identity; no command could name such a step."""
    for step in steps:
        _ = step.digest
