"""The train phase, run as the engine runs it: what it starts from, what it trains, and what it commits."""

import dataclasses
import itertools
import json
import logging
import math
import statistics
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError

from marin_dag.errors import RefusedConfigError
from marin_dag.graph.context import StepStopped
from marin_dag.graph.inputs import Input
from marin_dag.graph.resources import Cpu, Gpu, Tpu
from marin_dag.ledger.requests import Request
from marin_dag.values.changes import ChangeError
from marin_dag.values.fields import RuntimeField, markers
from runtime.data.mixing.loss_drop import LossDrop
from runtime.data.mixing.odm import OdmPaper
from runtime.data.mixture import MixtureSchedule, MixtureSegment
from runtime.data.sampler import DataPosition
from runtime.model.computation import whole
from runtime.model.config import LLAMA2_ROPE
from runtime.model.initialization import Initialization
from runtime.model.llama import model as llama_model
from runtime.model.llama.config import LlamaConfig
from runtime.model.model import logits
from runtime.model.rotary import inverse_frequencies
from runtime.optim.ema import Ema
from runtime.optim.optimizer import Muon
from runtime.optim.skip_rule import SkipRule
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.tracking.metrics import MetricsTable
from runtime.tracking.parts import MEASURED, norms_of
from runtime.training import checkpoint, saving, train_step
from runtime.training.checkpoint_files import CheckpointFiles
from runtime.training.checkpoint_reader import TornCheckpointError
from runtime.training.kernel_choice import default_kernels
from runtime.training.state import initial_state, placed_shapes
from runtime.training.temporary import TemporaryCheckpoints
from steps import phase_training
from steps.phase_config import ACKNOWLEDGED_FIELDS, COMPARED_FIELDS, TrainPhaseConfig
from steps.phase_data import loader_of
from steps.tokenize import TokenizeResult
from steps.train_phase import train_phase
from tests.catalogue import check_message, expect_error
from tests.steps import phase_runs
from tests.steps.phase_runs import MODEL, SEQUENCE_LENGTH, Trajectory, a_phase, cache_of

pytestmark = pytest.mark.usefixtures("use_devices")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Input[TokenizeResult]:
    return cache_of(tmp_path_factory.mktemp("tokenize"), "web", last_id=8)


@pytest.fixture(scope="module")
def other_cache(tmp_path_factory: pytest.TempPathFactory) -> Input[TokenizeResult]:
    """Return a cache of harder text: four times as many ids."""
    return cache_of(tmp_path_factory.mktemp("tokenize"), "code", last_id=MODEL.vocab_size)


@pytest.fixture
def phase(cache: Input[TokenizeResult]) -> TrainPhaseConfig:
    return a_phase(cache)


def until(config: TrainPhaseConfig, step: int, **changes: Any) -> TrainPhaseConfig:
    return config.model_copy(update={"until_step": step, **changes})


def test_a_phase_commits_its_state_and_a_row_for_each_step(tmp_path, phase):
    trajectory = Trajectory(tmp_path, "e" * 64)
    result = trajectory.run(phase)
    assert (result.step, result.consumed_tokens, result.averages) == (8, 8 * 4 * SEQUENCE_LENGTH, ())
    assert sorted(trajectory.records) == [8]
    metrics = trajectory.metrics(8)
    assert len(metrics) == 8
    assert metrics[7].loss < metrics[0].loss
    assert result.final_loss == metrics.mean_loss_of_last(20, after_step=0)
    begin = trajectory.events()[0]
    kernels = begin["kernels"]
    assert (kernels["attention"], kernels["loss"]) == ("chunked", "chunked")
    assert kernels["blocks"]["attention"] == "query 16"
    assert kernels["blocks"]["loss"]


def test_the_final_loss_of_a_short_phase_leaves_out_the_steps_of_its_parent(tmp_path, phase):
    first, second = Trajectory(tmp_path / "first", "e" * 64), Trajectory(tmp_path / "second", "f" * 64)
    first.run(phase)
    result = second.run(until(phase, 10, start=first.at(8)))
    losses = [row.loss for row in second.metrics(10)]
    assert result.final_loss == statistics.fmean(losses[8:]) != statistics.fmean(losses)


def test_norms_by_part_in_the_event_log_make_up_the_global_norms(tmp_path, phase):
    trajectory = Trajectory(tmp_path, "e" * 64)
    trajectory.run(phase.model_copy(update={"norms_every_steps": 3, "digest_every_steps": 8}))
    (digest,) = (event for event in trajectory.events() if event["event"] == "digest")
    numbers = [event for event in trajectory.events() if event["event"] == "norms"]
    assert [event["step"] for event in numbers] == [3, 6, 8]
    metrics, num_layers = trajectory.metrics(8), phase.model.num_hidden_layers
    for event in numbers:
        row = metrics[event["step"] - 1]
        for measured, total in zip(MEASURED, (row.grad_norm, row.update_norm, row.param_norm), strict=True):
            assert event[measured].keys() == digest["tensors"].keys()
            assert len(event[measured]["layers.down_proj"]) == num_layers
            norms = [norm for _, norm in norms_of(event, measured)]
            assert math.hypot(*norms) == pytest.approx(total, rel=1e-3)


