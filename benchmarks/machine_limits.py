"""Machine limits: products and bytes a second of the CPU that a benchmark runs on, as XLA reaches them here."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

SIDE = 2_048
ROWS, WIDTH = 1_024, 65_536
"""Shape of 256 MiB in float32: more than caches hold."""


class MachineLimits(NamedTuple):
    """The most that all threads reach together, in float32."""

    flops_per_second: float
    bytes_per_second: float

    def least_seconds(self, flops: float, num_bytes: float) -> float:
        """Return the shortest time for work that computes and reads at once."""
        return max(flops / self.flops_per_second, num_bytes / self.bytes_per_second)


def machine_limits() -> MachineLimits:
    """Measure a product of large matrices, and sums over a large array."""
    square, large = jnp.ones((SIDE, SIDE)), jnp.ones((ROWS, WIDTH))
    return MachineLimits(
        2 * SIDE**3 / _least_seconds(jnp.matmul, square, square), 4 * large.size / _least_seconds(_row_sums, large)
    )


def _row_sums(large: Any) -> Any:
    return large.sum(axis=1)


def _least_seconds(function: Callable[..., Any], *arguments: Any) -> float:
    compiled = jax.jit(function)
    jax.block_until_ready(compiled(*arguments))
    found = []
    for _ in range(5):
        began = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        found.append(time.perf_counter() - began)
    return min(found)
