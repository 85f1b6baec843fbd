"""Resources that a step asks the cluster for. Never identity: the same step on other chips is the same step."""

import dataclasses
import math
from typing import NamedTuple

# Public names of TPU slices count TensorCores on v4 and v5p (two per chip), and chips on v5e and v6e. Each size has the
# topology that Google Cloud gives by default. Slices above v4-2048 are absent: Ray cannot reserve them.
CORES_PER_CHIP = {"v4": 2, "v5p": 2, "v5litepod": 1, "v6e": 1}
CHIPS_PER_HOST = 4
SINGLE_HOST_CHIPS = {"v4": 4, "v5p": 4, "v5litepod": 8, "v6e": 8}
"""The largest slice that is one machine; larger ones are made of machines with CHIPS_PER_HOST chips."""
_CUBES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16")
_SQUARES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
TOPOLOGIES = {
    "v4": _CUBES,
    "v5p": (*_CUBES, "8x16x16", "16x16x16", "16x16x24"),
    "v5litepod": _SQUARES,
    "v6e": _SQUARES,
}


@dataclasses.dataclass(frozen=True)
class Cpu:
    """Cores of each of `num_hosts` machines; `num_cpus=0` only schedules."""

    num_cpus: int
    num_hosts: int = 1

    def __post_init__(self) -> None:
        if self.num_cpus < 0:
            raise ValueError(f"Cpu.num_cpus is {self.num_cpus}; ask for 0 cores or more.")
        _check_hosts("Cpu", self.num_hosts)

    def __str__(self) -> str:
        return f"{_times(self.num_hosts)}{self.num_cpus} cpu"

    @property
    def num_devices(self) -> int:
        """Devices of each machine, for a step that computes on a mesh: a core is a device."""
        return max(1, self.num_cpus)


@dataclasses.dataclass(frozen=True)
class Gpu:
    """`count` accelerators of one kind, by Ray's name for it ("H200"), in each of `num_hosts` machines."""

    kind: str
    count: int
    num_hosts: int = 1

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ValueError(f"Gpu.count is {self.count}; ask for 1 or more, or use Cpu.")
        _check_hosts("Gpu", self.num_hosts)

    def __str__(self) -> str:
        return f"{_times(self.num_hosts)}{self.count} x {self.kind}"


@dataclasses.dataclass(frozen=True)
class Tpu:
    """Whole slices by their public name: `Tpu("v4-2048")`, `Tpu("v5litepod-256", num_slices=2)`."""

    slice: str
    num_slices: int = 1

    def __post_init__(self) -> None:
        slice_shape(self.slice)  # raises ValueError for an unknown name
        if self.num_slices < 1:
            raise ValueError(f"Tpu.num_slices is {self.num_slices}; ask for 1 or more.")

    def __str__(self) -> str:
        return f"{_times(self.num_slices)}{self.slice}"

    @property
    def num_hosts(self) -> int:
        """Machines of all slices together."""
        return self.num_slices * slice_shape(self.slice).num_hosts


Resources = Cpu | Gpu | Tpu


def is_gang(resources: Resources) -> bool:
    """Return whether the step runs as one process on each of several hosts; a slice counts even if it is one host."""
    return isinstance(resources, Tpu) or resources.num_hosts > 1


def _check_hosts(name: str, num_hosts: int) -> None:
    if num_hosts < 1:
        raise ValueError(f"{name}.num_hosts is {num_hosts}; ask for 1 or more.")


def _times(number: int) -> str:
    return "" if number == 1 else f"{number} x "


class SliceShape(NamedTuple):
    """Chips and hosts of a slice."""

    generation: str
    topology: str
    num_chips: int
    num_hosts: int
    chips_per_host: int


def slice_shape(name: str) -> SliceShape:
    """Return the shape of the slice called `name`; raise ValueError if there is none."""
    generation, _, size = name.rpartition("-")
    if generation not in TOPOLOGIES or not size.isdigit():
        raise ValueError(
            f"Tpu.slice is {name!r}; write a generation ({', '.join(TOPOLOGIES)}) and a size, such as 'v4-2048'."
        )
    cores = CORES_PER_CHIP[generation]
    by_size = {cores * _num_chips(topology): topology for topology in TOPOLOGIES[generation]}
    if int(size) not in by_size:
        sizes = ", ".join(f"{generation}-{known}" for known in by_size)
        raise ValueError(f"Tpu.slice is {name!r}; there is no slice of that size. Sizes: {sizes}.")
    topology = by_size[int(size)]
    num_chips = _num_chips(topology)
    chips_per_host = num_chips if num_chips <= SINGLE_HOST_CHIPS[generation] else CHIPS_PER_HOST
    return SliceShape(generation, topology, num_chips, num_chips // chips_per_host, chips_per_host)


def _num_chips(topology: str) -> int:
    return math.prod(map(int, topology.split("x")))
