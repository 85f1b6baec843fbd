"""Forks made on the command line: kept in the store with author and reason, and added to the graph each time."""

import contextlib
import datetime
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from marin_dag.errors import UserError, listed
from marin_dag.graph.assignments import parse_fork_settings
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import NAME, Milestone, Step, StepKind
from marin_dag.ledger.lease import Leases
from marin_dag.ledger.progress_mark import standing_failures
from marin_dag.ledger.provenance import user_name
from marin_dag.ledger.records import Records
from marin_dag.ledger.requests import PUBLISH, Tellings
from marin_dag.plan.config_checks import MAX_NAMED, RefusedStepsError, check_configs
from marin_dag.plan.lost_milestones import Lost, LostMilestones, lost_in
from marin_dag.plan.milestone_reasons import MilestoneMissing, NotTold
from marin_dag.plan.reasons import render
from marin_dag.plan.remainder import LeftBehind
from marin_dag.plan.wanted_milestones import own_stop_not_told
from marin_dag.store.redact import redact, refuse_secrets
from marin_dag.store.store import Store
from marin_dag.values.changes import apply_text, nearest, value_at
from marin_dag.values.fields import identity_fields

NAMES = "names"
MAX_NAME_LENGTH = 100
"""With "/attempt/file" and the like around it, a name of this length is a path on every file system and store."""

Follow = Mapping[StepKind[Any, Any], Sequence[StepKind[Any, Any]]]
"""Kind of step to the kinds that are made of each of its forks too, as they are of the step it was forked from."""


WithForks = Callable[[Graph, Sequence["Fork"], Sequence["Fork"]], Sequence[Step[Any]]]
"""From the graph with all forks in it, those that may be counted on, and those that would hold the others up: further
targets."""


class ForkError(UserError):
    """A fork that cannot be made or found."""


class DamagedForkError(ForkError):
    """A kept fork that cannot be read."""


class Fork(BaseModel, frozen=True, extra="forbid"):
    """`name` is `base` with `changes`: dotted field to the text that the person typed."""

    name: str
    base: str
    changes: dict[str, str]
    author: str
    reason: str
    created: str


