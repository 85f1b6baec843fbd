"""Segments: a run whose checkpoints share older rows of their tables commits the bytes of one that writes all."""

import itertools
import shutil
from pathlib import Path

import pytest

from runtime.tables import column
from runtime.tracking.metrics import MetricsTable
from runtime.tracking.source_losses import SourceLossesTable
from runtime.training import checkpoint, run_state, saving
from runtime.training.checkpoint_reader import Reader, TornCheckpointError
from runtime.training.run_state import METRICS, SOURCE_LOSSES
from runtime.training.temporary import TemporaryCheckpoints
from tests.catalogue import expect_error
from tests.runtime.training import small_run

STEPS = 12
BLOCK = 3


class KilledError(Exception):
    pass


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    small_run.run(folder, STEPS, lease_epoch=1)
    return folder


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch, undisturbed):
    """The first checkpoint becomes good after a step, and no other."""
    monkeypatch.setattr(column, "BLOCK_ROWS", BLOCK)
    monkeypatch.setattr(saving, "GOOD_STEPS", 1)


def run(folder: Path, until_step: int, *, lease_epoch: int = 1) -> TemporaryCheckpoints:
    small_run.run(
        folder, until_step, lease_epoch=lease_epoch, checkpoint_every_steps=1, keep_good_every_steps=1_000,
        step_function=small_run.train_step,
    )  # fmt: skip
    return TemporaryCheckpoints(str(folder / "work"), lease_epoch)


def killed(folder: Path, step: int) -> list:
    """Return the complete checkpoints that a run leaves which dies as it takes the step after `step`."""

    def step_function(*arguments):
        if int(arguments[0].optimizer.count) == step:
            raise KilledError
        return small_run.train_step(*arguments)

    with pytest.raises(KilledError):
        small_run.run(
            folder, STEPS, lease_epoch=1, checkpoint_every_steps=1, keep_good_every_steps=1_000,
            step_function=step_function,
        )  # fmt: skip
    return [found for found in TemporaryCheckpoints(str(folder / "work"), 1).all() if found.is_complete]


def segments_of(folder: Path) -> dict[str, int]:
    """Return the segments and when each was written."""
    return {path.name: path.stat().st_mtime_ns for path in sorted((folder / "work" / "segments").iterdir())}


def test_a_run_that_resumes_from_segments_commits_the_bytes_of_an_undisturbed_one(tmp_path, undisturbed):
    newest = killed(tmp_path, 8)[-1]
    before = Reader(f"{newest.folder}/checkpoint").manifest
    assert {name: len(entries) for name, entries in before.segments.items()} == {METRICS: 2, SOURCE_LOSSES: 5}
    run(tmp_path, STEPS, lease_epoch=2)
    milestone = [key for key in small_run.committed_bytes(undisturbed) if key.startswith(f"{STEPS}/")]
    found = small_run.committed_bytes(tmp_path)
    assert {key: found[key] for key in milestone} == small_run.committed_bytes(undisturbed)
    assert not (tmp_path / "work" / "segments").exists(), "segments outlived the checkpoints that need them"


def test_each_block_is_written_once(tmp_path, monkeypatch):
    written = []
    write = run_state.Segments.write

    def counted(self, tables):
        entries = write(self, tables)
        written.append(segments_of(tmp_path))
        return entries

    monkeypatch.setattr(run_state.Segments, "write", counted)
    killed(tmp_path, 10)
    assert len(written) > 5
    assert all(earlier.items() <= later.items() for earlier, later in itertools.pairwise(written))
    assert len(written[-1]) == 9 // BLOCK + 2 * 9 // BLOCK


def test_every_table_beside_a_checkpoint_is_read_whole(tmp_path):
    for found in killed(tmp_path, 9):
        path = f"{found.folder}/checkpoint"
        metrics = MetricsTable.from_parquet(checkpoint.read_beside(path, METRICS))
        losses = SourceLossesTable.from_parquet(checkpoint.read_beside(path, SOURCE_LOSSES))
        assert [metrics[index].step for index in range(len(metrics))] == list(range(1, found.step + 1))
        assert [losses[index].step for index in range(len(losses))] == [
            step for step in range(1, found.step + 1) for _ in range(2)
        ]


def test_a_good_checkpoint_needs_no_segments(tmp_path):
    every = killed(tmp_path, 9)
    (good,) = [found for found in every if found.is_good]
    shutil.rmtree(tmp_path / "work" / "segments")
    like = small_run.state_like
    assert len(run_state.resumed(good.folder, like, averages=("averaged",)).metrics) == good.step
    newest = every[-1]
    temporary = TemporaryCheckpoints(str(tmp_path / "work"), 1)
    assert not temporary.mark_good(newest.step, good_steps=99), "it is nothing without them"


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_damaged_segment_is_refused_and_named(tmp_path, damage):
    newest = killed(tmp_path, 9)[-1]
    (path, *_) = sorted((tmp_path / "work" / "segments").iterdir())
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with expect_error(TornCheckpointError):
        run_state.resumed(newest.folder, small_run.state_like, averages=("averaged",))
