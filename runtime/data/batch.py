"""What a loader gives: batches, where their rows are read from, and where the data stand between two of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from runtime.data.mixing.mixer import MixerState
from runtime.data.packing import Packing
from runtime.data.whole_documents import Bookmark

Rows = slice | Int64[np.ndarray, "rows"]
"""Rows of a batch that one host reads."""


@dataclass(frozen=True)
class DataPosition:
    """Where the data stand: all that a batch depends on besides the step; goes into a checkpoint as JSON."""

    consumed: dict[str, int] = field(default_factory=dict)
    """Sequences drawn so far, by the identity of the source."""
    carry: dict[str, int] = field(default_factory=dict)
    """What each source is owed beyond that, by identity; see runtime/data/allocation.py."""
    sequence_length: int | None = None
    """Length of the sequences counted in `consumed`; None before the first batch."""
    packing: Packing | None = None
    """How those sequences were packed; None before the first batch."""
    bookmarks: dict[str, Bookmark] = field(default_factory=dict)
    """By identity, where whole documents are read on (whole_documents.py): follows from `consumed`, spares a count."""
    shares: dict[str, int] = field(default_factory=dict)
    """What the last batch was drawn by, by identity; for the log, the next batch does not depend on it."""
    mixer: MixerState | None = None
    """State of a mixing policy that learns."""

    def to_json(self) -> dict:
        """As JSON data; `from_json` is its inverse."""
        mixer = None if self.mixer is None else self.mixer.to_json()
        return {**vars(self), "mixer": mixer}

    @classmethod
    def from_json(cls, document: Mapping) -> "DataPosition":
        """From what `to_json` gave."""
        state = document["mixer"]
        return cls(**{**document, "mixer": None if state is None else MixerState.from_json(state)})


class Batch(NamedTuple):
    """Rows are sequences; those of one source are spread over the batch."""

    tokens: Int32[np.ndarray, "rows sequence"]
    """Of the rows that were asked for."""
    segment_ids: Int32[np.ndarray, "rows sequence"]
    """0, 1, … by document within the row; EOS belongs to the document that it closes, padding to one each."""
    source_index: Int32[np.ndarray, "batch"]
    """Of all rows of the batch, whichever were read. Index into `Loader.sources`; of two names of one source, the
    first."""


class BatchPlan(NamedTuple):
    """Where each row of a batch is read from."""

    source_index: Int32[np.ndarray, "batch"]
    """Index into `Loader.sources`."""
    blocks: Int64[np.ndarray, "batch"]
    """Block of the row's source; of whole documents, portion."""
    places: Int64[np.ndarray, "batch"]
    """Place of the row among those of its block."""
    starts: Int64[np.ndarray, "batch"]
    """Position of the row's first token in its source's cache."""
    data_epochs: Int64[np.ndarray, "batch"]
    """How often the source had been read through before."""
