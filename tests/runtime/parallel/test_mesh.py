"""A mesh that cannot be is refused with the numbers and the cure."""

import dataclasses
import itertools
import random
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from runtime.model.llama.config import LlamaConfig
from runtime.model.placement import check_placement
from runtime.parallel.hosts import open_cores
from runtime.parallel.mesh import (
    AXES,
    _in_copies,
    _on_the_torus,
    copy_size,
    data_size,
    make_mesh,
    mesh_of_cores,
    num_batch_parts,
    platform,
    whole_mesh,
)
from runtime.parallel.mesh_shape import MeshShape
from tests.catalogue import expect_error

CONFIG = LlamaConfig(
    vocab_size=16,
    hidden_size=12,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=4,
    max_position_embeddings=16,
)


def test_one_device_is_a_mesh_with_all_axes() -> None:
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    assert mesh.axis_names == AXES
    assert platform(mesh) == "cpu"
    check_placement(CONFIG, mesh)


@pytest.mark.parametrize(
    "shape",
    [
        MeshShape(data=3),
        MeshShape(data=0),
        MeshShape(model=2, context=0),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(shape: MeshShape) -> None:
    with expect_error(ValueError):
        make_mesh(shape, jax.devices()[:1])


def test_a_data_axis_that_does_not_divide_the_hidden_size_is_refused() -> None:
    mesh = Mesh(np.array(jax.devices()[:1] * 8).reshape(1, 8, 1, 1, 1, 1), AXES)
    with expect_error(ValueError):
        check_placement(CONFIG, mesh)


def test_a_mesh_of_all_devices_gives_to_data_what_the_other_axes_leave() -> None:
    mesh = whole_mesh(model=2, context=2)
    assert (mesh.size, mesh.shape["model"], mesh.shape["context"], data_size(mesh)) == (8, 2, 2, 2)
    with expect_error(ValueError):
        whole_mesh(model=3)


def test_replicas_of_a_row_of_devices_are_neighbours_each() -> None:
    mesh = whole_mesh(replica=2, model=2)
    assert (mesh.shape["replica"], data_size(mesh), mesh.shape["model"], copy_size(mesh)) == (2, 2, 2, 4)
    assert list(mesh.devices.flat) == jax.devices()
    slices = whole_mesh(num_slices=2, replica=2)
    assert (slices.shape["replica"], data_size(slices)) == (4, 2)


def gpu_of(host: int, id: int) -> Mock:
    """Return the attributes of a GPU that a mesh reads."""
    return Mock(spec=jax.Device, id=id, process_index=host, platform="gpu")


def test_on_gpus_the_replicas_lie_over_the_hosts_however_jax_lists_the_devices(monkeypatch) -> None:
    gpus = [gpu_of(number % 4, 10 * (number % 4) + number // 4) for number in range(8)]
    taken, some_mesh = [], make_mesh(MeshShape(), jax.devices()[:1])

    def taking(shape: MeshShape, devices: list) -> Mesh:
        taken.append((shape, devices))
        return some_mesh

    monkeypatch.setattr("runtime.parallel.mesh.make_mesh", taking)
    monkeypatch.setattr(jax, "devices", lambda: gpus)
    whole_mesh(replica=4)
    ((shape, devices),) = taken
    assert shape == MeshShape(replica=4, data=2)
    hosts = np.array([gpu.process_index for gpu in devices]).reshape(shape)
    assert hosts[:, :, 0, 0].tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    with expect_error(ValueError):
        whole_mesh(replica=3)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"num_attention_heads": 2},
        {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 7},
    ],
)
def test_heads_and_columns_that_the_model_axis_does_not_divide_are_refused(change: dict) -> None:
    mesh = make_mesh(MeshShape(model=2), jax.devices()[:2])
    with expect_error(ValueError):
        check_placement(dataclasses.replace(CONFIG, **change), mesh)


@dataclasses.dataclass(frozen=True)
class Chip:
    """The attributes of a TPU device that a mesh reads."""

    slice_index: int
    coords: tuple[int, int, int]
    core_on_chip: int = 0
    platform: str = "tpu"


def chips(num_slices: int, sizes: tuple[int, int, int]) -> list[Chip]:
    places = itertools.product(range(num_slices), *map(range, sizes))
    found = [Chip(index, (x, y, z)) for index, x, y, z in places]
    random.Random(0).shuffle(found)  # the runtime lists them by host, not by place
    return found


def test_on_a_tpu_the_data_axes_are_those_of_the_torus_and_a_replica_is_a_slice() -> None:
    placed, torus = _on_the_torus(chips(2, (4, 2, 3)), MeshShape(replica=2, data=24))
    assert torus == (4, 2, 3)
    for place, chip in np.ndenumerate(np.array(placed).reshape(2, *torus)):
        assert place == (chip.slice_index, *chip.coords)


def test_on_a_tpu_model_and_context_are_neighbours_on_the_last_axis_that_they_divide() -> None:
    placed, torus = _on_the_torus(chips(2, (3, 4, 5)), MeshShape(replica=2, data=15, model=2, context=2))
    assert torus == (3, 1, 5)
    for (index, x, _, z, y), chip in np.ndenumerate(np.array(placed).reshape(2, 3, 1, 5, 4)):
        assert (index, (x, y, z)) == (chip.slice_index, chip.coords)
    with expect_error(ValueError):
        _on_the_torus(chips(1, (2, 4, 2)), MeshShape(data=2, model=8))


def test_replicas_within_a_slice_are_unbroken_stretches_of_the_last_axis_that_they_divide() -> None:
    placed, torus = _on_the_torus(chips(2, (2, 4, 4)), MeshShape(replica=4, data=8, model=2))
    assert torus == (2, 4, 1)  # model is cut first: pairs of neighbours on the last axis, two of them a slice
    for (replica, x, y, _, z), chip in np.ndenumerate(np.array(placed).reshape(4, *torus, 2)):
        assert (chip.slice_index, chip.coords) == (replica // 2, (x, y, 2 * (replica % 2) + z))
    placed, torus = _on_the_torus(chips(1, (6, 4, 1)), MeshShape(replica=3, data=8))
    assert torus == (2, 4, 1)
    for (replica, x, y, z), chip in np.ndenumerate(np.array(placed).reshape(3, *torus)):
        assert chip.coords == (2 * replica + x, y, z)


def test_two_cores_a_chip_and_a_replica_over_several_slices_are_refused() -> None:
    cores = [dataclasses.replace(chip, core_on_chip=core) for chip in chips(1, (2, 2, 1)) for core in range(2)]
    with expect_error(ValueError):
        _on_the_torus(cores, MeshShape(data=8))
    with expect_error(ValueError):
        _on_the_torus(chips(2, (2, 2, 2)), MeshShape(replica=1, data=16))


def test_the_data_axes_can_be_chosen_where_the_machine_has_none_of_its_own() -> None:
    mesh = make_mesh(MeshShape(replica=2, data=4), jax.devices()[:8], torus=(2, 2, 1))
    assert dict(mesh.shape) == {"replica": 2, "data_x": 2, "data_y": 2, "data_z": 1, "model": 1, "context": 1}
    assert (data_size(mesh), num_batch_parts(mesh)) == (4, 8)
    with expect_error(ValueError):
        make_mesh(MeshShape(replica=2, data=4), jax.devices()[:8], torus=(2, 1, 1))


@pytest.mark.parametrize(
    ("num_cores", "parallel", "shape"),
    [
        (1, {}, (1, 1, 1, 1)),
        (2, {}, (2, 1, 1, 1)),
        (4, {"model": 2}, (2, 1, 2, 1)),
        (4, {"context": 4}, (1, 1, 1, 4)),
        (3, {"model": 3}, (1, 1, 3, 1)),
    ],
)
def test_each_core_holds_a_whole_copy_as_far_as_model_and_context_leave_cores(
    num_cores: int, parallel: dict, shape: tuple
) -> None:
    open_cores(4)
    mesh = mesh_of_cores(num_cores, **parallel)
    assert (mesh.shape["replica"], data_size(mesh), mesh.shape["model"], mesh.shape["context"]) == shape
    assert list(mesh.devices.flat) == jax.devices()[:num_cores]


def test_processes_share_each_copy_of_which_every_process_holds_a_part() -> None:
    cores = np.array([[10 * process + core for core in range(4)] for process in range(2)])
    assert _in_copies(cores, 4, 1).tolist() == [[[[0], [10]], [[1], [11]], [[2], [12]], [[3], [13]]]]
    assert _in_copies(cores, 2, 1).tolist() == [[[[0, 1], [10, 11]], [[2, 3], [12, 13]]]]
    assert _in_copies(cores, 1, 1).tolist() == [[[[0, 1, 2, 3], [10, 11, 12, 13]]]]


def test_groups_of_processes_have_copies_of_their_own() -> None:
    cores = np.array([[10 * process + core for core in range(2)] for process in range(4)])
    assert _in_copies(cores, 4, 2).tolist() == [[[[0], [10]], [[1], [11]]], [[[20], [30]], [[21], [31]]]]
    assert _in_copies(cores, 4, 4).tolist() == [[[[0, 1]]], [[[10, 11]]], [[[20, 21]]], [[[30, 31]]]]


def test_more_cores_than_there_are_are_refused_and_so_is_a_model_axis_that_does_not_divide_them() -> None:
    with expect_error(ValueError):
        mesh_of_cores(99)
    with expect_error(ValueError):
        mesh_of_cores(1, model=2)
    with expect_error(ValueError):
        mesh_of_cores(1, replica=2)
