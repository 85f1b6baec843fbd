"""The train phase, run as the engine runs it: what it starts from, what it trains, and what it commits."""

import logging
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from pydantic import BaseModel

from marin_dag.context import ALONE, StepStopped
from marin_dag.errors import RefusedConfigError
from marin_dag.inputs import Input
from marin_dag.resources import Cpu
from runtime.data.cache import TokenFormat
from runtime.data.cache_writer import TokenCacheWriter
from runtime.data.mixing.loss_drop import LossDrop
from runtime.data.mixing.odm_paper import OdmPaper
from runtime.data.mixture import MixtureSchedule
from runtime.model.config import LLAMA2_ROPE, LlamaConfig
from runtime.optim.ema import Ema
from runtime.optim.schedule import Linear
from runtime.optim.skip_rule import SkipRule
from runtime.tracking.events import read_events
from runtime.tracking.metrics import MetricsTable
from runtime.tracking.source_losses import SourceLosses, SourceLossesTable
from runtime.training import checkpoint
from runtime.training.temporary import TemporaryCheckpoints
from steps.tokenize import TokenizeResult
from steps.train_phase import TrainPhaseConfig, TrainPhaseResult, train_phase

jax.config.update("jax_num_cpu_devices", 8)  # as tests/runtime/training does; before JAX makes its backend

SEQUENCE_LENGTH = 16
MODEL = LlamaConfig(
    vocab_size=32,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=8,
    max_position_embeddings=SEQUENCE_LENGTH,
)


class Trajectory:
    """What the engine keeps of one trajectory: its records and its work folder."""

    def __init__(self, folder: Path, digest: str) -> None:
        self.folder, self.digest = folder, digest
        self.records: dict[int, tuple[str, TrainPhaseResult]] = {}
        self.attempts = 0

    def at(self, step: int) -> Input[TrainPhaseResult]:
        path, result = self.records[step]
        return Input(None, milestone=step, name="a phase", digest=self.digest, path=path, result=result)

    def files(self, step: int) -> dict[str, bytes]:
        root = Path(self.records[step][0])
        return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}

    def metrics(self, step: int) -> MetricsTable:
        return MetricsTable.from_parquet(self.files(step)["metrics.parquet"])

    def source_losses(self, step: int) -> list[SourceLosses]:
        table = SourceLossesTable.from_parquet(self.files(step)["source_losses.parquet"])
        return [table[index] for index in range(len(table))]

    def events(self) -> list[dict[str, Any]]:
        return read_events(f"{self.folder}/work/events/attempt-{self.attempts}.jsonl")

    def run(self, config: TrainPhaseConfig, *, stop_after: int | None = None) -> TrainPhaseResult:
        self.attempts += 1
        return train_phase.function(config, Attempt(self, stop_after))


class Attempt:
    """A StepContext."""

    def __init__(self, trajectory: Trajectory, stop_after: int | None) -> None:
        self._trajectory, self._stop_after = trajectory, stop_after
        self.name, self.digest = "a phase", trajectory.digest
        self.lease_epoch = trajectory.attempts
        self.attempt = f"attempt-{self.lease_epoch}"
        self.output_path = f"{trajectory.folder}/outputs/{self.attempt}"
        self.work_path = f"{trajectory.folder}/work"
        self.log = logging.getLogger(__name__)
        self.resources = Cpu(2)
        self.host = ALONE
        self._asked = 0

    def map(self, function: Any, items: Any, *, in_flight: int, name: str = "shards") -> list[Any]:
        raise NotImplementedError

    def progress(self, done: int, total: int, unit: str, **figures: float) -> None:
        assert done <= total
        assert unit == "steps"

    def publish(self, milestone: int, folder: str, result: BaseModel) -> None:
        assert isinstance(result, TrainPhaseResult)
        assert milestone not in self._trajectory.records
        self._trajectory.records[milestone] = f"{self.output_path}/{folder}", result

    def milestones(self) -> dict[int, Input[Any]]:
        return {step: self._trajectory.at(step) for step in self._trajectory.records}

    def stop_requested(self) -> bool:
        self._asked += 1
        return self._stop_after is not None and self._asked > self._stop_after


UseDevices = Callable[[int], None]


