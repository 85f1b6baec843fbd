"""Shapes of arguments and results of attention and loss, for the definitions and their kernels."""

from typing import NamedTuple

from jaxtyping import Array, Float, Float32, Int32

Query = Float[Array, "batch stretch heads head_dim"]
KeyValue = Float[Array, "batch sequence kv_heads head_dim"]
SegmentIds = Int32[Array, "batch sequence"]
"""Ids of documents: the tokens of one are contiguous, and its neighbours have other ids."""


class Visibility(NamedTuple):
    """Keys that each token of packed rows attends to: of its own sequence up to itself, and of a prefix before it."""

    begin: Int32[Array, "batch sequence"]
    """First position of the token's own sequence."""
    prefix_begin: Int32[Array, "batch sequence"]
    prefix_end: Int32[Array, "batch sequence"]
    """End of the prefix that the sequence continues; an empty prefix ends where it begins."""


Hidden = Float[Array, "tokens hidden_size"]
Head = Float[Array, "hidden_size vocab_size"]
Labels = Int32[Array, "tokens"]
PerToken = Float32[Array, "tokens"]
Scalar = Float32[Array, ""]
Losses = tuple[Scalar, PerToken, PerToken]
"""Objective, loss and log-normaliser."""
