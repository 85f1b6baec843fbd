"""Look-up of embedding rows, with a gradient summed in float32 and, on each platform, in a fixed order.

Autodiff sums the gradient of a row in the dtype of the table: in bfloat16 the 257th equal gradient of a frequent token
is lost. On a GPU rows are added in the order in which threads arrive; a deterministic XLA instead sorts every number of
every row (tokens x hidden_size), once a step.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32, Int32

LookUp = Literal["scattered", "sorted"]
"""Sum of the gradient: rows added in place, one after the other; or, for GPUs, tokens sorted by id and the rows of each
run summed as a tree."""

Table = Float[Array, "vocab_size hidden_size"]
Ids = Int32[Array, "tokens"]
Rows = Float[Array, "tokens hidden_size"]


def look_up(table: Table, ids: Ids, *, gradient: LookUp) -> Rows:
    """Return the row of each id, 0 <= id < vocab_size. The table's gradient is rounded to its dtype once, after the
    sum."""
    return _look_up(table, ids, table.shape[0], gradient)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _look_up(table: Table, ids: Ids, num_rows: int, gradient: LookUp) -> Rows:
    return jnp.take(table, ids, axis=0)


def _forward(table: Table, ids: Ids, num_rows: int, gradient: LookUp) -> tuple[Rows, Ids]:
    return _look_up(table, ids, num_rows, gradient), ids


def _backward(num_rows: int, gradient: LookUp, ids: Ids, cotangent: Rows) -> tuple[Table, None]:
    summed = _summed_in_place if gradient == "scattered" else _summed_by_runs
    return summed(ids, cotangent.astype(jnp.float32), num_rows).astype(cotangent.dtype), None


_look_up.defvjp(_forward, _backward)


def _summed_in_place(ids: Ids, rows: Array, num_rows: int) -> Float32[Array, "vocab_size hidden_size"]:
    return jnp.zeros((num_rows, rows.shape[1]), jnp.float32).at[ids].add(rows)


def _summed_by_runs(ids: Ids, rows: Array, num_rows: int) -> Float32[Array, "vocab_size hidden_size"]:
    order = jnp.argsort(ids, stable=True)
    ids, rows = ids[order], rows[order]
    is_next_another = ids[1:] != ids[:-1]
    begins = jnp.concatenate([jnp.ones(1, bool), is_next_another])
    ends = jnp.concatenate([is_next_another, jnp.ones(1, bool)])

    def add(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        return left[0] | right[0], right[1] + jnp.where(right[0][:, None], 0.0, left[1])

    _, sums = lax.associative_scan(add, (begins, rows))
    # The sum of a run is at its end; every other partial sum gets a place of its own past the table, and is dropped.
    places = jnp.where(ends, ids, num_rows + jnp.arange(ids.shape[0], dtype=ids.dtype))
    zeros = jnp.zeros((num_rows, rows.shape[1]), jnp.float32)
    return zeros.at[places].set(sums, mode="drop", unique_indices=True)
