"""A cluster of several nodes, shared by the tests of this folder that need its dashboard."""

from collections.abc import Iterator

import pytest

from tests.ray_nodes import RayNodes


@pytest.fixture(scope="package")
def cluster() -> Iterator[RayNodes]:
    """Yield a head without CPUs and two nodes of two, which outlive the drivers."""
    with RayNodes({"num_cpus": 2}, {"num_cpus": 2}) as cluster:
        yield cluster