@pytest.mark.parametrize("factor", [1, 100])
def test_wrong_initial_weights_raise_one_first_loss_alarm(tmp_path, phase, monkeypatch, factor):
    first_values = llama_model.first_values
    monkeypatch.setattr(llama_model, "first_values", lambda *drawn, **rule: factor * first_values(*drawn, **rule))
    another = Initialization(factor=0.02 + factor / 10_000)
    unseen = dataclasses.replace(phase.model, initialization=another)  # nothing is compiled of it yet
    phase = phase.model_copy(update={"model": unseen})
    first, second = Trajectory(tmp_path / "first", "e" * 64), Trajectory(tmp_path / "second", "f" * 64)
    first.run(until(phase, 1))
    alarms = [(event["monitor"], event["step"]) for event in first.events() if event["event"] == "alarm"]
    assert alarms == [("first_loss", 1)] * (factor > 1)
    first.run(until(phase, 2))
    second.run(until(phase, 2, start=first.at(1), restore="weights"))
    assert not [event for run in (first, second) for event in run.events() if event["event"] == "alarm"]


def test_a_source_with_more_ids_than_the_model_has_rows_is_an_error(tmp_path, phase):
    small = dataclasses.replace(phase.model, vocab_size=phase.model.vocab_size - 4)
    with expect_error(ValueError):
        Trajectory(tmp_path, "e" * 64).run(phase.model_copy(update={"model": small}))


def test_moving_until_step_later_trains_only_the_added_steps_and_earlier_none(tmp_path, phase):
    trajectory = Trajectory(tmp_path, "e" * 64)
    trajectory.run(until(phase, 5))
    assert all("resumed_at" not in figures for figures in trajectory.reported)
    trajectory.run(phase)
    assert [event["step"] for event in trajectory.events() if event["event"] in ("resume", "begin")] == [5, 5]
    assert {figures["resumed_at"] for figures in trajectory.reported} == {5}
    assert len(trajectory.metrics(8)) == 8
    assert trajectory.run(until(phase, 5)) == trajectory.at(5).result
    assert not (tmp_path / "work" / "events" / "attempt-3.jsonl").exists()


@pytest.mark.parametrize("optimizer", [None, Muon(ns_steps=2)])
def test_a_phase_cut_in_two_and_stopped_in_between_commits_the_same_bytes(tmp_path, phase, optimizer):
    phase = phase.model_copy(update={"optimizer": optimizer})
    whole, cut = Trajectory(tmp_path / "whole", "e" * 64), Trajectory(tmp_path / "cut", "e" * 64)
    whole.run(phase)
    cut.run(until(phase, 4))
    assert set(cut.begins) == {0}
    with expect_error(StepStopped):
        cut.run(until(phase, 8, start=cut.at(4)), stop_after=2)
    cut.run(until(phase, 8, start=cut.at(4)))
    assert set(cut.begins) == {4}  # of the phase, also where an attempt went on at 6
    assert cut.files(8) == whole.files(8)
    losses = [whole.metrics(8)[row].loss for row in range(8)]
    assert losses[-1] < losses[0]


def test_a_good_checkpoint_of_a_finished_phase_is_published_without_training(tmp_path, phase, monkeypatch):
    monkeypatch.setattr(saving, "GOOD_STEPS", 2)
    phase = phase.model_copy(update={"keep_good_every_steps": 1})
    ended, asked = Trajectory(tmp_path / "ended", "e" * 64), Trajectory(tmp_path / "asked", "e" * 64)
    ended.run(phase)
    ended.run(until(phase, 6))
    output = [event["event"] for event in ended.events()]
    assert output == ["phase", "resume", "execution", "begin", "milestone", "progress", "end"], (
        "nothing is trained or saved again"
    )
    asked.run(until(phase, 6))
    assert ended.files(6) == asked.files(6)


def test_milestones_are_published_on_the_way(tmp_path, phase):
    trajectory = Trajectory(tmp_path, "e" * 64)
    trajectory.run(phase.model_copy(update={"publish_every_steps": 3}))
    assert sorted(trajectory.records) == [3, 6, 8]
    again = Trajectory(tmp_path / "again", "e" * 64)
    again.run(until(phase, 3))
    assert again.files(3) == trajectory.files(3)


def test_wanted_milestones_are_published_despite_a_stop(tmp_path, phase):
    asked, wanted = Trajectory(tmp_path / "asked", "e" * 64), Trajectory(tmp_path / "wanted", "e" * 64)
    asked.run(until(phase, 3))
    wanted.wanted_milestones = (3, 5)
    wanted.run(phase)
    assert sorted(wanted.records) == [3, 5, 8] and wanted.files(3) == asked.files(3)
    stopped = Trajectory(tmp_path / "stopped", "e" * 64)
    with expect_error(StepStopped):
        stopped.run(phase, stop_after=3)
    assert not stopped.records
    stopped.wanted_milestones = (3, 5)
    stopped.run(phase)
    assert sorted(stopped.records) == [3, 5, 8] and stopped.files(3) == asked.files(3)
    stopped.wanted_milestones = (3, 9)
    stopped.run(until(phase, 10))
    assert sorted(stopped.records) == [3, 5, 8, 9, 10], "what is published is not published again"


