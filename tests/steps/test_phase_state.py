"""Where an attempt at a phase begins: with what is whole, and every host with the same."""

import re
from pathlib import Path

import pytest

from marin_dag.context import StepStopped
from runtime.training.checkpoint_reader import TornCheckpointError
from runtime.training.temporary import TemporaryCheckpoints
from steps.train_phase import TrainPhaseConfig
from tests.steps.phase_runs import Trajectory, a_phase, cache_of

pytestmark = pytest.mark.usefixtures("use_devices")


@pytest.fixture(scope="module")
def phase(tmp_path_factory: pytest.TempPathFactory) -> TrainPhaseConfig:
    """A temporary checkpoint every two updates."""
    return a_phase(cache_of(tmp_path_factory.mktemp("tokenize"), "web", last_id=8), checkpoint_every_steps=2)


def damage_a_chunk(folder: str) -> None:
    next(Path(folder, "checkpoint/arrays").glob("mu.*/c*")).write_bytes(b"")


def test_of_what_is_torn_only_a_temporary_checkpoint_may_be_deleted_and_then_the_one_before_is_taken(tmp_path, phase):
    trajectory = Trajectory(tmp_path, "e" * 64)
    with pytest.raises(StepStopped):
        trajectory.run(phase, stop_after=5)
    temporary = TemporaryCheckpoints(str(tmp_path / "work/temporary"), 9).newest(8)
    assert temporary is not None and temporary.step == 5
    damage_a_chunk(temporary.folder)
    with pytest.raises(
        TornCheckpointError, match=r"Or delete (\S+/manifest\.json) to go on from the one before"
    ) as told:
        trajectory.run(phase)
    Path(re.findall(r"delete (\S+)", str(told.value))[-1]).unlink()
    trajectory.run(phase)
    assert {figures["resumed_at"] for figures in trajectory.told} == {4}
    damage_a_chunk(trajectory.records[8][0])
    with pytest.raises(
        TornCheckpointError,
        match=r"again with --force, restore the file from a copy, or take another milestone\.$",
    ):
        trajectory.run(phase.model_copy(update={"until_step": 9}))


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
    assert found[0] == (5, 1) and {figures["resumed_at"] for figures in trajectory.told} == {4}
