"""Batches of a loader, and the data position between two of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from runtime.data.mixing.mixer import MixerState

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
    shares: dict[str, int] = field(default_factory=dict)
    """Shares that the last batch was drawn by, by identity; only for the log."""
    mixer: MixerState | None = None
    """State of a mixing policy that learns."""

    def to_json(self) -> dict:
        return {**vars(self), "mixer": None if self.mixer is None else self.mixer.to_json()}

    @classmethod
    def from_json(cls, document: Mapping) -> "DataPosition":
        state = document["mixer"]
        return cls(**{**document, "mixer": None if state is None else MixerState.from_json(state)})


class LoadedBatch(NamedTuple):
    """The rows of a batch that one host reads; a row is a sequence, and rows of a source are spread over the batch."""

    tokens: Int32[np.ndarray, "rows sequence"]
    segment_ids: Int32[np.ndarray, "rows sequence"]
    """0, 1, … by document within the row; EOS belongs to the document that it closes."""
    source_index: Int32[np.ndarray, "batch"]
    """Index into `Loader.sources` of every row of the batch, read here or not."""