def test_requests_to_a_phase_are_carried_out_and_get_replies(tmp_path, phase):
    asked, regular = Trajectory(tmp_path / "asked", "d" * 64), Trajectory(tmp_path / "regular", "d" * 64)
    actions = {"publish": 5, "save": None, "publish-next": None, "publish-late": 9, "profile": None}
    asked.requests = [
        Request(
            id=which, digest="d" * 64, name="phase", action=which.split("-")[0], milestone=at, author="anna", sent="now"
        )
        for which, at in actions.items()
    ]
    asked.run(phase)
    regular.wanted_milestones = (2, 5)
    regular.run(phase)
    assert sorted(asked.records) == [2, 5, 8]
    assert [asked.files(step) for step in (2, 5)] == [regular.files(step) for step in (2, 5)]
    for name in actions:
        check_message(f"{name}: {asked.answers[name]}")
    events = [(event["step"], event["origin"]) for event in asked.events() if event["event"] == "request"]
    assert events == list(
        enumerate(f"anna asked it to {what}" for what in ("publish step 5", "publish", "save", "profile"))
    )


def test_wanted_milestones_are_published_behind_a_later_state(tmp_path, phase):
    asked, passed = Trajectory(tmp_path / "asked", "e" * 64), Trajectory(tmp_path / "passed", "e" * 64)
    asked.run(until(phase, 3))
    with expect_error(StepStopped):
        passed.run(phase, stop_after=7)
    assert len(list((tmp_path / "passed/work/temporary").iterdir())) == 3, "of steps 3, 6 and 7"
    passed.wanted_milestones = (3, 4, 6)
    passed.run(phase)
    assert sorted(passed.records) == [3, 6, 8]
    begins = [event["step"] for event in passed.events() if event["event"] in ("resume", "begin")]
    assert begins == [7, 7], "what is published so costs no update"
    for step in (6, 8):
        asked.run(until(phase, step))
    assert [passed.files(step) == asked.files(step) for step in (3, 6, 8)] == [True] * 3


def test_a_torn_wanted_state_names_the_file_to_delete(tmp_path, phase):
    passed = Trajectory(tmp_path, "e" * 64)
    with expect_error(StepStopped):
        passed.run(phase, stop_after=7)
    min(tmp_path.glob("work/temporary/step-0000000006-*/checkpoint/arrays/*/c.*")).unlink()
    passed.wanted_milestones = (6,)
    with expect_error(TornCheckpointError):
        passed.run(phase)


def test_another_phase_continues_state_data_and_metrics_and_lets_an_average_enter(tmp_path, phase):
    first, second = Trajectory(tmp_path / "first", "e" * 64), Trajectory(tmp_path / "second", "f" * 64)
    first.run(phase)
    rule = SkipRule(window_steps=4, sigma=6.0, warmup_steps=2, max_consecutive=3)
    averaged = until(phase, 11, start=first.at(8), averages=(Ema(decay=0.5),), global_batch_size=8, skip=rule)
    result = second.run(averaged)
    assert result.averages
    assert "checkpoint/arrays/history.losses/c.0" in second.files(11)
    assert result.consumed_tokens == (8 * 4 + 3 * 8) * SEQUENCE_LENGTH
    metrics = second.metrics(11)
    assert len(metrics) == 11
    assert [metrics[row] for row in range(8)] == [first.metrics(8)[row] for row in range(8)]
    position = checkpoint.read_metadata(f"{second.at(11).path}/checkpoint")["data_position"]
    assert position["consumed"] == {"w" * 64: 8 * 4 + 3 * 8}
    third = Trajectory(tmp_path / "third", "a" * 64)
    left = third.run(until(phase, 12, start=second.at(11)))
    assert not left.averages
    assert not [name for name in third.files(12) if "history" in name or "average" in name]


@pytest.mark.parametrize(("warmup_steps", "warns"), [(5, False), (6, True)])
def test_a_skip_rule_that_never_has_enough_steps_is_a_warning(tmp_path, phase, caplog, warmup_steps, warns):
    shares = {"web": 1.0}
    mixture = MixtureSchedule((MixtureSegment(0, shares), MixtureSegment(2, shares)))
    rule = SkipRule(window_steps=8, sigma=6.0, warmup_steps=warmup_steps, max_consecutive=3)
    Trajectory(tmp_path, "e" * 64).run(until(phase, 8, skip=rule, mixture=mixture))
    assert ((6, 6) in [record.args for record in caplog.records]) is warns


@pytest.mark.parametrize("is_one_phase", [True, False])
def test_a_mixture_with_a_higher_loss_is_trained_on_under_a_skip_rule(tmp_path, phase, other_cache, is_one_phase):
    rule = SkipRule(window_steps=16, sigma=6.0, warmup_steps=10, max_consecutive=3)
    both = until(phase, 30, skip=rule, caches={**phase.caches, "code": other_cache})
    run = Trajectory(tmp_path / "first", "e" * 64)
    mixture = MixtureSchedule((MixtureSegment(0, {"web": 1.0}), MixtureSegment(30, {"code": 1.0})))
    if not is_one_phase:
        run.run(both)
        mixture, both = MixtureSchedule.constant({"code": 1.0}), until(both, 30, start=run.at(30))
        run = Trajectory(tmp_path / "second", "f" * 64)
    result = run.run(until(both, 40, mixture=mixture))
    metrics = run.metrics(40)
    losses = np.array([metrics[row].loss for row in range(40)])
    before = losses[14:30]
    assert losses[30] > before.mean() + max(6 * before.std(), 0.25), "far above the level before"
    assert result.num_skipped == 0


