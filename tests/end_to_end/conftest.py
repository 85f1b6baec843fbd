"""An undisturbed run of the tiny Tootsie, shared by all tests and processes. A test that changes it has a copy."""

import argparse
import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marin_dag.graph.graph import Graph
from tests.conftest import SHARED_BY_WORKERS
from tests.end_to_end.driver import Driver, Ended, committed
from tests.end_to_end.tiny_texts import write_texts
from tests.end_to_end.tiny_tootsie import build


@dataclasses.dataclass(frozen=True)
class Reference:
    """Output and commits of an undisturbed run."""

    prefix: Path
    ended: Ended
    committed: dict[str, Any]


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Exclude the other processes of the suite."""
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def ground() -> Path:
    """Raw files."""
    folder = Path(os.environ[SHARED_BY_WORKERS], "tiny_tootsie")
    folder.mkdir(exist_ok=True)
    with one_at_a_time(folder):
        if not (folder / "texts").exists():
            write_texts(folder / "texts")
    return folder


@pytest.fixture(scope="session")
def graph(ground: Path) -> Graph:
    """Return the graph as this process plans it."""
    return Graph(build(argparse.Namespace(texts=str(ground / "texts"))))


@pytest.fixture(scope="session")
def reference(ground: Path) -> Reference:
    """Return the whole run, in one process, from an empty prefix."""
    prefix, saved = ground / "undisturbed", ground / "undisturbed.json"
    with one_at_a_time(ground):
        if not saved.exists():
            saved.write_text(json.dumps(dataclasses.asdict(Driver(ground, prefix)())))
    ended = Ended(**json.loads(saved.read_text()))
    assert ended.code == 0, ended.output + ended.errors
    return Reference(prefix, ended, committed(prefix))


@pytest.fixture
def empty(ground: Path, tmp_path: Path) -> Iterator[Driver]:
    """Return drivers on a new prefix."""
    with tempfile.TemporaryDirectory(dir=ground) as folder:
        yield Driver(ground, Path(folder, "runs"))


@pytest.fixture
def finished(ground: Path, reference: Reference) -> Iterator[Driver]:
    """Return drivers on a copy of the finished run."""
    with tempfile.TemporaryDirectory(dir=ground) as folder:
        shutil.copytree(reference.prefix, Path(folder, "runs"))
        yield Driver(ground, Path(folder, "runs"))
