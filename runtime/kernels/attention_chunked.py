"""Attention by blocks of queries, for any platform; the backward pass computes the scores of each block again.

The forward pass keeps its output and the log of each row's softmax denominator: with these the shares of a block are
one exponential of its scores (arXiv:2205.14135). Keys after a block are never touched.

XLA's fast library for products on CPUs takes those whose left side is summed over its last axis. With transposed
scores, keys before queries, five of the seven products are so, and the others with a transposed copy of the keys or
values, which are smaller than the scores. Other backends lose nothing by it.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Float32, Int32

from runtime.kernels.linear import as_it_is
from runtime.kernels.shapes import KeyValue, Query, SegmentIds, Visibility

LEAST_QUERY_BLOCK, MOST_QUERY_BLOCK = 128, 512
BLOCKS_OF_A_ROW = 16  # where the size lies between those two; each block is compiled by itself
KEPT = "attention"
"""Name of the arrays that the backward pass needs, for rematerialisation policies."""

ByPair = Float[Array, "pairs length head_dim"]
GroupRows = Float[Array, "pairs group_rows head_dim"]
ByHead = Float32[Array, "batch kv_heads keys group rows"]  # one key for figures of a row
Visible = Bool[Array, "batch 1 keys 1 rows"]


class _Block(NamedTuple):
    begin: int
    end: int  # of the queries
    num_keys: int  # seen by the last of them


def query_block(num_rows: int) -> int:
    """Return the queries of a block. Small blocks touch fewer keys in vain, and stay in a CPU's cache."""
    wanted = -(-num_rows // (BLOCKS_OF_A_ROW * LEAST_QUERY_BLOCK)) * LEAST_QUERY_BLOCK
    return min(num_rows, MOST_QUERY_BLOCK, wanted)


def chunked(query: Query, key: KeyValue, value: KeyValue, segment_ids: SegmentIds, *, first_row: int = 0) -> Query:
    """Return attention (see `attention`). The last block may be short."""
    return _chunked(first_row, query, key, value, segment_ids)


def chunked_with_prefix(query: Query, key: KeyValue, value: KeyValue, visibility: Visibility) -> Query:
    """Return attention of packed sequences that may continue a prefix earlier in their row. It has no gradient."""

    def is_visible(block: _Block) -> Visible:
        begin, prefix_begin, prefix_end = (bound[:, None, block.begin : block.end] for bound in visibility)
        keys = jnp.arange(block.num_keys, dtype=jnp.int32)[None, :, None]
        rows = jnp.arange(block.begin, block.end, dtype=jnp.int32)[None, None]
        found = ((keys >= begin) & (keys <= rows)) | ((keys >= prefix_begin) & (keys < prefix_end))
        return found[:, None, :, None, :]

    return _mixed(0, query, key, value, is_visible)[0]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _chunked(first_row: int, query: Array, key: Array, value: Array, segment_ids: Array) -> Array:
    return _mixed(first_row, query, key, value, _within_documents(segment_ids, first_row))[0]


def _forward(
    first_row: int, query: Array, key: Array, value: Array, segment_ids: Array
) -> tuple[Array, tuple[Array, ...]]:
    is_visible = _within_documents(segment_ids, first_row)
    mixed, normalizer = (checkpoint_name(part, KEPT) for part in _mixed(first_row, query, key, value, is_visible))
    return mixed, (query, key, value, segment_ids, mixed, normalizer)


def _mixed(
    first_row: int, query: Array, key: Array, value: Array, is_visible: Callable[[_Block], Array]
) -> tuple[Array, Array]:
    """Return the output, and the log of each row's denominator as float32[pairs, 1, group rows of all blocks]."""
    num_kv_heads = key.shape[2]
    keys, values = _by_pair(key), _by_pair(value)
    mixed, normalizers = [], []
    for block in _blocks(query.shape[1], first_row):
        rows, seen = _grouped(query[:, block.begin : block.end], num_kv_heads), keys[:, : block.num_keys]
        scores = _scores(rows, seen, is_visible(block))
        largest = jnp.max(scores, axis=2, keepdims=True)
        numerators = jnp.exp(scores - largest)
        denominator = jnp.sum(numerators, axis=2, keepdims=True)
        mixed_block = jnp.einsum(
            "pdk,pkr->pdr",
            _transposed(values[:, : block.num_keys]),
            _all_heads(numerators, keys).astype(value.dtype),
            preferred_element_type=jnp.float32,
        )
        mixed_block = (mixed_block / _all_heads(denominator, keys)).astype(query.dtype)
        mixed.append(_ungrouped(mixed_block.swapaxes(1, 2), query[:, block.begin : block.end]))
        normalizers.append(_all_heads(largest + jnp.log(denominator), keys))
    return jnp.concatenate(mixed, axis=1), jnp.concatenate(normalizers, axis=2)


def _backward(first_row: int, kept: tuple[Array, ...], cotangent: Array) -> tuple[Array | None, ...]:
    query, key, value, segment_ids, mixed, normalizer = kept
    num_kv_heads = key.shape[2]
    keys, values = _by_pair(key), _by_pair(value)
    expected = _expected(mixed, cotangent, num_kv_heads)
    product = partial(jnp.einsum, preferred_element_type=jnp.float32)
    is_visible_in, query_gradient = _within_documents(segment_ids, first_row), []
    key_gradient, value_gradient = jnp.zeros(keys.shape, jnp.float32), jnp.zeros(values.shape, jnp.float32)
    groups = query.shape[2] // num_kv_heads
    for block in _blocks(query.shape[1], first_row):
        own_rows = slice(block.begin, block.end)
        seen = keys[:, : block.num_keys]
        rows, rows_cotangent = (_grouped(part[:, own_rows], num_kv_heads) for part in (query, cotangent))
        is_visible = is_visible_in(block)
        own_group = slice(groups * block.begin, groups * block.end)
        shares = jnp.exp(_scores(rows, seen, is_visible) - _by_head(normalizer[:, :, own_group], is_visible))
        shares = _all_heads(shares, keys)
        share_gradient = product("pkd,prd->pkr", values[:, : block.num_keys], rows_cotangent)
        score_gradient = (shares * (share_gradient - expected[:, :, own_group])).astype(query.dtype)
        shares = shares.astype(value.dtype)
        of_values = product("pkr,prd->pkd", shares, rows_cotangent)
        value_gradient = value_gradient.at[:, : block.num_keys].add(of_values)
        key_gradient = key_gradient.at[:, : block.num_keys].add(product("pkr,prd->pkd", score_gradient, rows))
        block_gradient = product("pdk,pkr->pdr", _transposed(seen), score_gradient)
        block_gradient = _ungrouped(block_gradient.swapaxes(1, 2), query[:, own_rows])
        query_gradient.append(block_gradient.astype(query.dtype))
    return (
        jnp.concatenate(query_gradient, axis=1),
        _from_pairs(key_gradient, key).astype(key.dtype),
        _from_pairs(value_gradient, value).astype(value.dtype),
        None,
    )


_chunked.defvjp(_forward, _backward)


def _expected(mixed: Query, cotangent: Query, num_kv_heads: int) -> Float32[Array, "pairs 1 group_rows"]:
    """Return each row's output times its cotangent, in the order of the normalisers."""
    products = mixed.astype(jnp.float32) * cotangent.astype(jnp.float32)
    of_blocks = [_grouped(products[:, block.begin : block.end], num_kv_heads) for block in _blocks(mixed.shape[1], 0)]
    by_pair = jnp.concatenate(of_blocks, axis=1)
    # With more than two axes, XLA's library for CPUs would sum row by row.
    sums = jnp.sum(as_it_is(by_pair.reshape(-1, by_pair.shape[-1])), axis=-1)
    return sums.reshape(by_pair.shape[0], 1, -1)


def _blocks(num_rows: int, first_row: int) -> Iterator[_Block]:
    size = query_block(num_rows)
    for begin in range(0, num_rows, size):
        end = min(begin + size, num_rows)
        yield _Block(begin, end, first_row + end)


def document_begins(segment_ids: SegmentIds) -> Int32[Array, "batch sequence"]:
    """Return the first position of each position's document.

    XLA would put comparisons of ids into every loop over exponentials, which then takes one score at a time.
    """
    positions = jnp.arange(segment_ids.shape[1], dtype=jnp.int32)
    is_first = jnp.diff(segment_ids, axis=1, prepend=segment_ids[:, :1]) != 0
    return lax.cummax(jnp.where(is_first, positions, 0), axis=1)


def _within_documents(segment_ids: SegmentIds, first_row: int) -> Callable[[_Block], Visible]:
    """Return a function that marks, for a block, the keys from the first of a row's document up to the row."""
    begins = document_begins(segment_ids)

    def is_visible(block: _Block) -> Visible:
        begin, end, num_keys = block
        keys = jnp.arange(num_keys, dtype=jnp.int32)[None, :, None]
        rows = jnp.arange(first_row + begin, first_row + end, dtype=jnp.int32)[None, None]
        found = (keys >= begins[:, None, first_row + begin : first_row + end]) & (keys <= rows)
        return found[:, None, :, None, :]

    return is_visible


def _scores(rows: GroupRows, keys: ByPair, is_visible: Visible) -> ByHead:
    scores = jnp.einsum("pkd,prd->pkr", keys, rows, preferred_element_type=jnp.float32)
    return jnp.where(is_visible, _by_head(scores, is_visible), jnp.finfo(jnp.float32).min)


def _by_head(pairs: Float32[Array, "pairs keys_or_one group_rows"], is_visible: Visible) -> Float32[Array, "..."]:
    """Split heads and rows, for operations on scores: as one axis, XLA's loop for a CPU takes one score at a time."""
    batch, _, _, _, num_rows = is_visible.shape
    return pairs.reshape(batch, -1, pairs.shape[1], pairs.shape[2] // num_rows, num_rows)


def _all_heads(heads: ByHead, pairs: ByPair) -> Float32[Array, "pairs keys group_rows"]:
    """Join heads and rows, for products: one matrix per pair."""
    return heads.reshape(pairs.shape[0], heads.shape[2], -1)


def _transposed(pairs: ByPair) -> Float[Array, "pairs head_dim length"]:
    """Copy the smaller side, so that the library for products takes it: summed over its last axis."""
    return as_it_is(pairs.swapaxes(1, 2))


def _by_pair(heads: KeyValue) -> ByPair:
    """Return one entry a (sequence, key-value head)."""
    batch, length, num_heads, head_dim = heads.shape
    return heads.swapaxes(1, 2).reshape(batch * num_heads, length, head_dim)


def _from_pairs(pairs: ByPair, like: KeyValue) -> KeyValue:
    batch, length, num_heads, head_dim = like.shape
    return pairs.reshape(batch, num_heads, length, head_dim).swapaxes(1, 2)


def _grouped(heads: Query, num_kv_heads: int) -> ByPair:
    """Return the rows of the query heads that share a key-value head, one below the other."""
    batch, length, num_heads, head_dim = heads.shape
    groups = num_heads // num_kv_heads
    by_head = heads.reshape(batch, length, num_kv_heads, groups, head_dim).transpose(0, 2, 3, 1, 4)
    return by_head.reshape(batch * num_kv_heads, groups * length, head_dim)


def _ungrouped(rows: ByPair, like: Query) -> Query:
    batch, length, num_heads, head_dim = like.shape
    groups = batch * num_heads // rows.shape[0]
    by_head = rows.reshape(batch, num_heads // groups, groups, length, head_dim)
    return by_head.transpose(0, 3, 1, 2, 4).reshape(like.shape)
