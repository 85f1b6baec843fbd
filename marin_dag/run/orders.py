"""Orders: what the attempts of one run are asked for, each as the task that a backend takes."""

from collections.abc import Collection, Mapping
from typing import Any

from marin_dag.graph.step import Step
from marin_dag.ledger.provenance import Provenance
from marin_dag.ledger.records import Record, new_attempt
from marin_dag.plan.wanted_milestones import WantedMilestones, earlier_milestones, still_wanted
from marin_dag.run.node import Node
from marin_dag.run.task import KindReference, Task, bound_config
from marin_dag.store.store import Store


class Orders:
    """Those of one run.

    Args:
        store: where records and outputs are.
        committed: keys of what is, as the run knows them at any time.
        forced: keys of committed steps to run again.
        wanted: what trajectories are to publish on their way.
        notice_seconds: what the scheduler gives before it kills; None is not known.
    """

    def __init__(
        self,
        store: Store,
        committed: Collection[str],
        *,
        forced: frozenset[str],
        wanted: WantedMilestones,
        notice_seconds: float | None,
    ) -> None:
        self._store, self._committed = store, committed
        self._forced, self._wanted, self._notice_seconds = forced, wanted, notice_seconds

    def is_forced(self, step: Step[Any]) -> bool:
        """Whether the step is to run whether or not it is committed."""
        return step.key in self._forced

    def milestones(self, node: Node) -> tuple[int, ...]:
        """What an attempt is to publish of its trajectory, its own stop last; none of a step without."""
        return self._on_the_way(node) if node.step.until is None else (*self._on_the_way(node), node.step.until)

    def _on_the_way(self, node: Node) -> tuple[int, ...]:
        return still_wanted(self._wanted, node.step, self._committed, told=node.told_to_publish)

    def task(
        self,
        node: Node,
        epoch: int,
        records: Mapping[tuple[str, ...], Record] | None,
        provenance: Provenance,
        old_tellings: frozenset[str],
    ) -> Task:
        """A new attempt at a step, in an epoch of its lease.

        Args:
            node: the step.
            epoch: of the lease that the attempt is under.
            records: of its inputs, by the keys any of which would do; with None it is a task to speak of, and none to
                run.
            provenance: of the run.
            old_tellings: ids of what steps were told before the run began.
        """
        step = node.step
        is_again = self.is_forced(step) and step.key in self._committed
        return Task(
            prefix=self._store.prefix,
            name=step.name,
            kind=KindReference.to(step.kind),
            digest=step.digest,
            milestone=step.until,
            identity=step.identity,
            config=step.config if records is None else bound_config(step.config, records, self._store.url),
            resources=step.resources,
            attempt=new_attempt(),
            lease_epoch=epoch,
            provenance=provenance,
            notice_seconds=self._notice_seconds,
            wanted_milestones=earlier_milestones(step, self._committed) if is_again else self._on_the_way(node),
            old_tellings=old_tellings,
            is_forced=is_again,
        )
