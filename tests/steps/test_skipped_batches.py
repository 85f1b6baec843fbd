"""A phase skips its batches once, whatever happens to it, as if it had trained on them."""

import itertools
import signal
from pathlib import Path
from typing import Any

import pytest

from marin_dag.errors import RefusedConfigError
from marin_dag.graph.context import StepStopped
from marin_dag.graph.inputs import Input
from runtime.data.mixing.loss_drop import LossDrop
from runtime.data.mixture import MixtureSchedule, MixtureSegment
from runtime.tracking.events import read_events
from runtime.training import checkpoint, train_step
from steps import phase_training
from steps.phase_config import TrainPhaseConfig
from steps.tokenize import TokenizeResult
from steps.train_phase import train_phase
from tests.catalogue import expect_error
from tests.steps.phase_runs import SEQUENCE_LENGTH, Trajectory, a_phase, cache_of
from tests.steps.test_train_phase_killed import FORKSERVER, train

pytestmark = pytest.mark.usefixtures("use_devices")

SKIPPED = {"skip_batches": 5, "acknowledge": ("skip_batches",)}
BUILD = train_step.build_train_step


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Input[TokenizeResult]]:
    return {name: cache_of(tmp_path_factory.mktemp(name), name, last_id=8) for name in ("web", "code")}


@pytest.fixture(scope="module")
def phase(caches: dict[str, Input[TokenizeResult]]) -> TrainPhaseConfig:
    """Return a phase of two sources until update 6 and one after it; it saves every two updates."""
    mixture = MixtureSchedule((MixtureSegment(0, {"web": 2.0, "code": 1.0}), MixtureSegment(6, {"code": 1.0})))
    return a_phase(caches["web"], caches=caches, mixture=mixture, checkpoint_every_steps=2)


@pytest.fixture
def before(tmp_path: Path, phase: TrainPhaseConfig) -> Trajectory:
    """Return the phase with four updates."""
    trajectory = Trajectory(tmp_path / "before", "b" * 64)
    trajectory.run(changed(phase, until_step=4))
    return trajectory


def changed(config: TrainPhaseConfig, **changes: Any) -> TrainPhaseConfig:
    return config.model_copy(update=changes)


def position(trajectory: Trajectory, step: int) -> dict[str, Any]:
    return checkpoint.read_metadata(f"{trajectory.at(step).path}/checkpoint")["data_position"]


def recorded(folder: Path, *arguments: Any, **keywords: Any) -> Any:
    """Return the train step, which records its tokens."""
    step, number = BUILD(*arguments, **keywords), itertools.count()

    def recorded(state: Any, tokens: Any, segment_ids: Any, hyperparameters: Any) -> Any:
        folder.joinpath(f"batch-{next(number)}").write_bytes(memoryview(tokens).tobytes())
        return step(state, tokens, segment_ids, hyperparameters)

    return recorded


def batches(monkeypatch: pytest.MonkeyPatch, folder: Path, trajectory: Trajectory, config: TrainPhaseConfig) -> list:
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(phase_training, "build_train_step", lambda *a, **k: recorded(folder, *a, **k))
        trajectory.run(config)
    return [(folder / f"batch-{number}").read_bytes() for number in range(len(list(folder.iterdir())))]


def test_training_starts_after_the_skipped_batches(tmp_path, phase, caches, monkeypatch):
    one_source = MixtureSchedule.constant({"web": 1.0})
    phase = changed(phase, mixture=one_source)
    first = Trajectory(tmp_path / "first", "e" * 64)
    first.run(changed(phase, until_step=4))
    through = batches(
        monkeypatch, tmp_path / "all", Trajectory(tmp_path / "through", "a" * 64), changed(phase, until_step=12)
    )
    second = Trajectory(tmp_path / "second", "f" * 64)
    drawn = batches(monkeypatch, tmp_path / "some", second, changed(phase, start=first.at(4), until_step=7, **SKIPPED))
    # The slots of a batch are mixed by the step; of one source its rows come in their order all the same.
    assert drawn == through[9:12]
    result = second.at(7).result
    assert (result.step, result.consumed_tokens) == (7, 7 * 4 * SEQUENCE_LENGTH)
    metrics = second.metrics(7)
    assert (len(metrics), metrics[6].step, metrics[6].consumed_tokens) == (7, 7, 7 * 4 * SEQUENCE_LENGTH)
    assert position(second, 7)["consumed"] == {"w" * 64: (4 + 5 + 3) * 4}
    assert sum(losses.num_sequences for losses in second.source_losses(7)) == 7 * 4


def test_the_log_has_the_skipped_sequences_of_each_source_once(tmp_path, phase, before):
    trajectory = Trajectory(tmp_path, "f" * 64)
    trajectory.run(changed(phase, start=before.at(4), until_step=8, **SKIPPED))
    (event,) = [event for event in trajectory.events() if event["event"] == "batches_skipped"]
    assert (event["step"], event["batches"]) == (4, 5)
    assert sum(event["sequences"].values()) == 5 * 4 and 13 <= event["sequences"]["web"] <= 14
    trajectory.run(changed(phase, start=before.at(4), until_step=9, **SKIPPED))
    assert not [event for event in trajectory.events() if event["event"] == "batches_skipped"]


