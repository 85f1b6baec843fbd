"""Segments: a run whose checkpoints share older rows of their tables commits the bytes of one that writes all."""

import itertools
import shutil
from pathlib import Path

import jax
import pytest

from runtime.report.readings import read_draws
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


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """The first checkpoint becomes good after a step, and no other."""
    monkeypatch.setattr(column, "BLOCK_ROWS", BLOCK)
    monkeypatch.setattr(saving, "GOOD_STEPS", 1)


def run(folder: Path, until_step: int, *, lease_epoch: int = 1, step_function=small_run.train_step) -> None:
    small_run.run(
        folder, until_step, lease_epoch=lease_epoch, checkpoint_every_steps=1, keep_good_every_steps=1_000,
        step_function=step_function,
    )  # fmt: skip


def killed(folder: Path, step: int) -> list:
    """Return the complete checkpoints that a run leaves which dies as it takes the step after `step`."""

    def step_function(*arguments):
        if int(arguments[0].optimizer.count) == step:
            raise KilledError
        return small_run.train_step(*arguments)

    with pytest.raises(KilledError):
        run(folder, STEPS, step_function=step_function)
    return [found for found in TemporaryCheckpoints(str(folder / "work"), 1).all() if found.is_complete]


def segments_of(folder: Path) -> dict[str, int]:
    """Return the segments and when each was written."""
    return {path.name: path.stat().st_mtime_ns for path in sorted((folder / "work" / "segments").iterdir())}


def resume(folder: str) -> run_state.RunState:
    return run_state.resumed(folder, small_run.state_like, averages=("averaged",))


def test_a_run_that_resumes_from_blocks_commits_the_bytes_of_an_undisturbed_one(tmp_path):
    newest = killed(tmp_path / "killed", 8)[-1]
    parts = [key for key in Reader(f"{newest.folder}/checkpoint").manifest.files if ".parquet/" in key]
    assert (len([key for key in parts if key.startswith(METRICS)]), len(parts)) == (3, 9)
    run(tmp_path / "killed", STEPS, lease_epoch=2)
    run(tmp_path / "undisturbed", STEPS)
    assert small_run.committed_bytes(tmp_path / "killed") == small_run.committed_bytes(tmp_path / "undisturbed")
    assert not (tmp_path / "killed" / "work" / "segments").exists(), "segments outlived the run"


def test_each_block_is_written_once(tmp_path, monkeypatch):
    written = []
    link = run_state.Segments.link

    def counted(self, tables, files):
        entries = link(self, tables, files)
        written.append(segments_of(tmp_path) if entries else {})
        return entries

    monkeypatch.setattr(run_state.Segments, "link", counted)
    killed(tmp_path, 10)
    assert len(written) > 5
    assert all(earlier.items() <= later.items() for earlier, later in itertools.pairwise(written))
    assert len(written[-1]) == 9 // BLOCK + 2 * 9 // BLOCK


def test_every_checkpoint_is_whole_without_the_segments(tmp_path):
    run(tmp_path / "done", STEPS)
    milestones = [(step, str(folder)) for step, folder in small_run.records(tmp_path / "done").items()]
    temporary = [(found.step, found.folder) for found in killed(tmp_path / "killed", 9)]
    shutil.rmtree(tmp_path / "killed" / "work" / "segments")
    for step, folder in (*milestones, *temporary):
        path = f"{folder}/checkpoint"
        metrics = MetricsTable.from_parquet(*checkpoint.read_beside(path, METRICS))
        losses = SourceLossesTable.from_parquet(*checkpoint.read_beside(path, SOURCE_LOSSES))
        assert [metrics[index].step for index in range(len(metrics))] == list(range(1, step + 1))
        rows = [losses[index] for index in range(len(losses))]
        assert [row.step for row in rows] == [step for step in range(1, step + 1) for _ in range(2)]
        drawn = read_draws(f"{folder}/{SOURCE_LOSSES}")["num_sequences"].to_pylist()
        assert sum(drawn) == sum(row.num_sequences for row in rows), "a report reads every part"
        assert len(resume(folder).metrics) == step


def test_a_host_that_writes_no_table_holds_the_losses_of_the_newest_steps(tmp_path, monkeypatch):
    folder = killed(tmp_path, 8)[-1].folder
    whole = resume(folder).source_losses
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    newest = resume(folder).source_losses
    newest.forget_blocks()
    assert len(newest) < 2 * BLOCK < len(whole) and newest.last_step == whole.last_step
    assert newest.seen(whole.last_step) == whole.seen(whole.last_step)


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_damaged_block_is_refused_and_named(tmp_path, damage):
    newest = killed(tmp_path, 9)[-1]
    path = Path(newest.folder) / METRICS / "000001.parquet"
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    with expect_error(TornCheckpointError):
        resume(newest.folder)
