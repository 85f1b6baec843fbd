"""A phase that resumes with another execution warns with both values; an unchanged execution is silent."""

import importlib.metadata
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from marin_dag.graph.context import StepStopped
from steps import phase_execution
from steps.phase_config import TrainPhaseConfig
from steps.phase_execution import differences
from tests.catalogue import check_message
from tests.steps.phase_runs import Trajectory, a_phase, cache_of

pytestmark = pytest.mark.usefixtures("use_devices")

HOW = {
    "device": "TPU v4",
    "mesh": "data_x 8; hosts: 2",
    "jax": "0.10.2",
    "batch": "1,024 x 4,096 tokens",
    "memory": "remat full, micro-batches: 1",
    "attention": "splash: query 512, key 1,024",
    "reason": "by default",
}


@pytest.fixture(scope="module")
def phase(tmp_path_factory: pytest.TempPathFactory) -> TrainPhaseConfig:
    return a_phase(cache_of(tmp_path_factory.mktemp("tokenize"), "web", last_id=8))


def kinds(trajectory: Trajectory) -> list[str]:
    return [event["event"] for event in trajectory.events()]


def stopped(trajectory: Trajectory, phase: TrainPhaseConfig, after: int) -> None:
    with pytest.raises(StepStopped):
        trajectory.run(phase, stop_after=after)


def test_a_phase_resumed_on_other_devices_warns_and_commits_the_same_data(tmp_path, phase, use_devices):
    trajectory = Trajectory(tmp_path, "e" * 64)
    phase = phase.model_copy(update={"until_step": 12})
    stopped(trajectory, phase, 5)
    use_devices(4)
    phase = phase.model_copy(update={"attention_kernel": "reference"})
    stopped(trajectory, phase, 2)
    mesh = "mesh: recorded: one device; hosts: 1 / now: replica 4; hosts: 1"
    (warning,) = trajectory.warnings
    _, *lines, _ = warning.splitlines()
    assert lines[0] == f"  {mesh}" and len(lines) == 3
    check_message(warning)
    (event,) = [event for event in trajectory.events() if event["event"] == "other_execution"]
    assert (event["step"], event["saved_by"]) == (5, "attempt attempt-1")
    assert [difference["name"] for difference in event["differences"]] == ["mesh", "attention", "loss"]

    # The committed record has all changes, also where an attempt in between changed nothing more.
    stopped(trajectory, phase, 1)
    assert trajectory.warnings == [] and "other_execution" not in kinds(trajectory)
    assert trajectory.how["from_step_5"] == "; ".join(line.strip() for line in lines)
    use_devices(1)
    trajectory.run(phase)
    assert len(trajectory.warnings) == 1
    assert [name for name in trajectory.how if name.startswith("from_step_")] == ["from_step_5", "from_step_8"]


def test_a_phase_resumed_with_other_compiler_flags_warns(tmp_path, phase, monkeypatch):
    trajectory = Trajectory(tmp_path, "d" * 64)
    phase = phase.model_copy(update={"until_step": 8})
    stopped(trajectory, phase, 3)
    monkeypatch.setenv("JAX_ENABLE_X64", "1")  # pinned, so nothing changes
    stopped(trajectory, phase, 1)
    assert trajectory.warnings == []
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_enable_megacore_fusion=false")
    stopped(trajectory, phase, 1)
    assert len(trajectory.warnings) == 1
    (event,) = [event for event in trajectory.events() if event["event"] == "other_execution"]
    (difference,) = event["differences"]
    assert difference["name"] == "environment" and difference["now"].startswith("LIBTPU_INIT_ARGS=--xla_tpu_enable")


