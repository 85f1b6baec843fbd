"""SIGKILL in a child, then the same run again: the committed bytes are those of an undisturbed run."""

import itertools
import multiprocessing
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.training.temporary import TemporaryCheckpoints
from tests.runtime.training import small_run

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["jax", "equinox", "tensorstore", "pyarrow.parquet", "runtime.training.loop"])


def in_child(target: Callable, *arguments: object) -> int | None:
    child = FORKSERVER.Process(target=target, args=arguments)
    child.start()
    child.join()
    return child.exitcode


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert in_child(small_run.count_writes, folder) == 0
    return folder


def assert_recovers(folder: Path, undisturbed: Path) -> None:
    was_committed = bool(small_run.records(folder))
    small_run.run(folder, lease_epoch=2)
    assert small_run.committed_bytes(folder) == small_run.committed_bytes(undisturbed)
    assert len(small_run.committed_bytes(undisturbed)) == 16
    assert was_committed or not list((folder / "work").iterdir()), "temporary checkpoints outlived the milestone"


def telling_writes(names: list[str]) -> list[int]:
    """Return the indices of the writes to kill before: the first of a row of one kind, and the last of a long row."""
    rows = [list(row) for _, row in itertools.groupby(range(len(names)), names.__getitem__)]
    return sorted({index for row in rows for index in (row[0], row[-1] if len(row) > 2 else row[0])})


def test_killed_before_any_write_the_next_run_commits_the_same_bytes(tmp_path, undisturbed):
    """Each kind of write and deletion, before and after each other kind."""
    names = (undisturbed / "writes").read_text().split()
    assert len(names) > 40 and {"start_write", "write_chunk", "delete_below"} <= set(names)
    writes = telling_writes(names)
    assert len(writes) > 10
    for write in writes:
        folder = tmp_path / str(write)
        assert in_child(small_run.run_and_die_before_write, folder, write) == -signal.SIGKILL
        assert_recovers(folder, undisturbed)


def test_a_good_checkpoint_survives_kills_around_the_end_of_a_phase(tmp_path):
    """After the mark the predecessor goes, the milestone comes, and the other temporary checkpoints go."""
    assert in_child(small_run.count_writes, tmp_path / "counted", 3) == 0
    num_writes = len((tmp_path / "counted" / "writes").read_text().split())
    assert newest_certified(tmp_path / "counted") == 8
    small_run.run(tmp_path / "published", lease_epoch=1, publish_every_steps=4)
    published = small_run.committed_bytes(tmp_path / "published")
    for write in range(num_writes - 30, num_writes, 10):
        folder = tmp_path / str(write)
        assert in_child(small_run.run_and_die_before_write, folder, write, 3) == -signal.SIGKILL
        at_the_kill = newest_certified(folder)
        small_run.run(folder, lease_epoch=2)
        step = newest_certified(folder)
        assert step in (at_the_kill, 8)
        small_run.run(folder, step, lease_epoch=3)
        assert sorted(small_run.records(folder)) == [step, 12]
        assert small_run.committed_bytes(folder).items() <= published.items()


def newest_certified(folder: Path) -> int:
    return [found.step for found in TemporaryCheckpoints(str(folder / "work"), 3).all() if found.is_good][-1]


@pytest.mark.parametrize("step", [1, 5, 11])
def test_killed_before_any_step_the_next_run_commits_the_same_bytes(tmp_path, undisturbed, step):
    assert in_child(small_run.run_and_die_at_step, tmp_path, step) == -signal.SIGKILL
    assert_recovers(tmp_path, undisturbed)