@pytest.mark.parametrize(
    ("restore", "count", "consumed"),
    [("weights_and_optimizer", 10, 8), ("weights", 2, 8), ("everything_but_optimizer", 2, 40)],
)
def test_a_phase_can_restart_the_data_or_the_optimizer(tmp_path, phase, restore, count, consumed):
    first, second = Trajectory(tmp_path / "first", "e" * 64), Trajectory(tmp_path / "second", "f" * 64)
    first.run(phase)
    second.run(until(phase, 10, start=first.at(8), restore=restore))
    metadata = checkpoint.read_metadata(f"{second.at(10).path}/checkpoint")
    assert (metadata["step"], metadata["data_position"]["consumed"]) == (10, {"w" * 64: consumed})
    saved, _ = checkpoint.load(
        f"{second.at(10).path}/checkpoint", {"optimizer": {"count": jax.ShapeDtypeStruct((), np.int32)}}, partial=True
    )
    assert int(saved["optimizer"]["count"]) == count


def test_a_checkpoint_has_the_configuration_without_execution(tmp_path, phase):
    trajectory = Trajectory(tmp_path, "e" * 64)
    trajectory.run(phase)
    facts = checkpoint.read_metadata(f"{trajectory.at(8).path}/checkpoint")["facts"]
    assert facts["model"]["hidden_size"] == 16
    assert facts["learning_rate"]["kind"] == "linear"
    assert not {"until_step", "start", "caches", "checkpoint_every_steps", "validate_every_steps"} & set(facts)
    committed = b"".join(trajectory.files(8).values())
    assert str(tmp_path).encode() not in committed
    assert b"attempt" not in committed


def test_the_cost_of_a_phase_counts_its_own_steps_only(phase):
    first = train_phase.cost(phase, Cpu(2))
    assert first.work["tokens"] == 8 * 4 * SEQUENCE_LENGTH
    start = Input(milestone=8, name="first", digest="e" * 64, path="", result=None)
    assert train_phase.cost(until(phase, 10, start=start), Cpu(2)).work["tokens"] == 2 * 4 * SEQUENCE_LENGTH


@pytest.mark.parametrize("optimizer", [None, Muon(ns_steps=2, dtype="float32")])
def test_a_phase_resumes_on_another_mesh_with_the_same_data_and_losses_within_rounding(
    tmp_path, phase, use_devices, optimizer
):
    phase = phase.model_copy(update={"optimizer": optimizer})
    whole, moved = Trajectory(tmp_path / "whole", "e" * 64), Trajectory(tmp_path / "moved", "e" * 64)
    whole.run(phase)
    moved.run(until(phase, 5))
    use_devices(8)
    moved.run(phase.model_copy(update={"context_parallel": 2, "model_parallel": 2}))
    positions = [
        checkpoint.read_metadata(f"{trajectory.at(8).path}/checkpoint")["data_position"]
        for trajectory in (whole, moved)
    ]
    assert positions[0] == positions[1]
    losses = [[trajectory.metrics(8)[row].loss for row in range(8)] for trajectory in (whole, moved)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


GANG = Gpu("H200", 4, num_hosts=2)
"""Eight devices that share parameters, as cores of one host do not."""


def gradients(trajectory: Trajectory) -> dict[str, np.ndarray]:
    """Return the first moments, which are sums of gradients."""
    path = f"{trajectory.at(8).path}/checkpoint"
    leaves = json.loads(Path(f"{path}/manifest.json").read_text())["leaves"]
    wanted = {
        name: jax.ShapeDtypeStruct(tuple(leaf["shape"]), leaf["dtype"])
        for name, leaf in leaves.items()
        if name.startswith("optimizer.mu.")
    }
    return {name: np.asarray(leaf) for name, leaf in checkpoint.load(path, wanted, partial=True)[0].items()}


@pytest.mark.parametrize(
    "axes",
    [
        {"replica_parallel": 2, "model_parallel": 2, "num_microbatches": 2},
        {"replica_parallel": 2, "context_parallel": 2},
    ],
    ids=str,
)
def test_replicas_change_rounding_only(tmp_path, phase, use_devices, monkeypatch, axes):
    drawn: list[str] = []
    build = train_step.build_train_step

    def build_recorded(*arguments, **keywords):
        take = build(*arguments, **keywords)

        def recorded(state, tokens, segment_ids, numbers):
            drawn.append(np.asarray(tokens).tobytes().hex())
            return take(state, tokens, segment_ids, numbers)

        return recorded

    monkeypatch.setattr(phase_training, "build_train_step", build_recorded)
    plain = phase.model_copy(update={"global_batch_size": 8})
    spread = plain.model_copy(update=axes)
    assert train_phase("spread", spread).digest == train_phase("plain", plain).digest
    assert train_phase.check_on is not None
    train_phase.check_on(spread, GANG)
    alone, across = Trajectory(tmp_path / "alone", "e" * 64), Trajectory(tmp_path / "across", "e" * 64)
    alone.run(plain)
    use_devices(8)
    across.resources = GANG
    across.run(spread)
    assert drawn[:8] == drawn[8:]
    mesh = across.events()[0]["mesh"]
    asked = {name: axes.get(f"{name}_parallel", 1) for name in ("replica", "model", "context")}
    assert {name: mesh[name] for name in asked} == asked
    assert math.prod(mesh.values()) == 8
    for figure in ("loss", "grad_norm"):
        figures = [[getattr(run.metrics(8)[row], figure) for row in range(8)] for run in (alone, across)]
        np.testing.assert_allclose(figures[1], figures[0], rtol=1e-5)
    expected, got = gradients(alone), gradients(across)
    assert expected.keys() == got.keys() and expected
    for name in expected:
        np.testing.assert_allclose(got[name], expected[name], atol=1e-4 * np.abs(expected[name]).max(), err_msg=name)


def with_a_wrong_bit(array: jax.Array) -> jax.Array:
    """Return the array with one wrong bit on its last device."""
    parts = [np.array(shard.data) for shard in array.addressable_shards]
    parts[-1].view(np.uint32).flat[0] ^= 1
    placed = [jax.device_put(part, shard.device) for part, shard in zip(parts, array.addressable_shards, strict=True)]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, placed)


