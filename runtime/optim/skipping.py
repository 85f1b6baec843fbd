"""Skipping bad updates: the arithmetic of `skip_rule.SkipRule`, on the device, without waiting for the host.

A bad update is found by comparison and dropped by selection, since 0 times NaN is NaN. Bad figures are never
remembered, so the window follows no jump. Where a jump is meant, the history restarts.
"""

import dataclasses
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32

LEAST_DEVIATION = 1e-3
"""Least deviation, as a share of the mean. With figures that hardly vary, a limit right at their mean would make every
later update bad, and none of them would ever be remembered."""

Scalar = Float32[Array, ""]
TreeT = TypeVar("TreeT")


class SkipHistory(eqx.Module):
    """The last good losses and gradient norms, in rings, and two counts. Part of the state of a run."""

    losses: Float32[Array, "window"]
    grad_norms: Float32[Array, "window"]
    num_good: Int32[Array, ""]
    """Good updates since the window started."""
    num_consecutive: Int32[Array, ""]
    """Updates skipped since the last good one."""


class UpdateVerdict(NamedTuple):
    """Verdict on one update; the limits are infinite while the history is too short."""

    is_bad: Bool[Array, ""]
    loss_limit: Scalar
    grad_norm_limit: Scalar


def empty_history(window_steps: int) -> SkipHistory:
    """Return the history before the first update."""
    ring, zero = jnp.zeros(window_steps, jnp.float32), jnp.zeros((), jnp.int32)
    return SkipHistory(ring, ring, zero, zero)


def restarted(history: SkipHistory, restarts: Scalar) -> SkipHistory:
    """Return the history without its good updates where `restarts` is not 0; skips in a row stay counted."""
    return dataclasses.replace(history, num_good=jnp.where(restarts != 0, 0, history.num_good))


def judged(
    history: SkipHistory,
    loss: Scalar,
    grad_norm: Scalar,
    num_targets: Int32[Array, ""],
    *,
    sigma: Scalar,
    warmup_steps: Scalar,
) -> UpdateVerdict:
    """Return whether an update with these figures is bad; one without any target is."""
    loss_limit = _limit(history.losses, history.num_good, sigma, warmup_steps)
    grad_norm_limit = _limit(history.grad_norms, history.num_good, sigma, warmup_steps)
    # Each comparison is false for NaN, so an update must be shown to be good.
    is_good = jnp.isfinite(loss) & jnp.isfinite(grad_norm) & (loss <= loss_limit) & (grad_norm <= grad_norm_limit)
    return UpdateVerdict(~is_good | (num_targets == 0), loss_limit, grad_norm_limit)


def remembered(history: SkipHistory, verdict: UpdateVerdict, loss: Scalar, grad_norm: Scalar) -> SkipHistory:
    """Return the history after this update: good figures replace the oldest, a bad update is only counted."""
    place = history.num_good % history.losses.shape[0]
    is_bad = verdict.is_bad

    def with_value(ring: Array, value: Array) -> Array:
        return jnp.where(is_bad, ring, ring.at[place].set(value))

    return SkipHistory(
        losses=with_value(history.losses, loss),
        grad_norms=with_value(history.grad_norms, grad_norm),
        num_good=jnp.where(is_bad, history.num_good, history.num_good + 1),
        num_consecutive=jnp.where(is_bad, history.num_consecutive + 1, 0),
    )


def unless(is_bad: Bool[Array, ""], new: TreeT, old: TreeT) -> TreeT:
    """Return `old`, bit for bit, where the update is bad, and otherwise `new`."""
    return jax.tree.map(lambda after, before: jnp.where(is_bad, before, after), new, old)


def _limit(ring: Array, num_good: Array, sigma: Array, warmup_steps: Array) -> Array:
    size = ring.shape[0]
    is_filled = jnp.arange(size, dtype=jnp.int32) < num_good
    count = jnp.clip(num_good, 1, size).astype(jnp.float32)
    mean = jnp.sum(jnp.where(is_filled, ring, 0.0)) / count
    deviation = jnp.sqrt(jnp.sum(jnp.where(is_filled, jnp.square(ring - mean), 0.0)) / count)
    deviation = jnp.maximum(deviation, LEAST_DEVIATION * jnp.abs(mean))
    is_long_enough = num_good.astype(jnp.float32) >= warmup_steps
    return jnp.where(is_long_enough, mean + sigma * deviation, jnp.inf)
