"""Host rows: which rows of a global batch a host holds, and the batch as one array made of every host's own rows."""

from collections.abc import Collection
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int32, Int64

from runtime.parallel.mesh import BATCH_AXES


class HostRows(NamedTuple):
    """Rows of one host; `rows` ascend."""

    rows: Int64[np.ndarray, "rows"]
    sharding: NamedSharding
    global_batch_size: int

    def placed(self, of_host: Int32[np.ndarray, "rows sequence"]) -> jax.Array:
        """The global batch, of which this host gives `of_host`, its own rows; every host must ask."""
        shape = (self.global_batch_size, *of_host.shape[1:])

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None
            first, last, _ = index[0].indices(self.global_batch_size)
            begin = int(np.searchsorted(self.rows, first))
            return of_host[begin : begin + last - first]

        return jax.make_array_from_callback(shape, self.sharding, part)


def host_rows(mesh: Mesh, global_batch_size: int, *, devices: Collection[jax.Device] | None = None) -> HostRows:
    """The rows that lie on `devices`, this process's own by default.

    A mesh lays devices on the machine's wires, so that a host's rows need not be neighbours.
    """
    sharding = NamedSharding(mesh, PartitionSpec(BATCH_AXES))
    own = frozenset(jax.local_devices() if devices is None else devices)
    held = np.zeros(global_batch_size, bool)
    for device, index in sharding.devices_indices_map((global_batch_size,)).items():
        if device in own:
            held[index] = True
    return HostRows(np.flatnonzero(held), sharding, global_batch_size)