def test_a_wrong_replica_is_an_alarm_at_the_next_digest_and_makes_nothing_good(
    tmp_path, phase, use_devices, monkeypatch
):
    build = train_step.build_train_step

    def build_wrong(*arguments, **keywords):
        take = build(*arguments, **keywords)
        steps = itertools.count(1)

        def wrong(*numbers):
            state, figures = take(*numbers)
            if next(steps) == 3:
                params = dataclasses.replace(state.params, norm=with_a_wrong_bit(state.params.norm))
                state = dataclasses.replace(state, params=params)
            return state, figures

        return wrong

    use_devices(8)
    config = phase.model_copy(update={"global_batch_size": 8, "replica_parallel": 2, "digest_every_steps": 2})
    right, wrong = Trajectory(tmp_path / "right", "e" * 64), Trajectory(tmp_path / "wrong", "e" * 64)
    for trajectory in (right, wrong):
        trajectory.resources = GANG
    right.run(config)
    assert [event for event in right.events() if event["event"] == "alarm"] == []
    monkeypatch.setattr(phase_training, "build_train_step", build_wrong)
    wrong.run(config)
    (alarm,) = [event for event in wrong.events() if event["event"] == "alarm"]
    assert (alarm["monitor"], alarm["step"], alarm["tensors"]) == ("copies", 4, ["norm"])
    assert wrong.reported[-1]["alarms"] == 1


def test_a_phase_resumes_with_another_number_of_replicas(tmp_path, phase, use_devices):
    whole, moved = Trajectory(tmp_path / "whole", "e" * 64), Trajectory(tmp_path / "moved", "e" * 64)
    kept = Ema(0.9), Ema(0.9995, "slow")  # the second is taken at every second update
    phase = phase.model_copy(update={"global_batch_size": 8, "averages": kept})
    whole.run(phase)
    use_devices(8)
    moved.resources = GANG
    for until_step, replicas in ((3, 2), (8, 8)):
        moved.run(until(phase, until_step, replica_parallel=replicas))
        assert moved.events()[0]["mesh"]["replica"] == replicas
    losses = [[trajectory.metrics(8)[row].loss for row in range(8)] for trajectory in (whole, moved)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    like = placed_shapes(phase.model, make_mesh(MeshShape(), jax.devices()[:1]), (), 0).params
    for name in ("averaged", "slow"):
        expected, got = (checkpoint.load_params(f"{run.at(8).path}/checkpoint", like, name) for run in (whole, moved))
        for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(got), strict=True):
            np.testing.assert_allclose(other, one, atol=1e-5)


def test_a_phase_has_several_averages_in_its_result(tmp_path, phase):
    kept = {"averages": (Ema(0.9), Ema(0.5, "fast"))}
    trajectory = Trajectory(tmp_path, "e" * 64)
    result = trajectory.run(until(phase, 3, **kept))
    assert result.averages == (Ema(0.9), Ema(0.5, "fast"))
    files = trajectory.files(3)
    for name in ("averaged", "fast"):
        assert f"checkpoint/arrays/averages.{name}.embed_tokens/zarr.json" in files
    facts = checkpoint.read_metadata(f"{trajectory.at(3).path}/checkpoint")
    assert facts["averages"] == ["averaged", "fast"]
    assert facts["facts"]["averages"][1] == {"decay": 0.5, "name": "fast"}


def test_averages_with_equal_names_are_an_error(phase):
    first = train_phase("first", phase.model_copy(update={"averages": (Ema(0.9),)}))
    with expect_error(ChangeError):
        first.then("second", until_step=9, averages=(Ema(0.9), Ema(0.99)))


def test_a_field_called_average_is_an_error(phase):
    first = train_phase("first", phase)
    with expect_error(ChangeError):
        first.then("second", until_step=9, average=Ema(0.9))
    with pytest.raises(ValidationError) as refused:
        TrainPhaseConfig(**dict(phase) | {"average": None})
    assert [error["loc"] for error in refused.value.errors()] == [("average",)]


OTHER_EXECUTION = {"num_microbatches": 2, "attention_kernel": "chunked", "loss_kernel": "reference", "remat": "none"}


