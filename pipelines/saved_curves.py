"""Saved curves: the curves of a phase at its newest checkpoint, and those of another run to compare it with."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from marin_dag.cli.session import Session
from marin_dag.errors import UserError
from marin_dag.ledger.records import Records, UnreadableRecordError
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store
from marin_dag.values.changes import nearest

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


def read_reference(session: Session, digests: Mapping[str, str]) -> "Curves | None":
    """Return the curves of the run that `--against` names, from its start; None without that option.

    `digests` has those of all phases.

    Raises:
        UserError: it is neither a phase nor a metrics table, nothing of it is saved, or `--margin` is no margin.
    """
    from runtime.training.checkpoint_reader import CheckpointError

    against, margin = session.parsed.against, session.parsed.margin
    if margin is not None and against is None:
        raise UserError("--margin: needs a reference; add --against PHASE or --against FILE.parquet.")
    if margin is not None and not 0 <= margin < math.inf:
        raise UserError(f"--margin is {margin:g}; use nats a token, 0 or more, such as 0.02.")
    if against is None:
        return None
    if against not in digests and not against.endswith(".parquet"):
        raise UserError(
            f"--against {against}: no such phase.{nearest(against, digests)} For another run, name the "
            "metrics.parquet of one of its milestones."
        )
    try:
        if against in digests:
            curves = read_newest(session.store, digests[against], after_step=0, by_source=False)
        else:
            curves = _read_table(against)
    except (CheckpointError, UnreadableRecordError) as error:
        raise UserError(f"--against {against}: {error}") from error
    if curves is None or not curves.step.size:
        raise UserError(f"--against {against}: nothing of it is saved as the recipe is now.")
    return curves


def _read_table(file: str) -> "Curves":
    from runtime.tables.parquet_bytes import read_parts
    from runtime.tracking.curves import curves_of

    if file.startswith(("gs://", "s3://")):  # fsspec tries for a minute to reach an unreachable store
        open_store(file.rpartition("/")[0]).make_contact()
    try:
        return curves_of(*read_parts(file), after_step=0, file=file)
    except OSError as error:
        raise UserError(f"--against {file}: cannot be read ({error.strerror or error}).") from error
    except ValueError as error:  # from Arrow, or for a malformed address
        raise UserError(f"--against {file}: not a metrics table ({error}).") from error
