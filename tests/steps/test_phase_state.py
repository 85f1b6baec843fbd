"""The state in which an attempt begins: the newest complete one, the same on every host."""

import errno
import pickle
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from marin_dag.graph.context import StepStopped
from marin_dag.ledger.damage import DamagedInputError
from runtime.optim.skip_rule import SkipRule
from runtime.optim.skipping import empty_history
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.tracking.events import EventLog
from runtime.training.checkpoint_files import ChunkedArray
from runtime.training.checkpoint_reader import TornCheckpointError
from runtime.training.temporary import Temporary, TemporaryCheckpoints
from steps.phase_config import TrainPhaseConfig
from steps.phase_state import first_state, newest_state, own_state
from tests.catalogue import expect_error
from tests.steps.phase_runs import MODEL, Attempt, Trajectory, a_phase, cache_of

pytestmark = pytest.mark.usefixtures("use_devices")


@pytest.fixture(scope="module")
def phase(tmp_path_factory: pytest.TempPathFactory) -> TrainPhaseConfig:
    """Return a phase with a temporary checkpoint every two updates."""
    return a_phase(cache_of(tmp_path_factory.mktemp("tokenize"), "web", last_id=8), checkpoint_every_steps=2)


def damage_a_chunk(folder: str) -> None:
    min(Path(folder, "checkpoint/arrays").glob("*mu.*/c*")).write_bytes(b"")


def test_only_a_torn_temporary_checkpoint_may_be_deleted(tmp_path, phase):
    trajectory = Trajectory(tmp_path, "e" * 64)
    with pytest.raises(StepStopped):
        trajectory.run(phase, stop_after=5)
    temporary = TemporaryCheckpoints(str(tmp_path / "work/temporary"), 9).newest(8)
    assert temporary is not None and temporary.step == 5
    damage_a_chunk(temporary.folder)
    with expect_error(TornCheckpointError) as reported:
        trajectory.run(phase)
    Path(re.findall(r"delete (\S+)", str(reported.value))[-1]).unlink()
    trajectory.run(phase)
    assert {figures["resumed_at"] for figures in trajectory.reported} == {4}
    damage_a_chunk(trajectory.records[8][0])
    with expect_error(TornCheckpointError):
        trajectory.run(phase.model_copy(update={"until_step": 9}))


def test_a_temporary_checkpoint_on_a_lost_disk_block_names_the_file_to_delete(tmp_path, phase, monkeypatch):
    trajectory = Trajectory(tmp_path, "e" * 64)
    with pytest.raises(StepStopped):
        trajectory.run(phase, stop_after=5)

    class Unreadable:
        def result(self) -> None:
            raise ValueError("UNKNOWN: Error reading local file [os_error_code='5']")

    monkeypatch.setattr(ChunkedArray, "read_chunk", lambda *_: Unreadable())
    with expect_error(OSError) as reported:
        trajectory.run(phase)
    assert reported.value.errno == errno.EIO


@pytest.mark.parametrize("is_of_own_trajectory", [False, True])
def test_a_torn_checkpoint_of_the_phase_before_names_the_step_to_rerun(tmp_path, phase, is_of_own_trajectory):
    before = Trajectory(tmp_path / "before", "e" * 64)
    before.run(phase.model_copy(update={"until_step": 4}))
    damage_a_chunk(before.records[4][0])
    following = before if is_of_own_trajectory else Trajectory(tmp_path / "following", "f" * 64)
    with expect_error(DamagedInputError) as reported:
        following.run(phase.model_copy(update={"start": before.at(4), "until_step": 6}))
    assert reported.value.steps_to_force == ("a phase",)


def test_all_hosts_resume_what_host_0_finds(tmp_path, phase, monkeypatch):
    trajectory = Trajectory(tmp_path, "e" * 64)
    with pytest.raises(StepStopped):
        trajectory.run(phase, stop_after=5)
    found = []

    def of_first_host(*words: int) -> tuple[int, ...]:
        found.append(words)
        return (4, 1) if len(found) == 1 else words

    monkeypatch.setattr("steps.phase_state.of_first_host", of_first_host)
    trajectory.run(phase)
    assert found[0] == (5, 1) and {figures["resumed_at"] for figures in trajectory.reported} == {4}