def test_micro_batches_kernels_and_remat_are_execution_and_change_rounding_only(tmp_path, phase):
    other = phase.model_copy(update=OTHER_EXECUTION)
    assert train_phase("other", other).digest == train_phase("first", phase).digest
    whole, parts = Trajectory(tmp_path / "whole", "e" * 64), Trajectory(tmp_path / "parts", "e" * 64)
    whole.run(phase)
    parts.run(other)
    losses = [[trajectory.metrics(8)[row].loss for row in range(8)] for trajectory in (whole, parts)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    facts = [checkpoint.read_metadata(f"{run.at(8).path}/checkpoint")["facts"] for run in (whole, parts)]
    assert facts[0] == facts[1]


def test_kernels_and_blocks_are_logged_and_recorded_with_their_reasons(tmp_path, phase, caplog):
    trajectory = Trajectory(tmp_path, "e" * 64)
    with caplog.at_level(logging.INFO, phase_runs.__name__):
        trajectory.run(until(phase, 1, **OTHER_EXECUTION))
    begin = trajectory.events()[0]
    reason = begin["kernels"]["reason"]
    blocks = {"attention": "query 16", "loss": "all tokens", "scatter": "by the compiler"}
    assert begin["event"] == "phase"
    names = {"attention": "chunked", "loss": "reference", "scatter": "xla"}
    assert begin["kernels"] == names | {"reason": reason, "blocks": blocks}
    described = {kernel: f"{name}: {blocks[kernel]}" for kernel, name in names.items()}
    recorded = described | {"reason": reason}
    assert recorded.items() <= trajectory.how.items(), "which go into the record of the step"
    assert (begin["remat"], begin["num_microbatches"]) == ("none", 2)
    printed = [record.getMessage() for record in caplog.records if record.name == phase_runs.__name__]
    check_message("\n".join(printed[:3]))
    named = {"attention": "chunked: query 16", "loss": "reference: all tokens", "scatter": "xla: by the compiler"}
    assert {name: trajectory.how[name] for name in named} == named
    assert trajectory.how["device"].startswith("cpu, ") and trajectory.how["jax"] == jax.__version__


@pytest.mark.parametrize(("notice_seconds", "is_told"), [(0.3, True), (600.0, False), (None, False)])
def test_a_save_that_may_not_fit_into_the_notice_is_a_warning(tmp_path, phase, monkeypatch, notice_seconds, is_told):
    write = CheckpointFiles.write

    def slow(files, key, *arguments):
        if key.endswith("manifest.json"):
            time.sleep(0.2)
        return write(files, key, *arguments)

    monkeypatch.setattr(CheckpointFiles, "write", slow)
    trajectory = Trajectory(tmp_path, "e" * 64)
    trajectory.notice_seconds = notice_seconds
    trajectory.run(until(phase, 4))
    numbers = [event for event in trajectory.events() if event["event"] == "slow_save"]
    if not is_told:
        assert numbers == [] and trajectory.warnings == []
        return
    (event,) = numbers
    assert event["step"] == 3 and event["save_seconds"] > 0.2 and event["notice_seconds"] == 0.3
    (output,) = trajectory.warnings
    assert "--notice 60" in output, "a command to run"


@pytest.mark.parametrize(
    ("resources", "changes"),
    [
        (Cpu(2), {"attention_kernel": "splash"}),
        (Gpu("H200", 2), {"attention_kernel": "splash"}),
        (Cpu(2), {"loss_kernel": "fused"}),
        (Cpu(2), {"scatter_kernel": "pallas_tpu"}),
        (Cpu(2), {"num_microbatches": 3}),
        (Tpu("v4-8"), {"num_microbatches": 2}),
        (Tpu("v4-8", 2), {}),
        (Cpu(3), {}),
        (Tpu("v6e-16"), {"model_parallel": 8, "global_batch_size": 8}),
        (Cpu(2), {"model_parallel": 2, "global_batch_size": 1, "sequence_length": 15}),
        (Gpu("H200", 2), {"model_parallel": 4}),
        (Gpu("H200", 8, 3), {"replica_parallel": 2}),
        (Cpu(2), {"replica_parallel": 2}),
        (Tpu("v6e-4"), {"replica_parallel": 4}),
    ],
)
def test_a_plan_refuses_machines_that_cannot_run_the_phase(
    phase,
    resources,
    changes,
):
    assert train_phase.check_on is not None
    train_phase.check_on(phase, Cpu(2))
    chunked = {"num_microbatches": 2, "attention_kernel": "chunked"}
    train_phase.check_on(phase.model_copy(update=chunked), Tpu("v5litepod-1", 2))
    with expect_error(ValueError):
        train_phase.check_on(phase.model_copy(update=changes), resources)


WIDE = LlamaConfig(4096, 512, 1024, 2, 4, 2, 128, 4096)


@pytest.mark.parametrize(
    ("resources", "changes"),
    [
        (Gpu("H200", 2), {"attention_kernel": "tokamax", "compute_dtype": "float32"}),
        (Gpu("A100-80G", 2), {"attention_kernel": "tokamax", "compute_dtype": "bfloat16"}),
        (Gpu("H200", 2), {"attention_kernel": "tokamax", "sequence_length": 100}),
        (Gpu("H200", 2), {"attention_kernel": "tokamax", "model": dataclasses.replace(WIDE, head_dim=96)}),
        (Tpu("v6e-4"), {"attention_kernel": "splash", "sequence_length": 1000}),
        (Tpu("v6e-4"), {"sequence_length": 1000}),
        (Tpu("v6e-4"), {"sequence_length": 1000, "loss_kernel": "chunked_wide"}),
        (Tpu("v5litepod-4"), {"sequence_length": 128, "context_parallel": 2}),
        (Tpu("v5litepod-4"), {"sequence_length": 1023, "context_parallel": 2}),
        (Tpu("v5litepod-4"), {"scatter_kernel": "pallas_tpu", "model": dataclasses.replace(WIDE, hidden_size=384)}),
        (Gpu("H200", 8), {"model_parallel": 8}),
        (Tpu("v4-16"), {"model": dataclasses.replace(WIDE, hidden_size=500)}),
    ],
)
def test_a_plan_refuses_a_shape_for_a_kernel_or_the_mesh(phase, resources, changes, monkeypatch):
    monkeypatch.setattr("runtime.kernels.attention_tokamax.missing", lambda: None)  # whatever is installed here
    fits = {"model": WIDE, "sequence_length": 1024, "global_batch_size": 8, "compute_dtype": "bfloat16"}
    assert train_phase.check_on is not None
    train_phase.check_on(phase.model_copy(update=fits), resources)
    with expect_error(ValueError):
        train_phase.check_on(phase.model_copy(update=fits | changes), resources)


def test_kernels_are_chosen_by_the_kind_of_device_that_a_slice_has(phase, monkeypatch):
    asked = []

    def choose(shape):
        asked.append((shape.platform, shape.device_kind))
        return default_kernels(shape)

    monkeypatch.setattr("runtime.training.kernel_choice.default_kernels", choose)
    named = phase.model_copy(update={"loss_kernel": "chunked_wide", "model": WIDE, "sequence_length": 1024})
    for resources in (Tpu("v5litepod-4"), Tpu("v4-8"), Gpu("H200", 2), Cpu(2)):
        train_phase.check_on(named, resources)
    assert asked == [("tpu", "TPU v5e"), ("tpu", "TPU v4"), ("gpu", "H200"), ("cpu", "cpu")]


def test_other_rows_cannot_keep_the_data_position(phase):
    field, value = "sequence_length", SEQUENCE_LENGTH // 2
    start = train_phase("first", phase).as_input()
    other = phase.model_copy(update={"start": start, "until_step": 10, field: value, "acknowledge": (field,)})
    for restore in ("everything", "everything_but_optimizer"):
        with expect_error(RefusedConfigError) as refused:
            train_phase.check(other.model_copy(update={"restore": restore}))
        assert refused.value.cure == {"restore": "weights_and_optimizer", "acknowledge": f'["{field}", "restore"]'}
    afresh = {"restore": "weights_and_optimizer", "acknowledge": (field, "restore")}
    train_phase.check(other.model_copy(update=afresh))


def test_another_optimizer_cannot_restore_the_state_of_the_first(phase):
    start = train_phase("first", phase).as_input()
    changes = {"start": start, "until_step": 10, "optimizer": Muon(), "acknowledge": ("optimizer",)}
    for restore, instead in (("everything", "everything_but_optimizer"), ("weights_and_optimizer", "weights")):
        other = phase.model_copy(update=changes | {"restore": restore})
        with expect_error(RefusedConfigError) as refused:
            train_phase.check(other)
        assert refused.value.cure == {"restore": instead, "acknowledge": '["optimizer", "restore"]'}
        train_phase.check(other.model_copy(update={"restore": instead, "acknowledge": ("optimizer", "restore")}))


def test_the_cost_counts_the_state_and_the_products_of_the_optimizer(phase):
    adamw, muon = (
        train_phase.cost(phase.model_copy(update={"optimizer": one}), Cpu(2)) for one in (None, Muon(ns_steps=1))
    )
    iteration = sum(4 * min(shape) ** 2 * max(shape) + 2 * min(shape) ** 3 for shape in MODEL.layer_matrices)
    assert muon.work["FLOPs"] - adamw.work["FLOPs"] == 2 * 8 * iteration, (
        "two cores, each with a copy, and eight updates"
    )
    assert adamw.bytes_written - muon.bytes_written == 4 * sum(map(math.prod, MODEL.layer_matrices))


@pytest.mark.parametrize("field", ["checkpoint_every_steps", "publish_every_steps", "give_up_seconds"])
def test_a_negative_distance_is_an_error(phase, field):
    with expect_error(ValidationError):
        TrainPhaseConfig(**dict(phase) | {field: -1})


def test_a_milestone_after_skipped_steps_only_has_no_final_loss(tmp_path, phase, monkeypatch):
    trajectory = Trajectory(tmp_path, "e" * 64)
    monkeypatch.setattr(MetricsTable, "mean_loss_of_last", lambda self, steps, after_step: None)
    assert trajectory.run(phase.model_copy(update={"publish_every_steps": 1})).final_loss is None


def test_every_field_that_changes_the_numbers_is_in_the_diff_of_two_phases():
    marked = markers(TrainPhaseConfig)
    execution = {name for name, marks in marked.items() if any(isinstance(mark, RuntimeField) for mark in marks)}
    # Where it begins and stops stands in the timeline itself; of another model no phase can start.
    elsewhere = {"start", "until_step", "model"}
    assert set(marked) == execution | elsewhere | set(COMPARED_FIELDS)
    assert len(marked) == len(execution) + len(elsewhere) + len(set(COMPARED_FIELDS))


def test_another_cache_is_an_abrupt_change_and_one_of_the_same_identity_is_none(tmp_path, phase):
    start = train_phase("first", phase).as_input()
    following = phase.model_copy(update={"start": start, "until_step": 10})
    same = phase.caches["web"]
    renamed = Input(name="tokenize/renamed", digest=same.digest, path=str(tmp_path), result=same.result)
    train_phase.check(following.model_copy(update={"caches": {"web": renamed}}))
    made_anew = Input(name="tokenize/web", digest="b" * 64, path=str(tmp_path), result=same.result)
    jumping = following.model_copy(update={"caches": {"web": made_anew}})
    with expect_error(RefusedConfigError) as refused:
        train_phase.check(jumping)
    train_phase.check(jumping.model_copy(update={"acknowledge": tuple(json.loads(refused.value.cure["acknowledge"]))}))


def test_a_gradual_change_cannot_be_acknowledged(phase):
    with expect_error(ValidationError):
        TrainPhaseConfig(**dict(phase) | {"acknowledge": ("rope", "wieght_decay")})
    assert TrainPhaseConfig(**dict(phase) | {"acknowledge": ACKNOWLEDGED_FIELDS}).acknowledge == ACKNOWLEDGED_FIELDS


def test_a_plan_refuses_an_unacknowledged_change(phase):
    first = train_phase("first", phase)
    jumping = {"start": first, "until_step": 10, "weight_decay": 0.2}
    with expect_error(ValueError):
        train_phase.check(phase.model_copy(update=jumping | {"start": first.as_input()}))
    train_phase.check(phase.model_copy(update=jumping | {"start": first.as_input(), "acknowledge": ("weight_decay",)}))


def test_a_source_over_its_limit_of_epochs_is_a_warning(tmp_path, phase, cache, caplog):
    Trajectory(tmp_path / "fine", "e" * 64).run(until(phase, 2))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    few = cache.result.model_copy(update={"num_train_tokens": 100})
    small = Input(name=cache.name, digest=cache.digest, path=cache.path, result=few)
    trajectory = Trajectory(tmp_path / "small", "e" * 64)
    trajectory.run(until(phase, 2, caches={"web": small}))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING], "8 of 6 sequences"
    trajectory.run(until(phase, 8, caches={"web": small}))
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


