"""Resources: checks before anything is reserved, and slices against Ray's own tables."""

import pytest
from ray._private.accelerators.tpu import (
    TPUAcceleratorManager,
    get_chips_per_host,
    infer_tpu_pod_type_from_topology,
)

from marin_dag.errors import UserError
from marin_dag.graph.resources import CORES_PER_CHIP, TOPOLOGIES, Cpu, Gpu, Tpu, is_gang, slice_shape
from tests.catalogue import expect_error
from tests.marin_dag.toy_steps import CountConfig, count

NAMES = [
    infer_tpu_pod_type_from_topology(topology, generation)
    for generation, topologies in TOPOLOGIES.items()
    for topology in topologies
]


@pytest.mark.parametrize("name", NAMES)
def test_a_slice_agrees_with_ray(name: str):
    shape = slice_shape(name)
    assert TPUAcceleratorManager.is_valid_tpu_accelerator_topology(shape.generation, shape.topology)
    assert infer_tpu_pod_type_from_topology(shape.topology, shape.generation) == name
    assert shape.chips_per_host == get_chips_per_host(shape.topology, shape.generation)
    assert shape.num_hosts * shape.chips_per_host == shape.num_chips
    assert int(name.rpartition("-")[2]) == shape.num_chips * CORES_PER_CHIP[shape.generation]


@pytest.mark.parametrize(
    ("resources", "num_hosts", "gang", "text"),
    [
        (Tpu("v4-2048"), 256, True, "v4-2048"),
        (Tpu("v5litepod-256", num_slices=2), 128, True, "2 x v5litepod-256"),
        (Tpu("v6e-8"), 1, True, "v6e-8"),
        (Gpu("H200", 8), 1, False, "8 x H200"),
        (Gpu("H200", 8, num_hosts=4), 4, True, "4 x 8 x H200"),
        (Cpu(2), 1, False, "2 cpu"),
        (Cpu(2, num_hosts=3), 3, True, "3 x 2 cpu"),
    ],
)
def test_several_machines_or_a_slice_make_a_gang(resources: Cpu | Gpu | Tpu, num_hosts: int, gang: bool, text: str):
    assert resources.num_hosts == num_hosts
    assert is_gang(resources) == gang
    assert str(resources) == text


@pytest.mark.parametrize(
    "make",
    [
        lambda: Tpu("v4-100"),
        lambda: Tpu("v9-8"),
        lambda: Tpu("v4"),
        lambda: Tpu("v4-8", num_slices=0),
        lambda: Cpu(-1),
        lambda: Cpu(1, num_hosts=0),
        lambda: Gpu("H200", 0),
        lambda: Gpu("H200", 1, num_hosts=0),
    ],
)
def test_impossible_resources_are_refused_with_the_cure(make):
    with expect_error(ValueError):
        make()


def test_a_value_that_is_no_resources_is_refused_in_the_recipe():
    config = CountConfig(stride=1, until_step=5)
    with expect_error(UserError):
        count("first", config, resources="gpu")
    with expect_error(UserError):
        count("first", config).on(2)