@pytest.fixture(autouse=True)
def use_devices(monkeypatch: pytest.MonkeyPatch) -> UseDevices:
    """Makes JAX have so many devices; one to begin with, as a laptop has, where the suite simulates eight."""
    simulated = jax.devices()

    def use(count: int) -> None:
        assert count <= len(simulated)
        monkeypatch.setattr(jax, "devices", lambda *_: simulated[:count])
        monkeypatch.setattr(jax, "device_count", lambda *_: count)

    use(1)
    return use


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Input[TokenizeResult]:
    return cache_of(tmp_path_factory.mktemp("tokenize"), "web", last_id=8)


@pytest.fixture(scope="module")
def other_cache(tmp_path_factory: pytest.TempPathFactory) -> Input[TokenizeResult]:
    """Harder text: four times as many ids."""
    return cache_of(tmp_path_factory.mktemp("tokenize"), "code", last_id=MODEL.vocab_size)


def cache_of(folder: Path, name: str, last_id: int) -> Input[TokenizeResult]:
    ids = TokenFormat(vocab_size=MODEL.vocab_size, eos_token_id=0, bos_token_id=None, tokenizer_digest="0" * 64)
    rng = np.random.default_rng(0)
    with TokenCacheWriter(str(folder / "train"), ids, np.ones(MODEL.vocab_size, np.int32)) as writer:
        writer.add([rng.integers(1, last_id, 21) for _ in range(100)], num_bytes=2100)
    result = TokenizeResult(
        train="train",
        validation="validation",
        num_train_tokens=2200,
        num_validation_tokens=22,
        num_train_bytes=2100,
        num_validation_bytes=21,
        num_train_documents=100,
        num_validation_documents=1,
        vocab_size=MODEL.vocab_size,
        eos_token_id=0,
    )
    return Input(None, name=f"tokenize/{name}", digest=name[0] * 64, path=str(folder), result=result)


@pytest.fixture
def phase(cache: Input[TokenizeResult]) -> TrainPhaseConfig:
    return TrainPhaseConfig(
        start=None,
        until_step=8,
        model=MODEL,
        rope=LLAMA2_ROPE,
        sequence_length=SEQUENCE_LENGTH,
        global_batch_size=4,
        learning_rate=Linear(peak_value=1e-2, end_value=1e-3, start_step=0, decay_steps=20),
        weight_decay=0.1,
        b1=0.9,
        b2=0.95,
        eps=1e-8,
        max_norm=1.0,
        average=None,
        z_loss=1e-4,
        mixture=MixtureSchedule.constant({"web": 1.0}),
        caches={"web": cache},
        seed=0,
        compute_dtype="float32",
        checkpoint_every_steps=3,
    )


def until(config: TrainPhaseConfig, step: int, **changes: Any) -> TrainPhaseConfig:
    return config.model_copy(update={"until_step": step, **changes})


def test_a_phase_trains_and_commits_its_state_and_a_row_for_each_update(tmp_path, phase):
    trajectory = Trajectory(tmp_path, "e" * 64)
    result = trajectory.run(phase)
    assert (result.step, result.consumed_tokens, result.has_average) == (8, 8 * 4 * SEQUENCE_LENGTH, False)
    assert sorted(trajectory.records) == [8]
    metrics = trajectory.metrics(8)
    assert len(metrics) == 8
    assert metrics[7].loss < metrics[0].loss
    assert result.final_loss == metrics.mean_loss_of_last(20)
    begin = trajectory.events()[0]
    assert begin["kernels"] == {"attention": "reference", "loss": "chunked", "reason": begin["kernels"]["reason"]}


def test_moving_until_step_later_trains_only_the_added_steps_and_earlier_none(tmp_path, phase):
    trajectory = Trajectory(tmp_path, "e" * 64)
    trajectory.run(until(phase, 5))
    trajectory.run(phase)
    assert [event["step"] for event in trajectory.events() if event["event"] in ("resume", "begin")] == [5, 5]
    assert len(trajectory.metrics(8)) == 8
    assert trajectory.run(until(phase, 5)) == trajectory.at(5).result
    assert not (tmp_path / "work" / "events" / "attempt-3.jsonl").exists()