def test_a_plan_refuses_a_mixture_that_names_a_source_without_a_cache(phase):
    assert train_phase.check is not None
    train_phase.check(phase)
    mixture = MixtureSchedule.constant({"web": 1.0, "wbe": 1.0})
    with expect_error(ValueError):
        train_phase.check(phase.model_copy(update={"mixture": mixture}))


@pytest.fixture
def mixed(phase: TrainPhaseConfig, other_cache: Input[TokenizeResult]) -> TrainPhaseConfig:
    """Return a phase with two sources under the paper's policy, each batch from both."""
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
        mean = sum(row.log_normalizer_sum for row in found) / metrics[index].num_targets
        assert mean == pytest.approx(metrics[index].mean_log_normalizer, rel=1e-5)


def test_the_log_normalizer_of_a_source_is_that_of_the_logits_over_its_targets(tmp_path, mixed, use_devices):
    use_devices(2)
    model = dataclasses.replace(
        MODEL, initialization=Initialization(factor=0.5)
    )  # log-normalisers far from the logarithm of the vocabulary
    config = until(mixed, 1, model=model, z_loss=1e-2)
    trajectory = Trajectory(tmp_path, "e" * 64)
    trajectory.run(config)

    loader = loader_of(config, phase_runs.Attempt(trajectory, None))
    batch, _ = loader.batch(DataPosition(), 0, config.global_batch_size)
    params = initial_state(model, config.seed, make_mesh(MeshShape(), jax.devices()[:1])).params
    inputs = jnp.asarray(batch.tokens), jnp.asarray(batch.segment_ids), inverse_frequencies(LLAMA2_ROPE, model.head_dim)
    scores = np.asarray(logits(model.build(), params, *inputs, computation=whole("float32")), np.float64)
    normalizer = np.log(np.exp(scores).sum(axis=-1))[:, :-1]
    has_target = batch.segment_ids[:, :-1] == batch.segment_ids[:, 1:]
    assert not has_target.all(), "documents end within rows"
    rows = {row.source: row for row in trajectory.source_losses(1)}
    assert list(rows) == ["code", "web"]
    for source, row in rows.items():
        own = has_target & (batch.source_index == loader.sources.index(source))[:, None]
        assert row.num_targets == own.sum() > 0
        assert row.log_normalizer_sum == pytest.approx(normalizer[own].sum(), rel=1e-5)


