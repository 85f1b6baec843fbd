"""Host rows: the rows of a global batch on a host, and the batch as one array made of every host's rows."""

from collections.abc import Collection
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int32, Int64

from runtime.parallel.mesh import BATCH_AXES


class HostRows(NamedTuple):
    """Rows of one host, ascending."""

    rows: Int64[np.ndarray, "rows"]
    sharding: NamedSharding
    global_batch_size: int

    def placed(self, host_rows: Int32[np.ndarray, "rows sequence"]) -> jax.Array:
        """Return the global batch, from this host's own rows; every host must call this."""
        shape = (self.global_batch_size, *host_rows.shape[1:])

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None
            first, last, _ = index[0].indices(self.global_batch_size)
            begin = int(np.searchsorted(self.rows, first))
            return host_rows[begin : begin + last - first]

        return jax.make_array_from_callback(shape, self.sharding, part)


def host_rows(mesh: Mesh, global_batch_size: int, *, devices: Collection[jax.Device] | None = None) -> HostRows:
    """Return the rows on `devices`, by default this process's own; they need not be contiguous."""
    sharding = NamedSharding(mesh, PartitionSpec(BATCH_AXES))
    own = frozenset(jax.local_devices() if devices is None else devices)
    is_own = np.zeros(global_batch_size, bool)
    for device, index in sharding.devices_indices_map((global_batch_size,)).items():
        if device in own:
            is_own[index] = True
    return HostRows(np.flatnonzero(is_own), sharding, global_batch_size)
