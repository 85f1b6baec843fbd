"""Batches of a loader, the rows they are read from, and the data position between two of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from runtime.data.mixing.mixer import MixerState
from runtime.data.packing import Packing
from runtime.data.slots import Bookmark

Rows = slice | Int64[np.ndarray, "rows"]
"""Rows of a batch that one host reads."""


@dataclass(frozen=True)
class DataPosition:
    """All that the next batch depends on besides the step; stored in checkpoints as JSON."""

    consumed: dict[str, int] = field(default_factory=dict)
    """Sequences drawn so far, by the identity of the source."""
    carry: dict[str, int] = field(default_factory=dict)
    """Sequences owed to each source beyond `consumed`, by identity; see allocation.py."""
    sequence_length: int | None = None
    """Length of the sequences counted in `consumed`; None before the first batch."""
    packing: Packing | None = None
    """Packing of those sequences; None before the first batch."""
    bookmarks: dict[str, Bookmark] = field(default_factory=dict)
    """Places in whole documents, by identity; they follow from `consumed` and spare counting up to it."""
    shares: dict[str, int] = field(default_factory=dict)
    """Shares that the last batch was drawn by, by identity; only for the log."""
    mixer: MixerState | None = None
    """State of a mixing policy that learns."""

    def to_json(self) -> dict:
        """Return the position as JSON data; `from_json` is the inverse."""
        return {**vars(self), "mixer": None if self.mixer is None else self.mixer.to_json()}

    @classmethod
    def from_json(cls, document: Mapping) -> "DataPosition":
        """Return the position that `to_json` wrote."""
        state = document["mixer"]
        return cls(**{**document, "mixer": None if state is None else MixerState.from_json(state)})


class LoadedBatch(NamedTuple):
    """The rows of a batch that one host reads; a row is a sequence, and rows of a source are spread over the batch."""

    tokens: Int32[np.ndarray, "rows sequence"]
    segment_ids: Int32[np.ndarray, "rows sequence"]
    """0, 1, … by document within the row; EOS belongs to the document that it closes, each padding is its own."""
    source_index: Int32[np.ndarray, "batch"]
    """Index into `Loader.sources` of every row of the batch, read here or not."""


class RowLocations(NamedTuple):
    """Rows of caches, which may be of several batches."""

    source_index: Int32[np.ndarray, "n"]
    """Index into `Loader.sources`."""
    blocks: Int64[np.ndarray, "n"]
    """Block of the row's source; for whole documents, its portion."""
    places: Int64[np.ndarray, "n"]
    """Place of the row in its block."""
    starts: Int64[np.ndarray, "n"]
    """Position of the row's first token in its source's cache."""
    data_epochs: Int64[np.ndarray, "n"]
    """How often the source has been read through before."""