def test_a_phase_that_starts_from_another_with_other_versions_warns(tmp_path, phase, monkeypatch):
    before = Trajectory(tmp_path / "before", "e" * 64)
    before.run(phase.model_copy(update={"until_step": 3}))
    version = importlib.metadata.version
    monkeypatch.setattr(
        phase_execution.importlib.metadata, "version", lambda name: "0.1" if name == "jaxlib" else version(name)
    )
    after = Trajectory(tmp_path / "after", "f" * 64)
    after.run(phase.model_copy(update={"start": before.at(3), "until_step": 4}))
    (output,) = after.warnings
    assert f"  jaxlib: recorded: {version('jaxlib')} / now: 0.1" in output.splitlines()
    assert after.how["from_step_3"] == f"jaxlib: recorded: {version('jaxlib')} / now: 0.1"
    # An attempt that resumes from its own milestone has no further change.
    own = Trajectory(tmp_path / "after", "f" * 64)
    own.records, own.how_by_record, own.attempts = after.records, after.how_by_record, after.attempts
    own.run(phase.model_copy(update={"start": before.at(3), "until_step": 6}))
    assert own.warnings == [] and "from_step_3" in own.how


def test_an_unchanged_execution_is_silent(tmp_path, phase):
    before = Trajectory(tmp_path / "before", "e" * 64)
    stopped(before, phase, 5)
    before.run(phase)
    after = Trajectory(tmp_path / "after", "f" * 64)
    other = phase.model_copy(update={"start": before.at(8), "until_step": 10, "global_batch_size": 8, "z_loss": 0.0})
    after.run(other)
    for trajectory in (before, after):
        assert trajectory.warnings == [] and "other_execution" not in kinds(trajectory)
        assert [name for name in trajectory.how if name.startswith("from_step_")] == []


def test_the_execution_is_in_no_committed_byte(tmp_path, phase):
    first, second = Trajectory(tmp_path / "one", "e" * 64), Trajectory(tmp_path / "other", "e" * 64)
    first.run(phase.model_copy(update={"until_step": 4}))
    second.records = dict(first.records)
    for trajectory, device in ((first, "TPU v4"), (second, "TPU v5 lite")):
        trajectory.how_by_record[4] = {"device": device}
        trajectory.run(phase.model_copy(update={"until_step": 6}))
        assert len(trajectory.warnings) == 1
    assert first.files(6) == second.files(6)


def test_a_log_that_cannot_be_read_stops_nothing(tmp_path, phase):
    trajectory = Trajectory(tmp_path, "e" * 64)
    stopped(trajectory, phase, 5)
    Path(tmp_path, "work/events/attempt-1.jsonl").write_text("no event\n")
    assert trajectory.run(phase).step == 8
    assert trajectory.warnings == []


def test_another_shape_has_other_blocks_and_only_another_kernel_is_a_change():
    other = HOW | {"batch": "3,072 x 4,096 tokens", "attention": "splash: query 1,024, key 1,024"}
    assert differences(HOW, other, is_resumed=False) == []
    assert [
        str(found) for found in differences(HOW, other | {"attention": "chunked: query 512"}, is_resumed=False)
    ] == ["attention: recorded: splash / now: chunked"]
    assert [found.name for found in differences(HOW, other, is_resumed=True)] == ["batch", "attention"]
    same_shape = HOW | {"attention": "splash: query 1,024, key 1,024"}
    assert [found.name for found in differences(HOW, same_shape, is_resumed=False)] == ["attention"]
    fewer = HOW | {"memory": "remat full, micro-batches: 2", "reason": "as asked for"}
    assert [found.name for found in differences(HOW, fewer, is_resumed=True)] == ["memory"]


def test_names_missing_from_a_record_are_no_change():
    assert differences({"attention": "splash: query 128", "reason": "by default"}, HOW, is_resumed=False) == []
    assert differences({}, HOW, is_resumed=True) == []


def test_a_long_compile_is_a_warning_while_it_runs(monkeypatch) -> None:
    monkeypatch.setattr(phase_execution, "SILENT_SECONDS", 0.05)
    warnings, returned = [], []

    def train_step(state: int) -> int:
        time.sleep(0.3)
        returned.append(len(warnings))
        return state + 1

    update = phase_execution.announced_compile(train_step, SimpleNamespace(warn=warnings.append))
    assert [update(number) for number in range(2)] == [1, 2]
    assert returned == [1, 2], "only the first call compiles; its end is a warning as well"
