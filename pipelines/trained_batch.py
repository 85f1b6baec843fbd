"""Trained batch: the rows of one training step and their documents, from the saved states of a phase."""

import collections
import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from marin_dag.errors import UserError
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records
from marin_dag.store.store import Store
from pipelines.finished import finished
from pipelines.runs import finite
from pipelines.saved_curves import SavedState, saved_states
from runtime.training.restore import RESTORES_POSITION
from steps.phase_config import TrainPhaseConfig
from steps.tokenize import TokenizeConfig

if TYPE_CHECKING:
    import numpy as np

    from runtime.data.cache import TokenCache
    from runtime.data.loader import LoadedBatch, Loader
    from runtime.data.order import RowLocations
    from runtime.data.sampler import DataPosition
    from runtime.report.contents import HeatWindow


class Row(NamedTuple):
    """A row of a batch."""

    place: int
    """Number of the row in the batch, from 0."""
    source: str
    data_epoch: int
    """1 for the first pass over the source."""
    tokens: "np.ndarray"
    segment_ids: "np.ndarray"
    documents: Sequence[str | None]
    """Id of the document of each segment; None if unknown."""
    texts: Sequence[str] = ()
    """Text of each token."""
    window: "HeatWindow | None" = None
    """The predictions of the row; None without `--heat` and `--page`."""

    @property
    def loss(self) -> float | None:
        """Mean loss in nats a token; None if unknown, or if the row has no targets."""
        return None if self.window is None else finite(self.window.mean_loss)

    def by_document(self) -> Iterator[dict[str, Any]]:
        """Yield id, number of tokens and text of each document of the row."""
        segments = self.segment_ids.tolist()
        for segment, identifier in enumerate(self.documents):
            texts = [text for text, of in zip(self.texts, segments, strict=True) if of == segment]
            yield {"document": identifier, "tokens": len(texts), "text": "".join(texts)}

    def data(self) -> dict[str, Any]:
        """Return the row as JSON data, without losses."""
        return {"row": self.place, "source": self.source, "pass": self.data_epoch, "documents": [*self.by_document()]}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedBatch:
    """The batch of one training step of a phase."""

    step: int
    is_recorded: bool
    """Whether a saved state records the draws of this step; if not, the run will draw this batch."""
    losses: Mapping[str, float]
    """Mean loss of each source in nats a token, as recorded."""
    weights: SavedState | None
    """The newest saved state before the step, else the first one after it; None if nothing is saved."""
    phase: TrainPhaseConfig
    sources: Sequence[str]
    """Source of each row."""
    locations: "RowLocations"
    batch: "LoadedBatch"
    caches: "Mapping[str, TokenCache]"

    def data(self) -> dict[str, Any]:
        """Return the step and the sources of its rows as JSON data."""
        sources = [
            {"name": name, "rows": count, "loss": finite(self.losses.get(name))}
            for name, count in sorted(collections.Counter(self.sources).items())
        ]
        return {"step": self.step, "is_recorded": self.is_recorded, "sources": sources}

    def rows(self, store: Store, indices: Sequence[int]) -> list[Row]:
        """Return these rows with their documents."""
        import numpy as np

        found = {}
        for source in sorted({self.sources[index] for index in indices}):
            own = [index for index in indices if self.sources[index] == source]
            begins = [np.unique(self.batch.segment_ids[index], return_index=True)[1] for index in own]
            starts = [int(self.locations.starts[index]) + begin for index, begin in zip(own, begins, strict=True)]
            ids = iter(self._documents(store, source, np.concatenate(starts)))
            found.update({index: [next(ids) for _ in begin] for index, begin in zip(own, begins, strict=True)})
        epochs, batch = self.locations.data_epochs, self.batch
        return [
            Row(at, self.sources[at], int(epochs[at]) + 1, batch.tokens[at], batch.segment_ids[at], found[at])
            for at in indices
        ]

    def _documents(self, store: Store, source: str, positions: "np.ndarray") -> list[str | None]:
        from runtime.data.row_documents import DocumentsSource, document_ids

        config = self.phase.caches[source].config_of(TokenizeConfig)
        documents = None if config is None else Records(store).find(config.documents.key)
        if config is None or documents is None:  # ids that were never text, or an output that `gc` deleted
            return [None] * len(positions)
        shards = [store.url(f"{documents.output_path}/{shard}") for shard in documents.result["shards"]]
        made_of = DocumentsSource(shards, config.validation_share, config.shards_per_block)
        return document_ids(self.caches[source], positions, made_of)


@contextlib.contextmanager
def data_errors_of(command: str) -> Iterator[None]:
    """Raise errors about saved states and token caches as errors of a command."""
    from runtime.data.cache import CacheError
    from runtime.data.order import LoaderError
    from runtime.tables.parquet_bytes import TableError
    from runtime.training.checkpoint_reader import CheckpointError

    try:
        yield
    except (CacheError, CheckpointError, LoaderError, TableError) as error:
        raise UserError(f"{command}: {error}") from error