class Forks:
    """The command-line forks of one variant of a pipeline (the recipe at one scale, say) in one store."""

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
        # A fork of one scale names steps and step numbers that another has not.
        self._folder = f"{NAMES}/{pipeline}@{variant}" if variant else f"{NAMES}/{pipeline}"

    def all(self) -> tuple[Fork, ...]:
        """Every fork, oldest first."""
        return tuple(sorted(self._kept(self._paths()), key=lambda fork: (fork.created, fork.name)))

    def add(self, graph: Graph, *, base: str, name: str, assignments: Sequence[str], reason: str) -> Fork:
        """Keeps a fork, after making sure that it can be built."""
        trajectory, at, _ = base.partition("@")
        start = graph.step(trajectory).kind.continues if at and trajectory in graph and base not in graph else None
        if start is not None:
            raise ForkError(
                f"{base!r} is a state of {trajectory!r}, and a step is named here; to start there, set {start}={base}"
            )
        changes = parse_fork_settings(assignments, graph, base=base, name=name)
        if name in graph:
            is_fork = any(fork.name == name for fork in self.all())
            cure = f"choose another, or `drop {name}` first" if is_fork else "choose another"
            raise ForkError(f"--as {name}: there is a step of that name already; {cure}.")
        if len(name) > MAX_NAME_LENGTH:
            raise ForkError(f"--as {name[:20]}…: {len(name)} characters; use at most {MAX_NAME_LENGTH}.")
        if not NAME.fullmatch(name):
            raise ForkError(f"--as {name!r}: use letters, digits, '_', '-', '.' and '/' between parts.")
        if not changes:
            raise ForkError(f"fork {base} --as {name}: nothing changes; add --set FIELD=VALUE.")
        for field, text in changes.items():
            # Hidden, it could not be built again.
            refuse_secrets({field.rpartition(".")[2]: text}, f"fork {base} --as {name}")
        created = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
        fork = Fork(name=name, base=base, changes=changes, author=user_name(), reason=redact(reason), created=created)
        step = _forked(graph, fork)
        unchanged = [
            field for field in changes if value_at(step.config, field) == value_at(graph.step(base).config, field)
        ]
        if unchanged:
            said = ", ".join(f"{field} is {changes[field]} there" for field in unchanged)
            raise ForkError(f"fork {base} --as {name}: {said} already; leave it out or set it to something else.")
        following = followers(graph, step, self._follow)
        try:
            check_configs([step, *following])
        except RefusedStepsError as error:  # said for the command at hand, in which fields are the fork's own
            own = str(error).replace(f"--set '{name}.", "--set '").replace(f"--set {name}.", "--set ")
            after = listed([follower.name for follower in following if follower.name in error.names], MAX_NAMED)
            own += f"\n{after} would follow {name}; nothing is kept of the fork." if after else ""
            raise ForkError(own) from None
        for lost in self.lost_by(graph, fork):
            if not lost.is_saved:
                raise ForkError(f"fork {base} --as {name}: {render(lost)}.")
        taken = [follower.name for follower in following if follower.name in graph]
        if taken:
            raise ForkError(f"--as {name}: there is a step {taken[0]} already, which would follow it; choose another.")
        _refuse_without_identity([step, *following])
        if not self._store.create(self._path(name), fork.model_dump_json(indent=1).encode()):
            raise ForkError(f"--as {name}: somebody made a fork of that name just now; choose another.")
        return fork

    def drop(self, name: str) -> Fork:
        """Forgets a fork; what it made stays in the store, since the same identity may be wanted again."""
        paths = {path.removeprefix(f"{self._folder}/").removesuffix(".json"): path for path in self._paths()}
        if name not in paths:
            kept = ", ".join(paths) or "none"
            raise ForkError(f"drop {name}: there is no such fork.{nearest(name, paths)} Forks: {kept}.")
        try:
            fork = self._read(paths[name])
        except DamagedForkError:  # which is why it is dropped
            fork = Fork(name=name, base="nobody knows what", changes={}, author="", reason="", created="")
        others = self._kept(path for other, path in paths.items() if other != name)
        based = [other.name for other in others if other.base == name]
        if based:
            are = (
                f"{based[0]} is a fork of it; drop that"
                if len(based) == 1
                else f"{', '.join(based)} are forks of it; drop them"
            )
            raise ForkError(f"drop {name}: {are} first.")
        self._store.delete(paths[name])
        self._store.tidy(paths[name])
        Tellings(self._store).forget(self._named(name))
        return fork

    def added_to(self, graph: Graph) -> Graph:
        """`graph` with all forks, and what the pipeline adds for them, as further targets."""
        forks = self.all()
        for fork in forks:
            step = forked(graph, fork)
            made = [step, *followers(graph, step, self._follow)]
            with _said_of(fork):
                _refuse_without_identity(made)
                graph = graph.with_targets(made)
        if forks and self._with_forks is not None:
            stuck = self._stuck(graph, forks)
            able = [fork for fork in forks if fork.name not in stuck]
            graph = graph.with_targets(self._with_forks(graph, able, [fork for fork in forks if fork.name in stuck]))
        return graph

    def _stuck(self, graph: Graph, forks: Sequence[Fork]) -> frozenset[str]:
        """Names of those that would hold up what is of them all, and of the forks of these.

        They wait for somebody to publish what they start from; or they, what they need or what follows them failed, and
        no attempt has got further since.
        """
        lost = lost_in(graph, [graph.step(fork.name) for fork in forks], self._store)
        below = frozenset().union(*(graph.descendants(name) for name in (*lost, *self._failed(graph, forks))))
        stuck: set[str] = set()
        for fork in forks:  # the oldest first, and so a fork before those of it
            if fork.base in stuck or not below.isdisjoint(self._names_of(graph, fork)):
                stuck.add(fork.name)
        return frozenset(stuck)

    def _failed(self, graph: Graph, forks: Sequence[Fork]) -> list[str]:
        """Of the forks, what they need and what follows them."""
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

    def lost_by(self, graph: Graph, fork: Fork, *, alone: bool = False) -> tuple[Lost, ...]:
        """What is lost of the inputs of a fork that is not in `graph` yet; for `alone` see `lost_in`."""
        step = forked(graph, fork)
        return lost_in(graph.with_targets([step]), [step], self._store, alone=alone).get(step.name, ())

    def tell_what_it_needs(self, graph: Graph, fork: Fork) -> tuple[list[NotTold], list[NotTold | MilestoneMissing]]:
        """Tells attempts, at work or to come, to publish what a fork which is not in `graph` yet needs of a trajectory.

        A run that has read its graph hears of the fork in no other way. What was told of a fork goes with it.

        Returns:
            What attempts at work were not told when they began: what they are told now, and what they cannot be,
            without what `lost_by` says of it alone.
        """
        step = forked(graph, fork)
        running, committed = Leases(self._store).at_work(), Records(self._store).committed_keys()
        said = self.lost_by(graph, fork, alone=True)
        tellings = Tellings(self._store)
        lost_milestones = LostMilestones(graph.with_targets([step]), committed, LeftBehind(self._store), tellings)
        # The fork's own end may lie on the way of an attempt at work, too.
        passed = [*lost_milestones.passed_by(step, running), *own_stop_not_told(step, running, committed)]
        told = [each for each in passed if isinstance(each, NotTold) and each.hears and not each.is_past]
        wanted = {(each.digest, each.step, each.wanted) for each in told}
        if not said:
            wanted |= {
                (item.digest, item.step.name, item.milestone)
                for _, item in step.inputs
                if item.milestone not in (None, item.step.until) and item.key not in committed
            }
        for digest, name, milestone in sorted(wanted):
            why = fork.reason or f"for {fork.name}"
            tellings.tell(digest, name, PUBLISH, milestone=milestone, reason=why, fork=self._named(fork.name))
        return told, [each for each in passed if each not in told and each not in said]

    @property
    def folder(self) -> str:
        """Where these are kept."""
        return self._folder

    def _named(self, name: str) -> str:
        """A fork among those of all pipelines and variants."""
        return f"{self._folder.removeprefix(f'{NAMES}/')}/{name}"

    def names_in(self, graph: Graph) -> tuple[str, ...]:
        """The names of the forks in `graph`, each with the steps that follow it."""
        found = [name for fork in self.all() if fork.name in graph for name in self._names_of(graph, fork)]
        return tuple(dict.fromkeys(found))

    def refused_in(self, graph: Graph, names: Collection[str]) -> tuple[Fork, ...]:
        """The forks in `graph` that are among these steps, or that a step which follows them is; not those whose base
        is too, which is where the mistake was made."""
        forks = (fork for fork in self.all() if fork.name in graph and fork.base not in names)
        return tuple(fork for fork in forks if any(name in names for name in self._names_of(graph, fork)))

    def _names_of(self, graph: Graph, fork: Fork) -> list[str]:
        # In `graph` a follower stands already: it is what reads the fork and has a kind that follows.
        kinds = self._follow.get(graph.step(fork.name).kind, ())
        readers = (step for step in graph.steps if any(item.step.name == fork.name for _, item in step.inputs))
        return [fork.name, *(step.name for step in readers if step.kind in kinds)]

    def names_with(self, graph: Graph, fork: Fork) -> tuple[str, ...]:
        """The names of a fork and of the steps that follow it."""
        step = forked(graph, fork)
        return (step.name, *(follower.name for follower in followers(graph, step, self._follow)))

    def _paths(self) -> list[str]:
        return [entry.path for entry in self._store.list(self._folder)]

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}.json"

    def _kept(self, paths: Iterable[str]) -> Iterator[Fork]:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):  # somebody has dropped it since the listing
                yield self._read(path)

    def _read(self, path: str) -> Fork:
        try:
            return Fork.model_validate_json(self._store.read(path))
        except ValidationError as error:
            name = path.removeprefix(f"{self._folder}/").removesuffix(".json")
            raise DamagedForkError(
                f"{self._store.url(path)}: not a fork ({error.error_count()} errors); `drop {name}` forgets it."
            ) from None


