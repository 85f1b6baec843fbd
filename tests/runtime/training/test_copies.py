"""Copies: one bit on one device is found, by tensor, said once, and certifies nothing; equal ones are silent."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from runtime.training.copies import Copies, begin_comparison, finish_comparison

VALUES = np.random.default_rng(0).normal(size=(2, 8, 4)).astype(np.float32)


def copies(values: np.ndarray, *spec: str | None, wrong_device: int | None = None) -> jax.Array:
    """On four by two devices; on one of them a bit may be another."""
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("x", "y"))
    placed = jax.device_put(values, NamedSharding(mesh, PartitionSpec(*spec)))
    parts = [np.array(shard.data) for shard in placed.addressable_shards]
    if wrong_device is not None:
        parts[wrong_device].view(np.uint32).flat[-1] ^= 1
    on_devices = [
        jax.device_put(part, shard.device) for part, shard in zip(parts, placed.addressable_shards, strict=True)
    ]
    return jax.make_array_from_single_device_arrays(values.shape, placed.sharding, on_devices)


@pytest.mark.parametrize("wrong_device", range(8))
@pytest.mark.parametrize("spec", [(), ("y",), (None, "x")])
def test_a_copy_that_differs_by_a_bit_on_any_device_is_found_by_its_tensor(spec, wrong_device):
    params = {"w": copies(VALUES, *spec, wrong_device=wrong_device), "v": copies(VALUES, *spec)}
    assert finish_comparison(begin_comparison(params)) == ["w"]


def test_equal_copies_are_no_finding_and_what_has_none_is_not_compared():
    split = copies(VALUES, None, ("x", "y"), wrong_device=3)
    assert finish_comparison(begin_comparison({"w": copies(VALUES), "split": split})) == []
    assert begin_comparison({"split": split, "alone": jax.numpy.ones(3)}) == {}


def test_it_is_said_once_with_the_last_step_at_which_they_were_the_same():
    copies = Copies(40)
    assert copies.observe(100, []) == [] and not copies.are_apart
    (alarm,) = copies.observe(200, ["layers.q_norm", "norm"])
    assert (alarm.monitor, alarm.step) == ("copies", 200)
    assert alarm.message.startswith(
        "step 200: devices that hold the same parameters do not hold the same bits, in 2 ten"
    )
    assert "after step 100, where they were the same" in alarm.message
    assert copies.observe(300, ["layers.q_norm"]) == [] and copies.are_apart
