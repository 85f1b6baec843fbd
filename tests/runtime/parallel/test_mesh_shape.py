"""Mesh shape: one arithmetic for a plan, a compile and a run, in plain figures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.parallel.mesh_shape import Machines, MeshLayout, MeshShape
from tests.catalogue import expect_error

V4_4096 = Machines((8, 16, 16))


@pytest.mark.parametrize(
    ("machines", "axes", "expected"),
    [
        (V4_4096, {}, MeshLayout(MeshShape(1, 2048), (8, 16, 16), 2, 2)),
        (V4_4096, {"replica": 2}, MeshLayout(MeshShape(2, 1024), (8, 16, 8), 2, 2)),
        (V4_4096, {"replica": 8, "model": 4}, MeshLayout(MeshShape(8, 64, 4), (8, 2, 4), 2, 1)),
        (Machines((16, 16), 2), {"replica": 4, "context": 2}, MeshLayout(MeshShape(8, 32, 1, 2), (16, 2), 1, 1)),
        (Machines((2, 4)), {"model": 2, "replica": 4}, MeshLayout(MeshShape(4, 1, 2), (1, 1), 0, 1)),
        (Machines((32,), num_hosts=4), {}, MeshLayout(MeshShape(1, 32), (32,), 0, 0)),
        (Machines((32,), num_hosts=4), {"replica": 4, "model": 2}, MeshLayout(MeshShape(4, 4, 2), (4,), 0, 0)),
        (Machines((32,), num_hosts=4), {"replica": 2}, MeshLayout(MeshShape(2, 16), (16,), 0, 0)),
        (Machines((32,), num_hosts=4), {"replica": 8}, MeshLayout(MeshShape(8, 4), (4,), 0, 0)),
        (Machines((8,), num_hosts=4, cores_hold_copies=True), {}, MeshLayout(MeshShape(2, 4), (4,), 0, 0)),
        (Machines((8,), num_hosts=4, cores_hold_copies=True), {"replica": 2}, MeshLayout(MeshShape(4, 2), (2,), 0, 0)),
        (Machines((8,), num_hosts=2, cores_hold_copies=True), {"model": 8}, MeshLayout(MeshShape(1, 1, 8), (1,), 0, 0)),
    ],
)
def test_requested_fields_are_split_off_and_the_rest_is_data(
    machines: Machines, axes: dict, expected: MeshLayout
) -> None:
    assert machines.layout(**axes) == expected


@pytest.mark.parametrize(
    ("machines", "axes"),
    [
        (
            Machines((2, 4)),
            {"model": 4, "replica": 4},
        ),
        (
            Machines((2, 4)),
            {"model": 8},
        ),
        (V4_4096, {"replica": 32}),
        (Machines((8,)), {"replica": 3}),
        (
            Machines((24,), num_hosts=3),
            {"replica": 2},
        ),
        (
            Machines((4,), num_hosts=2, cores_hold_copies=True),
            {"replica": 4},
        ),
    ],
)
def test_a_batch_that_devices_cannot_share_is_refused_with_the_fix(machines: Machines, axes: dict) -> None:
    with expect_error(ValueError):
        machines.layout(**axes)


@given(
    sizes=st.lists(st.sampled_from([1, 2, 3, 4, 8, 16]), min_size=1, max_size=3),
    num_slices=st.integers(1, 3),
    axes=st.fixed_dictionaries({axis: st.sampled_from([1, 2, 3, 4]) for axis in ("replica", "model", "context")}),
)
def test_every_device_is_used_once_and_nothing_is_made_good(sizes: list[int], num_slices: int, axes: dict) -> None:
    machines = Machines(tuple(sizes), num_slices)
    try:
        shape = machines.layout(**axes).shape
    except ValueError:
        return
    assert (shape.replica, shape.model, shape.context) == (num_slices * axes["replica"], axes["model"], axes["context"])
    assert shape.replica * shape.copy_size == machines.num_devices
    assert shape.batch_parts * shape.model * shape.context == machines.num_devices