def test_a_wanted_state_is_published_beside_a_newer_one(tmp_path, phase, monkeypatch):
    trajectory = Trajectory(tmp_path, "e" * 64)
    with pytest.raises(StepStopped):
        trajectory.run(phase, stop_after=5)
    found = []

    def newest(temporary: TemporaryCheckpoints, until_step: int) -> Temporary:
        """The checkpoint of step 5, by an attempt that has lost its lease, is complete at the second look."""
        found.append({each.step: each for each in temporary.all()}[4 if not found else 5])
        return found[-1]

    monkeypatch.setattr(TemporaryCheckpoints, "newest", newest)
    trajectory.wanted_milestones = (4,)
    trajectory.run(phase)
    assert [*trajectory.records] == [4, 8]


def test_a_skip_history_continues_over_a_cut_and_restarts_in_the_next_phase(tmp_path):
    rule = SkipRule(window_steps=4, sigma=0.1, warmup_steps=3, max_consecutive=9)  # so tight that it does skip
    hard = cache_of(tmp_path / "hard", "web", last_id=MODEL.vocab_size)
    before = a_phase(hard, until_step=9, skip=rule)
    run = Trajectory(tmp_path, "e" * 64)
    num_skipped = run.run(before).num_skipped
    assert 0 < num_skipped < 9
    mesh = make_mesh(MeshShape(), jax.devices())

    config = before.model_copy(update={"start": run.at(9), "until_step": 12})
    temporary = TemporaryCheckpoints(str(tmp_path / "work/temporary"), 9)
    with EventLog(str(tmp_path / "events.jsonl")) as events:
        published = Attempt(run, None).milestones()
        resumed = own_state(config, newest_state(config, published, temporary), published, mesh, temporary, events)
        started = [
            first_state(config.model_copy(update={"restore": restore}), mesh, events)
            for restore in ("everything", "everything_but_optimizer", "weights")
        ]
    assert resumed is not None
    kept = resumed.run.state.history
    assert kept is not None
    assert int(kept.num_good) == 9 - num_skipped
    figures = [run.metrics(9)[row] for row in range(9)]
    good = [row.loss for row in figures if not row.is_skipped]
    ring = [kept.losses[index % 4].item() for index in range(len(good))]
    assert ring[-4:] == good[-4:]
    for first_step in started:
        assert jax.tree.all(jax.tree.map(np.array_equal, first_step.run.state.history, empty_history(4)))


def test_a_phase_counts_only_its_own_skipped_steps(tmp_path):
    rule = SkipRule(window_steps=4, sigma=0.1, warmup_steps=3, max_consecutive=9)
    hard = cache_of(tmp_path / "hard", "web", last_id=MODEL.vocab_size)
    first, second = Trajectory(tmp_path / "first", "e" * 64), Trajectory(tmp_path / "second", "f" * 64)
    before = a_phase(hard, until_step=9, skip=rule)
    assert first.run(before).num_skipped > 0
    start = first.at(9)
    assert second.run(before.model_copy(update={"start": start, "until_step": 11, "skip": None})).num_skipped == 0


def test_a_cut_phase_counts_the_skipped_steps_of_both_parts(tmp_path, caplog):
    rule = SkipRule(window_steps=4, sigma=0.1, warmup_steps=3, max_consecutive=9)
    hard = cache_of(tmp_path / "hard", "web", last_id=MODEL.vocab_size)
    first = a_phase(hard, until_step=9, skip=rule)
    uncut, cut = Trajectory(tmp_path / "uncut", "e" * 64), Trajectory(tmp_path / "cut", "e" * 64)
    before_the_cut = cut.run(first).num_skipped
    for at, until_step in ((9, 10), (10, 11)):
        result = cut.run(first.model_copy(update={"start": cut.at(at), "until_step": until_step}))
    assert result == uncut.run(first.model_copy(update={"until_step": 11}))
    assert 0 < before_the_cut <= result.num_skipped
    assert {record.module for record in caplog.records} <= {"phase_training"}  # the history continues: no warning of it


def test_a_torn_checkpoint_error_survives_pickling():
    error = TornCheckpointError("leaf mu is damaged", "delete it.")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "leaf mu is damaged; delete it."
