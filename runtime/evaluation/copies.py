"""Copies of an evaluated model: the layout with as many as fit. No JAX, for plans."""

import contextlib
import math

from runtime.parallel.mesh_shape import Machines, MeshLayout

PARAMETERS_SHARE = 0.6
"""Largest share of a device's memory for parameters; the rest is for activations and the cache."""


def layout_with_copies(num_bytes: int, machines: Machines, memory_in_bytes: int | None) -> MeshLayout:
    """Return the layout with the most copies of the parameters in each slice; with one where none fits.

    Args:
        num_bytes: size of the parameters as they are stored.
        machines: all devices.
        memory_in_bytes: memory of a device; None for CPUs, which hold any model.
    """
    by_slice = math.prod(machines.sizes)
    for sharers in range(1, by_slice):
        if by_slice % sharers == 0 and num_bytes / sharers <= PARAMETERS_SHARE * (memory_in_bytes or math.inf):
            with contextlib.suppress(ValueError):  # no axis of the torus has such parts
                return machines.layout_of_copies(sharers)
    return machines.layout_of_copies(by_slice)
