"""Device mesh: named axes along the machine's own wires, each of which may be 1.

replica: whole copies of the parameters, one per slice unless a phase asks for more (`mesh_shape`). data_x, data_y,
data_z: parameters, moments and batch are split over all three (FSDP); on a TPU they are the axes of its torus, because
a collective over one physical axis runs on the ring of that axis, and over a flattened torus it is slower. model:
splits heads and columns of the products (tensor parallelism). context: splits each row's tokens. Both also split the
parameters, and are neighbouring devices.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec

from runtime.kernels.kernel_shape import Devices
from runtime.parallel.mesh_shape import Machines, MeshShape

DATA_AXES = ("data_x", "data_y", "data_z")
AXES = ("replica", *DATA_AXES, "model", "context")
BATCH_AXES = ("replica", *DATA_AXES)
TOKEN_AXES = PartitionSpec(BATCH_AXES, "context")
"""Placement of [batch, sequence]."""
COPY_AXES = (*DATA_AXES, "context", "model")
"""Axes that split one copy of the parameters."""

Torus = tuple[int, int, int]


def make_mesh(shape: MeshShape, devices: Sequence[jax.Device] | None = None, *, torus: Torus | None = None) -> Mesh:
    """Return a mesh over `devices` (by default all of this run), as many as `shape` has.

    Args:
        torus: Sizes of the three data axes. By default those of the machine where its devices have coordinates
            (TPU), and otherwise one axis.
    """
    devices = jax.devices() if devices is None else list(devices)
    for axis, size in zip(MeshShape._fields, shape, strict=True):
        if size < 1:
            raise ValueError(f"MeshShape.{axis} is {size}; use at least 1.")
    if math.prod(shape) != len(devices):
        raise ValueError(
            f"MeshShape {tuple(shape)} needs {math.prod(shape)} devices and there are {len(devices)}; "
            f"pass as many, or MeshShape(data={len(devices)})."
        )
    placed = np.array(devices)
    if shape.replica == len(devices):  # whole copies, which need no ring
        torus = (1, 1, 1)
    if torus is None:
        placed, torus = _on_the_torus(devices, shape)
    if math.prod(torus) != shape.data:
        raise ValueError(f"torus {torus} holds {math.prod(torus)} devices and MeshShape.data is {shape.data}.")
    placed = placed.reshape(shape.replica, *torus, shape.model, shape.context)
    return Mesh(placed, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def first_data_axis(mesh: Mesh) -> str:
    """Return the first axis that gradients are scattered along."""
    return next((axis for axis in DATA_AXES if mesh.shape[axis] > 1), DATA_AXES[0])


def whole_mesh(*, num_slices: int = 1, replica: int = 1, model: int = 1, context: int = 1) -> Mesh:
    """Return a mesh over all devices of this run: `replica` copies per slice; data gets the rest.

    Without slices the copies lie over the hosts, since gradients are summed over copies once an update.
    """
    machines, devices = present_machines(num_slices)
    return make_mesh(machines.layout(replica=replica, model=model, context=context).shape, devices)


def present_machines(num_slices: int = 1) -> tuple[Machines, list[jax.Device]]:
    """Return the machines of this run, and all their devices."""
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    if devices[0].platform == "tpu":
        return Machines(_places(devices)[1], num_slices), devices
    num_hosts = len({device.process_index for device in devices}) if num_slices == 1 else 1
    return Machines((len(devices) // num_slices,), num_slices, num_hosts), devices


def mesh_of_cores(num_cores: int, *, replica: int = 1, model: int = 1, context: int = 1) -> Mesh:
    """Return a mesh over the first `num_cores` CPU devices of each process; `hosts.open_cores` makes a core a device.

    Cores of one process share a memory, so each computes with whole parameters (the replica axis). Processes split the
    parameters (data), within each of `replica` groups.
    """
    by_process: dict[int, list[jax.Device]] = {}
    for device in jax.devices():
        by_process.setdefault(device.process_index, []).append(device)
    fewest = min(by_process.values(), key=len)
    if len(fewest) < num_cores:
        raise ValueError(
            f"the step asks for {num_cores} cores, and this process has {len(fewest)} x {fewest[0].device_kind}; ask "
            "for fewer, or set JAX_PLATFORMS=cpu."
        )
    cores = np.array([devices[:num_cores] for _, devices in sorted(by_process.items())])
    machines = Machines((cores.size,), num_hosts=len(cores), cores_hold_copies=True)
    shape = machines.layout(replica=replica, model=model, context=context).shape
    return make_mesh(shape, list(_in_copies(cores, shape.replica, replica).flat))


def data_size(mesh: Mesh) -> int:
    return math.prod(mesh.shape[axis] for axis in DATA_AXES)


def copy_size(mesh: Mesh) -> int:
    """Return the number of devices that share one copy of the parameters."""
    return math.prod(mesh.shape[axis] for axis in COPY_AXES)


def num_batch_parts(mesh: Mesh) -> int:
    """Return the number of devices that the batch is split over."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def platform(mesh: Mesh) -> str:
    """Return "cpu", "gpu" or "tpu", for devices that are present or only compiled for."""
    name = str(mesh.devices.flat[0].platform)
    return "gpu" if name in ("cuda", "rocm") else name


