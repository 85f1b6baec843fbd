"""Pins down: every row of a batch lies on one host, and each host's rows make the global batch together."""

import jax
import numpy as np
import pytest

from runtime.parallel.hosts import host_rows
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape


@pytest.mark.parametrize(
    "hosts", [[[0, 1, 2, 3, 4, 5, 6, 7]], [[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 3, 5], [1, 2, 4, 6, 7]]]
)
@pytest.mark.parametrize("shape", [MeshShape(data=8), MeshShape(replica=2, data=4)])
def test_hosts_share_the_rows_between_them(hosts, shape):
    devices = jax.devices()
    mesh = make_mesh(shape, devices)
    rows = [host_rows(mesh, 16, devices=[devices[index] for index in host]).rows.tolist() for host in hosts]
    assert sorted(row for host in rows for row in host) == list(range(16))
    assert [len(host) for host in rows] == [2 * len(host) for host in hosts]


def test_the_rows_of_a_host_are_placed_where_the_global_batch_has_them():
    mesh = make_mesh(MeshShape(replica=2, data=4), jax.devices())
    batch = np.arange(16 * 3, dtype=np.int32).reshape(16, 3)
    rows = host_rows(mesh, 16)
    placed = rows.placed(batch[rows.rows])
    assert np.array_equal(placed, batch) and placed.sharding.is_equivalent_to(rows.sharding, 2)