def test_a_stopped_phase_with_a_learned_mixture_ends_with_the_same_bytes(tmp_path, mixed):
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


def test_another_mixing_policy_must_be_acknowledged(mixed):
    start = train_phase("first", mixed).as_input()
    changed = mixed.model_copy(update={"start": start, "until_step": 40, "mixing": LossDrop()})
    with expect_error(ValueError):
        train_phase.check(changed)
    train_phase.check(changed.model_copy(update={"acknowledge": ("mixing",)}))


def test_a_plan_sees_the_complete_temporary_checkpoints_of_an_interrupted_phase():
    temporary = TemporaryCheckpoints("temporary", lease_epoch=3)
    complete, torn = temporary.folder_of(400), temporary.folder_of(600)
    paths = [
        f"{complete}/checkpoint/manifest.json",
        f"{complete}/metrics.parquet/000000.parquet",
        f"{torn}/metrics.parquet/000000.parquet",
    ]
    assert train_phase.resumes_at is not None
    assert list(train_phase.resumes_at([*paths, "events/a.jsonl"])) == [400]


def test_an_unacknowledged_change_has_its_option_in_the_error(phase: TrainPhaseConfig):
    jumping = train_phase("first", phase).then("second", until_step=12, weight_decay=0.5)
    assert train_phase.check is not None
    with expect_error(RefusedConfigError) as refused:
        train_phase.check(jumping.config)
    assert refused.value.cure == {"acknowledge": '["weight_decay"]'}


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_of_more_than_32_bits_is_an_error(seed):
    # What the refusal is for: only 32 bits of it make the key.
    assert (jax.random.key_data(jax.random.key(seed)) == jax.random.key_data(jax.random.key(seed % 2**32))).all()
    with expect_error(ValidationError):
        a_phase(None, seed=seed)