def test_skipped_batches_are_identity_and_not_in_checkpoints(tmp_path, phase, before):
    plain, other = (Trajectory(tmp_path / name, name[0] * 64) for name in ("plain", "other"))
    plain.run(changed(phase, start=before.at(4), until_step=8))
    other.run(changed(phase, start=before.at(4), until_step=8, **SKIPPED))
    assert position(plain, 8) != position(other, 8)
    facts = checkpoint.read_metadata(f"{other.at(8).path}/checkpoint")["facts"]
    assert facts == checkpoint.read_metadata(f"{plain.at(8).path}/checkpoint")["facts"]
    assert "skip_batches" not in facts


@pytest.mark.parametrize("stop_after", [1, 2, 4])
def test_a_stopped_cut_or_extended_phase_skips_no_batches_again(tmp_path, phase, before, stop_after):
    whole = Trajectory(tmp_path / "whole", "f" * 64)
    config = changed(phase, start=before.at(4), until_step=9, **SKIPPED)
    whole.run(config)
    stopped = Trajectory(tmp_path / "stopped", "f" * 64)
    with pytest.raises(StepStopped):
        stopped.run(config, stop_after=stop_after)
    stopped.run(config)
    assert stopped.files(9) == whole.files(9)
    cut = Trajectory(tmp_path / "cut", "f" * 64)
    cut.run(changed(config, until_step=7))
    cut.run(changed(phase, start=cut.at(7), until_step=9))
    assert cut.files(9) == whole.files(9)
    moved = Trajectory(tmp_path / "moved", "f" * 64)
    moved.run(changed(config, until_step=5))
    moved.run(config)
    assert moved.files(9) == whole.files(9)


@pytest.mark.parametrize("dies_at", [0, 2, 4])
def test_killed_in_its_first_steps_it_ends_with_the_same_bytes(tmp_path, phase, before, dies_at):
    config = changed(phase, start=before.at(4), until_step=9, **SKIPPED)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    child = FORKSERVER.Process(target=train, args=(None, killed, config, 1, False, 1, dies_at))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert train(None, killed, config, 1, False, 2).files(9) == train(None, whole, config, 1, False, 1).files(9)
    events = read_events(str(killed / "work/events/attempt-2.jsonl"))
    again = [event["event"] for event in events].count("batches_skipped")
    assert dies_at == 2 or again == (dies_at == 0), "again only where nothing was saved, as perhaps before update 2"


def test_restarted_data_begin_after_the_skipped_batches(tmp_path, phase, before):
    restarted = {"restore": "weights_and_optimizer", "acknowledge": ("restore", "skip_batches")}
    trajectory = Trajectory(tmp_path / "anew", "f" * 64)
    trajectory.run(changed(phase, start=before.at(4), until_step=5, **SKIPPED | restarted))
    assert sum(position(trajectory, 5)["consumed"].values()) == (5 + 1) * 4
    scratch = Trajectory(tmp_path / "scratch", "a" * 64)
    scratch.run(changed(phase, until_step=1, **SKIPPED))
    assert sum(position(scratch, 1)["consumed"].values()) == (5 + 1) * 4


def test_a_source_that_ends_in_the_skipped_batches_is_logged(tmp_path, phase, before):
    policy = LossDrop(max_epochs={"code": 0.08})  # eleven sequences; the phase before took five
    trajectory = Trajectory(tmp_path, "f" * 64)
    acknowledged = {"acknowledge": ("skip_batches", "mixing"), "mixing": policy}
    trajectory.run(changed(phase, start=before.at(4), until_step=5, **SKIPPED | acknowledged | {"skip_batches": 9}))
    events = [event for event in trajectory.events() if event["event"] in ("batches_skipped", "exhausted")]
    assert [(event["event"], event["step"], event.get("source")) for event in events] == [
        ("batches_skipped", 4, None),
        ("exhausted", 4, "code"),
    ]


def test_skipped_batches_must_be_acknowledged(phase):
    first = train_phase("first", phase)
    config = changed(phase, start=first.as_input(), until_step=12, skip_batches=300)
    with expect_error(RefusedConfigError) as raised:
        train_phase.check(config)
    assert raised.value.cure == {"acknowledge": '["skip_batches"]'}
    train_phase.check(changed(config, acknowledge=("skip_batches",)))


def test_the_next_phase_does_not_inherit_skipped_batches(phase):
    first = train_phase("first", phase)
    assert "skip_batches" not in dict(first.identity["config"][2:])
    skipped = first.then("skipped", until_step=12, **SKIPPED)
    assert dict(skipped.identity["config"][2:])["skip_batches"] == 5
    after = skipped.then("after", until_step=16)
    assert (after.config.skip_batches, after.digest) == (0, skipped.digest)
    assert first.then("plain", until_step=12).digest == first.digest != skipped.digest


def test_a_negative_number_is_an_error(phase):
    with expect_error(ValueError):
        TrainPhaseConfig(**dict(phase) | {"skip_batches": -1})
