"""Fixtures of the engine's tests: a store of each kind, below a fresh prefix, and a backend of each kind."""

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from marin_dag.run.local.backend import LocalBackend
from marin_dag.run.ray.backend import RayBackend
from marin_dag.run.task import Backend
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store
from tests.marin_dag.workbench import MODULE, Workbench


@pytest.fixture(params=["local", "gcs"])
def prefix(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An unused prefix on a store of each kind."""
    if request.param == "local":
        return str(tmp_path / "runs")
    return f"gs://{request.getfixturevalue('gcs_bucket')}/{uuid.uuid4().hex}"


@pytest.fixture(params=["local", "gcs", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store of each kind there is."""
    match request.param:
        case "local":
            return open_store(str(tmp_path / "runs"))
        case "gcs":
            return open_store(f"gs://{request.getfixturevalue('gcs_bucket')}/{uuid.uuid4().hex}")
    return open_store(f"s3://{request.getfixturevalue('s3_bucket')}/{uuid.uuid4().hex}")


@pytest.fixture(params=["in_process", "ray"])
def backend(request: pytest.FixtureRequest) -> Backend:
    """A backend of each kind; those on Ray share one cluster."""
    if request.param == "in_process":
        return LocalBackend()
    request.getfixturevalue("ray_cluster")
    return RayBackend()


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Workbench]:
    """A recipe that the test may edit, and its command line."""
    yield Workbench(tmp_path, capsys)
    sys.modules.pop(MODULE, None)
