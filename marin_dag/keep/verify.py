"""Verify: a step against itself. What is committed is only ever read."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from marin_dag.errors import UserError
from marin_dag.graph.step import Step
from marin_dag.identity.canonical import sha256
from marin_dag.ledger.epoch import LEASES
from marin_dag.ledger.lease import VERIFIES, Lease, Leases
from marin_dag.ledger.progress import Progress
from marin_dag.ledger.provenance import collect_provenance
from marin_dag.ledger.records import Record, Records, new_attempt
from marin_dag.run.backend import Backend
from marin_dag.run.task import KindReference, Outcome, Task, bound_config
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store

VERIFICATIONS = "verifications"
POLL_SECONDS = 0.2


class Rerun(NamedTuple):
    """How a step that was run again compares with its record."""

    differences: tuple[str, ...]
    """Beyond what its kind tolerates; nothing: it gave the same."""
    is_bitwise: bool
    folder: str
    """A prefix of its own, which holds the second output."""


class Rerunner:
    """Runs committed steps again in a prefix beside the first, which reads the first one's inputs and nothing else."""

    def __init__(self, store: Store, backend: Backend) -> None:
        self._store = store
        self._records = Records(store)
        self._backend = backend
        self._outcomes: list[Outcome] = []

    def rerun(self, step: Step[Any], record: Record, milestones: Sequence[Record]) -> Rerun:
        """Runs `step` again and compares with `record`, and what it publishes on its way with `milestones`.

        Raises:
            RerunError: it did not finish.
        """
        name = new_attempt()
        beside = open_store(f"{self._store.prefix}/{VERIFICATIONS}/{name}")
        with _needing(self._store, name, step):
            return self._rerun(step, record, milestones, beside)

    def _rerun(self, step: Step[Any], record: Record, milestones: Sequence[Record], beside: Store) -> Rerun:
        inputs = {item.keys: self._records.get(item.key) for _, item in step.inputs}
        task = Task(
            prefix=beside.prefix,
            name=step.name,
            kind=KindReference.to(step.kind),
            digest=step.digest,
            milestone=step.until,
            identity=step.identity,
            config=bound_config(step.config, inputs, self._store.url),
            resources=step.resources,
            attempt=new_attempt(),
            lease_epoch=1,
            provenance=collect_provenance(beside),
            wanted_milestones=tuple(record.milestone for record in milestones if record.milestone is not None),
        )
        outcome = self._outcome(task)
        if outcome.status != "done" or outcome.record is None:
            said = outcome.failure.error if outcome.failure is not None else outcome.status
            raise RerunError(f"{step.name}: run again, it ended: {said}. What it left is in {beside.prefix}")
        differences, is_bitwise = _compared(step, record, outcome.record)
        again = Records(beside)
        for first in milestones:
            second = again.find(first.key)
            if second is None:  # its kind published it when told to, and asks for no wanted milestones
                continue
            more, is_same = _compared(step, first, second)
            differences += [f"at {first.milestone:,}: {difference}" for difference in more]
            is_bitwise &= is_same
        return Rerun(tuple(differences), is_bitwise, beside.prefix)

    def _outcome(self, task: Task) -> Outcome:
        try:
            self._backend.start(self, {task.name: task.resources})
            self._backend.submit(task)
            while True:
                for outcome in self._backend.wait(POLL_SECONDS):
                    return outcome
        finally:
            self._backend.close()

    def on_started(self, key: str) -> None:
        """See Listener."""

    def on_progress(self, key: str, progress: Progress) -> None:
        """See Listener."""

    def on_published(self, key: str) -> None:
        """See Listener."""

    def on_warning(self, text: str) -> None:
        """See Listener."""


@contextlib.contextmanager
def _needing(store: Store, name: str, step: Step[Any]) -> Iterator[None]:
    """Says, in a lease that is nobody else's, what is read meanwhile: `gc` leaves it alone."""
    digest = sha256([VERIFICATIONS, name])
    leases = Leases(store)
    needs = tuple(dict.fromkeys([step.key, *(item.key for _, item in step.inputs)]))
    lease = leases.acquire(digest, f"verify {step.name}", lambda: None, needs=needs, does=VERIFIES)
    assert isinstance(lease, Lease)
    try:
        yield
    finally:
        lease.release()
        leases.close()
        for entry in store.list(LEASES, f"{digest}/"):  # no zombie will ever come to it
            store.delete(entry.path)


class RerunError(UserError):
    """A step that was run again did not finish."""


def _compared(step: Step[Any], first: Record, second: Record) -> tuple[list[str], bool]:
    """Return what differs, and whether nothing does."""
    differing = sorted({entry.path for entry in set(first.manifest) ^ set(second.manifest)})
    differences = [f"{path} differs" for path in differing]
    if first.result != second.result:
        differences.insert(0, f"its result was {first.result} and is {second.result}")
    return differences, not differences
