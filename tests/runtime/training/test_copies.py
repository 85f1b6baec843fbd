"""Copies: a wrong bit on any device is found by its tensor and alarmed once; equal copies are silent."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from runtime.tracking.events import EventLog
from runtime.training.alarm_events import log_alarm
from runtime.training.digests import Copies, begin_comparison, finish_comparison
from tests.catalogue import check_message

VALUES = np.random.default_rng(0).normal(size=(2, 8, 4)).astype(np.float32)


def copies(values: np.ndarray, *spec: str | None, wrong_device: int | None = None) -> jax.Array:
    """Return an array on four by two devices, with a wrong bit on one of them."""
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
def test_a_wrong_bit_on_any_device_is_found_by_its_tensor(spec, wrong_device):
    params = {"w": copies(VALUES, *spec, wrong_device=wrong_device), "v": copies(VALUES, *spec)}
    assert finish_comparison(begin_comparison(params)) == ["w"]


def test_equal_copies_are_no_finding_and_single_copies_are_not_compared():
    split = copies(VALUES, None, ("x", "y"), wrong_device=3)
    assert finish_comparison(begin_comparison({"w": copies(VALUES), "split": split})) == []
    assert begin_comparison({"split": split, "alone": jax.numpy.ones(3)}) == {}


def test_one_alarm_names_the_last_step_with_equal_copies(tmp_path, caplog):
    copies = Copies(40)
    assert copies.observe(100, []) == [] and not copies.are_apart
    (alarm,) = copies.observe(200, ["layers.q_norm", "norm"])
    assert (alarm.monitor, alarm.step, alarm.facts["same_step"]) == ("copies", 200, 100)
    with EventLog(f"{tmp_path}/1.jsonl") as events:
        log_alarm(alarm, events, {})
    check_message("\n".join(caplog.messages))
    assert copies.observe(300, ["layers.q_norm"]) == [] and copies.are_apart