def test_a_phase_cut_in_two_and_stopped_in_between_commits_the_same_bytes(tmp_path, phase):
    whole, cut = Trajectory(tmp_path / "whole", "e" * 64), Trajectory(tmp_path / "cut", "e" * 64)
    whole.run(phase)
    cut.run(until(phase, 4))
    with pytest.raises(StepStopped, match="stopped at step 6"):
        cut.run(until(phase, 8, start=cut.at(4)), stop_after=2)
    cut.run(until(phase, 8, start=cut.at(4)))
    assert cut.files(8) == whole.files(8)


def test_milestones_are_published_on_the_way(tmp_path, phase):
    trajectory = Trajectory(tmp_path, "e" * 64)
    trajectory.run(phase.model_copy(update={"publish_every_steps": 3}))
    assert sorted(trajectory.records) == [3, 6, 8]
    again = Trajectory(tmp_path / "again", "e" * 64)
    again.run(until(phase, 3))
    assert again.files(3) == trajectory.files(3)


def test_another_phase_continues_state_data_and_metrics_and_lets_an_average_enter(tmp_path, phase):
    first, second = Trajectory(tmp_path / "first", "e" * 64), Trajectory(tmp_path / "second", "f" * 64)
    first.run(phase)
    rule = SkipRule(window_steps=4, sigma=6.0, warmup_steps=2, max_consecutive=3)
    averaged = until(phase, 11, start=first.at(8), average=Ema(decay=0.5), global_batch_size=8, skip=rule)
    result = second.run(averaged)
    assert result.has_average
    assert "checkpoint/arrays/history.losses/c.0" in second.files(11)
    assert result.consumed_tokens == (8 * 4 + 3 * 8) * SEQUENCE_LENGTH
    metrics = second.metrics(11)
    assert len(metrics) == 11
    assert [metrics[row] for row in range(8)] == [first.metrics(8)[row] for row in range(8)]
    position = checkpoint.read_metadata(f"{second.at(11).path}/checkpoint")["data_position"]
    assert position["consumed"] == {"w" * 64: 8 * 4 + 3 * 8}
    third = Trajectory(tmp_path / "third", "a" * 64)
    left = third.run(until(phase, 12, start=second.at(11)))
    assert not left.has_average
    assert not [name for name in third.files(12) if "history" in name or "average" in name]


@pytest.mark.parametrize(("restore", "count"), [("weights_and_optimizer", 10), ("weights", 2)])
def test_a_phase_can_take_less_and_begin_the_data_anew(tmp_path, phase, restore, count):
    first, second = Trajectory(tmp_path / "first", "e" * 64), Trajectory(tmp_path / "second", "f" * 64)
    first.run(phase)
    second.run(until(phase, 10, start=first.at(8), restore=restore))
    metadata = checkpoint.read_metadata(f"{second.at(10).path}/checkpoint")
    assert (metadata["step"], metadata["data_position"]["consumed"]) == (10, {"w" * 64: 8})
    saved, _ = checkpoint.load(
        f"{second.at(10).path}/checkpoint", {"count": jax.ShapeDtypeStruct((), np.int32)}, partial=True
    )
    assert int(saved["count"]) == count


def test_a_checkpoint_tells_the_configuration_but_nothing_of_its_execution(tmp_path, phase):
    trajectory = Trajectory(tmp_path, "e" * 64)
    trajectory.run(phase)
    facts = checkpoint.read_metadata(f"{trajectory.at(8).path}/checkpoint")["facts"]
    assert facts["model"]["hidden_size"] == 16
    assert facts["learning_rate"]["kind"] == "linear"
    assert not {"until_step", "start", "checkpoint_every_steps", "wandb_project"} & set(facts)
    committed = b"".join(trajectory.files(8).values())
    assert str(tmp_path).encode() not in committed
    assert b"attempt" not in committed


def test_the_cost_of_a_phase_counts_its_own_steps_only(phase):
    first = train_phase.cost(phase)
    assert first.tokens == 8 * 4 * SEQUENCE_LENGTH
    start = Input(None, milestone=8, name="first", digest="e" * 64)
    assert train_phase.cost(until(phase, 10, start=start)).tokens == 2 * 4 * SEQUENCE_LENGTH