def made_by(graph: Graph, step: Step[Any], *, base: str) -> Step[Any] | None:
    """The step of `graph` that makes all that a fork of `base` would, as its output or on the way there; else None."""
    same = [other for other in graph.steps if other.digest == step.digest and (other.until or 0) >= (step.until or 0)]
    return min(same, key=lambda other: (other.until or 0, other.name != base), default=None)


def changes_of_execution(fork: Fork, kind: StepKind[Any, Any]) -> dict[str, str]:
    """Those of the changes of fields that are no identity and no stop: `Runtime` ones."""
    owner: type[BaseModel] = kind.config_type
    identity = {*identity_fields(owner), kind.stop_field}
    return {field: text for field, text in fork.changes.items() if field.partition(".")[0] not in identity}


def forked(graph: Graph, fork: Fork) -> Step[Any]:
    """The step that a kept fork describes."""
    with _said_of(fork):
        return _forked(graph, fork)


@contextlib.contextmanager
def _said_of(fork: Fork) -> Iterator[None]:
    """What is wrong inside the block is said with the fork that it is of, and how to be rid of that."""
    try:
        yield
    except UserError as error:
        raise ForkError(f"{error} (fork {fork.name!r} of {fork.base!r}; `drop {fork.name}` forgets it)") from None


def _refuse_without_identity(steps: Iterable[Step[Any]]) -> None:
    """Raises UserError for a config with a value that no identity is made of, which no command could name."""
    for step in steps:
        _ = step.digest


def _forked(graph: Graph, fork: Fork) -> Step[Any]:
    base = graph.step(fork.base)
    config = base.config
    changes: dict[str, Any] = {}
    for field, text in fork.changes.items():
        config = apply_text(config, field, text, owner=fork.name, input_named=graph.input_named)
        changes[field] = value_at(config, field)
    step = base.fork(fork.name, **changes)
    step.declared = None  # in no source file
    return step


def followers(graph: Graph, fork: Step[Any], follow: Follow) -> list[Step[Any]]:
    """What follows the base of `fork` and, by `follow`, the fork too: the same steps, reading the fork."""
    base = fork.base.step if isinstance(fork.base, Milestone) else fork.base
    kinds = follow.get(fork.kind, ())
    found: list[Step[Any]] = []
    for step in graph.steps:
        if base is None or step.kind not in kinds:
            continue
        fields = [field for field, item in step.inputs if item.step.name == base.name and item.follows_stop]
        if fields:
            stem = step.name.removesuffix(base.name)
            name = f"{stem}{fork.name}" if stem != step.name else f"{step.name}/{fork.name}"
            follower = step.fork(name, **dict.fromkeys(fields, fork))
            follower.declared = None  # in no source file
            found.append(follower)
    return found
