"""Slices by their public names, and what their wires carry."""

import math

import pytest

from marin_dag.graph.resources import CORES_PER_CHIP, TOPOLOGIES, Gpu
from runtime.cost.chips import GPUS, slice_of
from runtime.cost.described_devices import BOARDS, target_config
from tests.catalogue import expect_error


@pytest.mark.parametrize(
    ("name", "topology", "num_chips"),
    [
        ("v4-2048", "v4:8x8x16", 1024),
        ("v4-128", "v4:4x4x4", 64),
        ("v5litepod-256", "v5e:16x16", 256),
        ("v5p-8", "v5p:2x2x1", 4),
        ("v6e-64", "v6e:8x8", 64),
        ("1 x H200", "1x1x1", 1),
        ("8 x A100-80G", "1x1x8", 8),
        ("4 x 8 x H100", "1x4x8", 32),
    ],
)
def test_a_public_name_is_a_torus_and_v4_and_v5p_count_two_cores_a_chip(name, topology, num_chips):
    found = slice_of(name)
    assert (found.topology, found.num_chips) == (topology, num_chips)


def test_every_slice_that_a_step_can_ask_for_is_known_as_the_same_torus():
    for generation, topologies in TOPOLOGIES.items():
        for topology in topologies:
            num_chips = math.prod(map(int, topology.split("x")))
            found = slice_of(f"{generation}-{num_chips * CORES_PER_CHIP[generation]}")
            assert found.topology.partition(":")[2] == topology
            assert found.generation.name == generation.replace("v5litepod", "v5e")


@pytest.mark.parametrize(
    "name",
    [
        "v9-8",
        "v4",
        "v5litepod-48",
        "v4-9",
        "8 x RTX",
    ],
)
def test_an_unknown_slice_is_refused_with_those_that_are_known(name):
    with expect_error(ValueError):
        slice_of(name)


def test_an_axis_that_closes_to_a_ring_carries_twice_as_much():
    assert slice_of("v4-2048").axis_bytes_per_second(2) == 90e9
    assert slice_of("v4-16").axis_bytes_per_second(0) == 45e9
    assert slice_of("v5litepod-256").axis_bytes_per_second(0) == 90e9
    assert slice_of("v5litepod-64").axis_bytes_per_second(0) == 45e9


def test_gpus_are_called_as_a_phase_asks_for_them():
    assert str(Gpu("H200", 8, num_hosts=4)) == "4 x 8 x H200"
    assert slice_of(str(Gpu("H200", 8, num_hosts=4))).num_hosts == 4
    assert slice_of(str(Gpu("H200", 8))).num_chips == 8


def test_a_program_gets_less_gpu_memory_than_the_compiler_assumes():
    assert GPUS.keys() == BOARDS.keys()
    for name, gpu in GPUS.items():
        assert gpu.hbm_in_bytes == pytest.approx(0.75 * BOARDS[name].memory_in_bytes, rel=0.01)
        assert gpu.hbm_bytes_per_second == pytest.approx(BOARDS[name].memory_bytes_per_second, rel=0.01)
        assert f'device_description_str: "{BOARDS[name].name}"' in target_config(name)
