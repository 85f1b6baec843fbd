"""TPU slices by their public names: hosts, chips and topology of each.

A name counts TensorCores on v4 and v5p (two per chip), and chips on v5e and v6e. Each size has the topology that Google
Cloud gives by default. Slices above v4-2048 are absent: Ray cannot reserve them.
"""

from typing import NamedTuple

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
    product = 1
    for side in topology.split("x"):
        product *= int(side)
    return product
