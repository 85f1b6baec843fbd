"""One undisturbed run of the tiny Tootsie, shared by all tests here; each that changes something has a copy."""

import argparse
import dataclasses
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marin_dag.graph import Graph
from tests.end_to_end.driver import Driver, Ended, committed
from tests.end_to_end.tiny_texts import write_texts
from tests.end_to_end.tiny_tootsie import build

SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_IN_BYTES = 2**30


@dataclasses.dataclass(frozen=True)
class Reference:
    """What a run that nobody disturbs says and commits."""

    prefix: Path
    ended: Ended
    committed: dict[str, Any]


@pytest.fixture(scope="session")
def ground() -> Iterator[Path]:
    """Raw files; in memory where the machine has enough of it, since a flush to disk proves nothing."""
    has_room = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > SHARED_MEMORY_IN_BYTES
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY if has_room else None) as folder:
        write_texts(Path(folder, "texts"))
        yield Path(folder)


@pytest.fixture(scope="session")
def graph(ground: Path) -> Graph:
    """The graph as this process plans it."""
    return Graph(build(argparse.Namespace(texts=str(ground / "texts"))))


@pytest.fixture(scope="session")
def reference(ground: Path) -> Reference:
    """The whole run, in one process, from an empty prefix."""
    prefix = ground / "undisturbed"
    ended = Driver(ground, prefix)()
    assert ended.code == 0, ended.output + ended.errors
    return Reference(prefix, ended, committed(prefix))


@pytest.fixture
def empty(ground: Path, tmp_path: Path) -> Iterator[Driver]:
    """Drivers on a prefix that nobody has used."""
    with tempfile.TemporaryDirectory(dir=ground) as folder:
        yield Driver(ground, Path(folder, "runs"))


@pytest.fixture
def finished(ground: Path, reference: Reference) -> Iterator[Driver]:
    """Drivers on a copy of the finished run."""
    with tempfile.TemporaryDirectory(dir=ground) as folder:
        shutil.copytree(reference.prefix, Path(folder, "runs"))
        yield Driver(ground, Path(folder, "runs"))