def find_batch(store: Store, phase: Step[TrainPhaseConfig], step: int, command: str) -> TrainedBatch:
    """Return the batch of training step `step`, counted from 1; errors name `command`.

    Raises:
        UserError: the phase does not train this step, an input is gone, or the batch depends on unsaved losses.
        CheckpointError, CacheError, LoaderError, TableError: a saved state or a token cache is damaged.
    """
    from runtime.data.cache import TokenCache
    from runtime.data.loader import Loader

    while (start := phase.predecessor) is not None and start.digest == phase.digest and step <= phase.config.begin_step:
        phase = start.step
    config = phase.config
    if not config.begin_step < step <= config.until_step:
        before = f" `{start.step.name}@{step}` names a step before it." if start and step <= config.begin_step else ""
        raise UserError(
            f"{command}: {phase.name} trains steps {config.begin_step + 1:,} to {config.until_step:,}, not "
            f"{step:,}.{before}"
        )
    states = saved_states(store, phase.digest)
    own = [state for state in states if state.step < step]
    start_state = None
    if config.start is not None:
        start_state = SavedState(config.begin_step, True, store.url(finished(store, config.start, command).output_path))
    caches = {}
    for name, cache in config.caches.items():
        record = finished(store, cache, command)
        caches[name] = TokenCache.open(store.url(f"{record.output_path}/{record.result['train']}"))
    identities = {name: cache.digest for name, cache in config.caches.items()}
    loader = Loader(caches, identities, config.mixture, config.sequence_length, config.seed, policy=config.mixing)
    later = next((state for state in states if state.step >= step), None)
    if later is not None:
        losses, found = _recorded(loader, later, step)
    else:
        losses, found = {}, _drawn(loader, config, own[-1] if own else None, start_state, step, command)
    return TrainedBatch(
        step=step,
        is_recorded=later is not None,
        losses=losses,
        weights=own[-1] if own else start_state or later,
        phase=config,
        sources=[loader.sources[index] for index in found[0].source_index.tolist()],
        locations=found[0],
        batch=found[1],
        caches=caches,
    )


def _recorded(
    loader: "Loader", saved: SavedState, step: int
) -> "tuple[dict[str, float], tuple[RowLocations, LoadedBatch]]":
    """Return losses and batch from a later state: its data position, minus the draws from `step` on."""
    from runtime.tracking.source_losses import SourceLossesTable
    from runtime.training import checkpoint
    from runtime.training.run_state import CHECKPOINT, SOURCE_LOSSES

    folder = f"{saved.folder}/{CHECKPOINT}"
    table = SourceLossesTable.from_parquet(*checkpoint.read_beside(folder, SOURCE_LOSSES), file=SOURCE_LOSSES)
    since = table.num_sequences(range(step, saved.step + 1))
    position = _position(saved)
    before = {identity: count - since.get(identity, 0) for identity, count in position.consumed.items()}
    seen = table.seen(step)
    losses = {loader.names[name]: each.loss_sum / each.num_targets for name, each in seen.items() if each.num_targets}
    counts = {identity: each.num_sequences for identity, each in seen.items()}
    return losses, loader.recorded_batch(counts, before, step - 1)


def _drawn(
    loader: "Loader",
    config: TrainPhaseConfig,
    own: SavedState | None,
    start: SavedState | None,
    step: int,
    command: str,
) -> "tuple[RowLocations, LoadedBatch]":
    """Return the batch that the run draws at `step` after its newest state."""
    from runtime.data.sampler import DataPosition

    here, size = config.begin_step if own is None else own.step, config.global_batch_size
    if loader.lag_steps:
        raise UserError(
            f"{command}: step {step:,} is not saved yet, and mixing={type(config.mixing).__name__} draws it by the "
            f"losses after step {here:,}. Try again when the phase has saved step {step:,} (`tell PHASE save`)."
        )
    if own is not None:
        position = _position(own)
    else:
        is_restored = start is not None and config.restore in RESTORES_POSITION
        position = _position(start) if start is not None and is_restored else DataPosition()
        if config.skip_batches:
            position = loader.skip_batches(position, here, size, config.skip_batches)
    if here < step - 1:
        position = loader.locate(position, range(here, step - 1), size)[1][-1]
    found, _ = loader.locate(position, range(step - 1, step), size)
    return found, loader.batch(position, step - 1, size)[0]


def _position(saved: SavedState) -> "DataPosition":
    from runtime.data.sampler import DataPosition
    from runtime.training import checkpoint
    from runtime.training.run_state import CHECKPOINT

    return DataPosition.from_json(checkpoint.read_metadata(f"{saved.folder}/{CHECKPOINT}")["data_position"])
