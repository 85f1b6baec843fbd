"""Slots: where draws of a source lie, up to the keyed order inside their blocks."""

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, UInt64

from runtime.data.permutation import key_of, mixed, permuted

Bookmark = dict[str, int]
"""A place in the order of a source, stored with a data position so that a resumed run need not count up to it."""


class Slots(NamedTuple):
    """Draws of one source. The block of whole documents is a portion (whole_documents.py)."""

    blocks: Int64[np.ndarray, "n"]
    indices: Int64[np.ndarray, "n"]
    """Index in the block's keyed order."""
    sizes: Int64[np.ndarray, "n"]
    """Rows of the block."""
    data_epochs: Int64[np.ndarray, "n"]


@functools.lru_cache(maxsize=1024)
def block_order(seed: int, identity: str, data_epoch: int, num_blocks: int) -> Int64[np.ndarray, "blocks"]:
    """Return the blocks of an epoch in reading order: as they were built in the first epoch, keyed in later ones.

    The first epoch needs no block before its turn, so training can start while a cache is being built.
    """
    blocks = np.arange(num_blocks)
    if data_epoch:
        key = key_of("blocks", seed, identity, data_epoch)
        blocks = permuted(blocks, sizes=np.full(num_blocks, num_blocks), keys=np.full(num_blocks, key, np.uint64))
    blocks.flags.writeable = False
    return blocks


def row_keys(seed: int, identity: str, slots: Slots) -> UInt64[np.ndarray, "n"]:
    """Return the key of the order inside the block of each slot, from (seed, identity, epoch, block)."""
    keys = np.empty(len(slots.blocks), np.uint64)
    for data_epoch in np.unique(slots.data_epochs).tolist():
        keys[slots.data_epochs == data_epoch] = key_of("order", seed, identity, data_epoch)
    return keys ^ mixed(slots.blocks.astype(np.uint64))