def test_a_phase_resumes_on_another_number_of_devices_with_the_same_data(tmp_path, phase, use_devices):
    whole, moved = Trajectory(tmp_path / "whole", "e" * 64), Trajectory(tmp_path / "moved", "e" * 64)
    whole.run(phase)
    moved.run(until(phase, 5))
    use_devices(4)
    moved.run(phase.model_copy(update={"context_parallel": 2}))
    positions = [
        checkpoint.read_metadata(f"{trajectory.at(8).path}/checkpoint")["data_position"]
        for trajectory in (whole, moved)
    ]
    assert positions[0] == positions[1]
    losses = [[trajectory.metrics(8)[row].loss for row in range(8)] for trajectory in (whole, moved)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_another_packing_cannot_go_on_with_the_old_position(phase):
    start = train_phase("first", phase).as_input()
    packed = phase.model_copy(update={"start": start, "until_step": 10, "packing": "whole_documents"})
    with pytest.raises(RefusedConfigError, match="packing changes from 'concatenate' to 'whole_documents'"):
        train_phase.check(packed)
    afresh = {"restore": "weights_and_optimizer", "acknowledge": ("restore",)}
    train_phase.check(packed.model_copy(update=afresh))


def test_a_jump_that_nobody_acknowledged_is_refused_when_the_plan_is_made(phase):
    first = train_phase("first", phase)
    jumping = {"start": first, "until_step": 10, "weight_decay": 0.2}
    with pytest.raises(ValueError, match=r"weight_decay changes from 0\.1 to 0\.2"):
        train_phase.check(phase.model_copy(update=jumping | {"start": first.as_input()}))
    train_phase.check(phase.model_copy(update=jumping | {"start": first.as_input(), "acknowledge": ("weight_decay",)}))


def test_a_source_that_will_be_read_too_often_is_a_warning_in_the_log(tmp_path, phase, cache, caplog):
    Trajectory(tmp_path / "fine", "e" * 64).run(until(phase, 2))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    small = cache.bound(path=cache.path, result=cache.result.model_copy(update={"num_train_tokens": 100}))
    trajectory = Trajectory(tmp_path / "small", "e" * 64)
    trajectory.run(until(phase, 2, caches={"web": small}))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING], "8 of 6 sequences"
    trajectory.run(until(phase, 8, caches={"web": small}))
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.getMessage().startswith("mixture: 'web' is read 5.33 times in all (limit 4, passed in a phase)")


def test_a_plan_refuses_a_mixture_that_names_a_source_without_a_cache(phase):
    assert train_phase.check is not None
    train_phase.check(phase)
    mixture = MixtureSchedule.constant({"web": 1.0, "wbe": 1.0})
    with pytest.raises(ValueError, match=r"mixture: 'wbe' has a weight but no token cache; add the source or leave"):
        train_phase.check(phase.model_copy(update={"mixture": mixture}))


@pytest.fixture
def mixed(phase: TrainPhaseConfig, other_cache: Input[TokenizeResult]) -> TrainPhaseConfig:
    """Two sources under the paper's policy, each batch from both."""
    changes = {"caches": {**phase.caches, "code": other_cache}, "mixing": OdmPaper(alpha=0.9), "until_step": 30}
    mixture = MixtureSchedule.constant({"web": 3.0, "code": 1.0})
    return phase.model_copy(update=changes | {"mixture": mixture, "global_batch_size": 8})


def draws(trajectory: Trajectory, step: int) -> list[tuple[int, str, int]]:
    return [(row.step, row.source, row.num_sequences) for row in trajectory.source_losses(step)]


def test_losses_by_source_sum_to_the_loss_of_the_batch(tmp_path, mixed):
    trajectory = Trajectory(tmp_path, "e" * 64)
    trajectory.run(until(mixed, 8))
    metrics, losses = trajectory.metrics(8), trajectory.source_losses(8)
    for index in range(8):
        found = [row for row in losses if row.step == index + 1]
        assert [row.source for row in found] == ["code", "web"]
        assert sum(row.num_sequences for row in found) == 8
        assert sum(row.num_targets for row in found) == metrics[index].num_targets
        mean = sum(row.loss_sum for row in found) / metrics[index].num_targets
        assert mean == pytest.approx(metrics[index].loss, rel=1e-5)


