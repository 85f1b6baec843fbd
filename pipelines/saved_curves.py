"""Saved curves: the curves of a phase at its newest checkpoint."""

from typing import TYPE_CHECKING, NamedTuple

from marin_dag.ledger.records import Records
from marin_dag.store.store import Store

if TYPE_CHECKING:  # plans import this module, and should load nothing heavy
    from runtime.tracking.curves import Curves

MOST_TRIES = 10
"""Tries to read a phase whose checkpoints are deleted meanwhile. A run saves every ten minutes."""


class SavedState(NamedTuple):
    """A saved state of a phase; the newest is the greatest."""

    step: int
    is_milestone: bool
    """Preferred at one step: a run deletes its temporary checkpoints and keeps its milestones."""
    folder: str
    """Holds `checkpoint/` and the tables beside it."""


def saved_states(store: Store, digest: str) -> list[SavedState]:
    """Return the states of a digest in order of steps: published milestones and temporary checkpoints."""
    from runtime.training.temporary import TemporaryCheckpoints

    every = TemporaryCheckpoints(store.url(f"work/{digest}/temporary"), lease_epoch=0).all()
    found = [SavedState(each.step, False, each.folder) for each in every if each.is_complete]
    milestones = Records(store).milestones(digest)
    found += [SavedState(step, True, store.url(record.output_path)) for step, record in milestones.items()]
    return sorted(found)


def newest_saved(store: Store, digest: str) -> SavedState | None:
    """Return the newest state of a digest."""
    return next(reversed(saved_states(store, digest)), None)


def read_newest(store: Store, digest: str, *, after_step: int, by_source: bool) -> "Curves | None":
    """Return the curves after `after_step` of the newest state of a digest; None if nothing is saved.

    A running attempt may delete a state while it is read here; then the newest state is read instead. `by_source` adds
    the curves by source, whose table is large.

    Raises:
        CheckpointError: the newest state is damaged, or was deleted and nothing is left.
    """
    from runtime.training.checkpoint_reader import CheckpointError

    failed, reason = None, None
    for _ in range(MOST_TRIES):
        saved = newest_saved(store, digest)
        if saved is None or saved == failed:
            break
        try:
            return _read(saved, after_step=after_step, by_source=by_source)
        except CheckpointError as error:
            failed, reason = saved, error
    if failed is None or reason is None:
        return None
    if saved is None:
        raise CheckpointError(f"{failed.folder}: deleted while it was read, and nothing else is saved; try again.")
    raise reason


def _read(saved: SavedState, *, after_step: int, by_source: bool) -> "Curves":
    from runtime.tracking.curves import curves_of, with_sources
    from runtime.training import checkpoint
    from runtime.training.run_state import CHECKPOINT, METRICS, SOURCE_LOSSES

    folder = f"{saved.folder}/{CHECKPOINT}"
    metrics = checkpoint.read_beside(folder, METRICS)
    curves = curves_of(*metrics, after_step=after_step, file=f"{saved.folder}/{METRICS}")
    if not by_source or not curves.step.size:
        return curves
    return with_sources(curves, *checkpoint.read_beside(folder, SOURCE_LOSSES))