def device_kind(mesh: Mesh) -> str:
    """Return JAX's name of the mesh's devices, such as "TPU v4" or "NVIDIA H200"."""
    return str(mesh.devices.flat[0].device_kind)


def devices_of(mesh: Mesh) -> Devices:
    """Return the figures of the mesh that a choice of kernels depends on."""
    return Devices(
        platform=platform(mesh),
        kind=device_kind(mesh),
        num_devices=mesh.size,
        context_parallel=mesh.shape["context"],
    )


def _in_copies(cores: np.ndarray, num_copies: int, num_groups: int) -> np.ndarray:
    """Order [process, core] as [group of processes, copy, process of the group, part]."""
    num_processes = len(cores)
    return cores.reshape(num_groups, num_processes // num_groups, num_copies // num_groups, -1).swapaxes(1, 2)


def _on_the_torus(devices: Sequence[Any], shape: MeshShape) -> tuple[np.ndarray, Torus]:
    """Return devices in the order of (replica, x, y, z, model, context), slice by slice, and the data axes' sizes."""
    if devices[0].platform != "tpu" or len(devices) == 1:
        return np.array(devices), (shape.data, 1, 1)
    places, sizes = _places(devices)
    num_slices = len({place[0] for place in places.values()})
    within, rest = divmod(shape.replica, num_slices)
    if rest or num_slices * math.prod(sizes) != len(devices):
        raise ValueError(
            f"MeshShape has replica={shape.replica}, and the {len(devices)} devices are {num_slices} slices of "
            f"{'x'.join(map(str, sizes))} chips; each slice has the same number of copies: "
            f"MeshShape(replica={num_slices}, data={math.prod(sizes)}), or parts of data for the others."
        )
    layout = Machines(sizes, num_slices).layout(replica=within, model=shape.model, context=shape.context)
    inner = shape.model * shape.context
    # Along each axis of the torus: (replica, data, model and context); then all replicas first, and so on.
    parts = [
        part
        for axis, size in enumerate(layout.data)
        for part in (within if axis == layout.replica_cut else 1, size, inner if axis == layout.inner_cut else 1)
    ]
    placed = np.array(sorted(devices, key=places.__getitem__)).reshape(num_slices, *parts)
    return placed.transpose(0, 1, 4, 7, 2, 5, 8, 3, 6, 9), (layout.data[0], layout.data[1], layout.data[2])


def _places(devices: Sequence[Any]) -> tuple[dict[Any, tuple[int, ...]], tuple[int, ...]]:
    """Return slice and coordinates of each chip, and the sizes of a slice's torus."""
    places = {device: (getattr(device, "slice_index", None) or 0, *device.coords) for device in devices}
    if len(set(places.values())) != len(devices):
        raise ValueError(
            f"{len(devices)} devices share {len(set(places.values()))} chips: two cores per chip count as two devices. "
            "Run v4 with megacore, where a chip is one device."
        )
    _, *sizes = (len(set(positions)) for positions in zip(*places.values(), strict=True))
    return places, tuple(sizes)