def test_under_a_learned_mixture_a_stopped_phase_ends_with_the_bytes_of_one_that_was_not(tmp_path, mixed):
    whole, stopped = Trajectory(tmp_path / "whole", "e" * 64), Trajectory(tmp_path / "stopped", "e" * 64)
    whole.run(mixed)
    for asked in (5, 9):
        with pytest.raises(StepStopped):
            stopped.run(mixed, stop_after=asked)
    stopped.run(mixed)
    assert stopped.files(30) == whole.files(30)
    assert len({row.share for row in whole.source_losses(30)}) > 10


def test_the_number_of_devices_does_not_change_a_draw(tmp_path, mixed, use_devices):
    drawn = []
    for count in (8, 4, 1):
        use_devices(count)
        trajectory = Trajectory(tmp_path / str(count), "e" * 64)
        trajectory.run(mixed)
        drawn.append(draws(trajectory, 30))
    assert drawn[0] == drawn[1] == drawn[2]


def test_a_replay_draws_what_the_log_says_and_not_what_its_own_losses_would(tmp_path, mixed, use_devices):
    original, replayed = Trajectory(tmp_path / "one", "e" * 64), Trajectory(tmp_path / "two", "f" * 64)
    original.run(mixed)
    use_devices(4)
    other = until(mixed, 30, replay=original.at(30), learning_rate=Linear(1e-4, 1e-5, 0, 20), mixing=LossDrop())
    replayed.run(other)
    assert draws(replayed, 30) == draws(original, 30)
    assert replayed.metrics(30)[29].loss != original.metrics(30)[29].loss


def test_another_mixing_policy_is_a_jump_that_must_be_meant(mixed):
    start = train_phase("first", mixed).as_input()
    changed = mixed.model_copy(update={"start": start, "until_step": 40, "mixing": LossDrop()})
    with pytest.raises(ValueError, match=r"mixing changes from OdmPaper\(.*\) to LossDrop\("):
        train_phase.check(changed)
    train_phase.check(changed.model_copy(update={"acknowledge": ("mixing",)}))


def test_a_plan_sees_the_complete_temporary_checkpoints_of_an_interrupted_phase():
    temporary = TemporaryCheckpoints("temporary", lease_epoch=3)
    complete, torn = temporary.folder_of(400), temporary.folder_of(600)
    paths = [f"{complete}/checkpoint/manifest.json", f"{complete}/metrics.parquet", f"{torn}/metrics.parquet"]
    assert train_phase.resumes_at is not None
    assert list(train_phase.resumes_at([*paths, "events/a.jsonl"])) == [400]


def test_a_phase_that_jumps_is_refused_with_the_option_that_says_it_is_meant(phase: TrainPhaseConfig):
    jumping = train_phase("first", phase).then("second", until_step=12, weight_decay=0.5)
    assert train_phase.check is not None
    with pytest.raises(RefusedConfigError, match="weight_decay changes") as refused:
        train_phase.check(jumping.config)
    assert refused.value.cure == {"acknowledge": '["weight_decay"]'}


def test_two_hosts_commit_the_bytes_that_one_host_with_both_devices_commits(tmp_path, phase):
    (tmp_path / "config").write_bytes(pickle.dumps(phase))
    environment = os.environ | {"PYTHONPATH": str(Path.cwd()), "JAX_PLATFORMS": "cpu"}
    trees, read = [], []
    for num_hosts in (1, 2):
        folder = tmp_path / str(num_hosts)
        command = [sys.executable, "-m", "tests.steps.train_on_hosts", str(tmp_path / "config"), str(folder)]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            coordinator = f"127.0.0.1:{free.getsockname()[1]}"
        hosts = [
            subprocess.Popen(
                [*command, str(index), str(num_hosts), coordinator],
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
            )
            for index in range(num_hosts)
        ]
        for host in hosts:
            errors = host.communicate()[1]
            assert host.returncode == 0, errors
        read.append([int((folder / f"read-{index}").read_text()) for index in range(num_hosts)])
        output = folder / "outputs" / "attempt-1"
        files = (path for path in output.rglob("*") if path.is_file() and "parts" not in path.parts)
        trees.append({str(path.relative_to(output)): path.read_bytes() for path in files})
    assert trees[0].keys() == trees[1].keys()
    assert [name for name in trees[0] if trees[0][name] != trees[1][name]] == []
    assert read == [[8 * 4 * SEQUENCE_LENGTH], [4 * 4 * SEQUENCE_LENGTH] * 2], "each host reads its rows alone"
