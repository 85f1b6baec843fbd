"""Every setting of a phase reaches the update, the program and the checkpoints: a wrong config is found too late."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from runtime.data.mixture import MixtureSchedule, MixtureSegment
from runtime.model.config import LLAMA2_ROPE, LLAMA3_ROPE
from runtime.optim.ema import Ema
from runtime.optim.optimizer import Muon, chosen
from runtime.optim.schedule import Constant, Cycles, Linear, WsdS
from runtime.optim.skip_rule import SkipRule
from runtime.training import loop, train_step
from runtime.training.train_step import Hyperparameters, ProgramOptions
from steps import phase_training
from steps.phase_config import TrainPhaseConfig, hyperparameters
from tests.catalogue import expect_error
from tests.steps.phase_runs import MODEL, Trajectory, a_phase, cache_of

FIRST = {
    "until_step": 3,
    "rope": LLAMA3_ROPE,
    "learning_rate": Linear(peak_value=3e-2, end_value=1e-3, start_step=0, decay_steps=7),
    "optimizer": Muon(ns_steps=2),
    "weight_decay": 0.05,
    "b1": 0.8,
    "b2": 0.91,
    "eps": 1e-7,
    "max_norm": 0.7,
    "z_loss": 3e-4,
    "averages": (Ema(decay=0.6, name="quick"), Ema(decay=0.9995, name="apart")),
    "mixture": MixtureSchedule((MixtureSegment(0, {"web": 1.0}), MixtureSegment(2, {"web": 2.0}))),
    "skip": SkipRule(window_steps=5, sigma=7.0, warmup_steps=3, max_consecutive=2),
    "compute_dtype": "bfloat16",
    "reduce_dtype": "bfloat16",
    "attention_kernel": "reference",
    "loss_kernel": "reference",
    "remat": "dots",
    "num_microbatches": 2,
    "checkpoint_every_steps": 2,
    "checkpoint_every_seconds": 123.0,
    "keep_good_every_steps": 500,
    "publish_every_steps": 3,
    "digest_every_steps": 2,
    "norms_every_steps": 3,
    "validate_every_steps": 2,
    "validation_tokens_per_source": 16,
}
"""No value is a default, and none is that of `SECOND`."""
SECOND = {
    "until_step": 6,
    "rope": LLAMA2_ROPE,
    "learning_rate": Constant(value=2e-3),
    "optimizer": None,
    "restore": "everything_but_optimizer",
    "weight_decay": 0.2,
    "b1": 0.85,
    "b2": 0.97,
    "eps": 1e-6,
    "max_norm": 1.3,
    "z_loss": 5e-4,
    "averages": (Ema(decay=0.7, name="quick"),),
    "mixture": MixtureSchedule((MixtureSegment(0, {"web": 2.0}), MixtureSegment(4, {"web": 3.0}))),
    "skip": None,
    "compute_dtype": "float32",
    "reduce_dtype": "float32",
    "attention_kernel": "chunked",
    "loss_kernel": "chunked",
    "remat": "none",
    "num_microbatches": 1,
    "checkpoint_every_steps": 3,
    "checkpoint_every_seconds": math.inf,
    "keep_good_every_steps": 700,
    "publish_every_steps": 5,
    "digest_every_steps": 0,
    "norms_every_steps": 7,
    "validate_every_steps": 3,
    "validation_tokens_per_source": 32,
}
PROGRAM = (
    "compute_dtype", "reduce_dtype", "attention_kernel", "loss_kernel", "scatter_kernel", "remat", "num_microbatches",
    "optimizer",
)  # fmt: skip
SAVING = ("checkpoint_every_steps", "checkpoint_every_seconds", "keep_good_every_steps", "publish_every_steps")


class Seen:
    """Values that a phase passed to the runtime."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.built: list[dict[str, Any]] = []
        self.numbers: list[Hyperparameters] = []
        self.trained: list[tuple[Any, Any]] = []
        build, train = train_step.build_train_step, loop.train

        def recorded_build(model: Any, rope: Any, mesh: Any, options: ProgramOptions) -> Callable:
            self.built.append({"model": model, "rope": rope, **vars(options)})
            update = build(model, rope, mesh, options)

            def recorded(state: Any, tokens: Any, segment_ids: Any, numbers: Hyperparameters) -> Any:
                self.numbers.append(numbers)
                return update(state, tokens, segment_ids, numbers)

            return recorded

        def recorded_train(run: Any, settings: Any, parts: Any, **options: Any) -> Any:
            self.trained.append((settings, parts))
            return train(run, settings, parts, **options)

        patch.setattr(phase_training, "build_train_step", recorded_build)
        patch.setattr(phase_training, "train", recorded_train)


def kept(average: Ema, step: int) -> tuple[str, float]:
    """The slow one of these takes the weights of every second update."""
    if average.decay == 0.9995:
        return average.name, 0.9995**2 if step % 2 else 1.0
    return average.name, average.decay


def expected(config: TrainPhaseConfig, step: int) -> Hyperparameters:
    """Return the numbers of the step after `step` finished ones, straight from the recipe."""
    return Hyperparameters(
        learning_rate=config.learning_rate(step),
        weight_decay=config.weight_decay,
        b1=config.b1,
        b2=config.b2,
        eps=config.eps,
        max_norm=config.max_norm,
        z_loss=config.z_loss,
        skip_sigma=math.inf if config.skip is None else config.skip.sigma,
        skip_warmup_steps=0 if config.skip is None else config.skip.warmup_steps,
        skip_restarts=step in {segment.start_step for segment in config.mixture.segments},
        average_decays=tuple(share for _, share in sorted(kept(each, step) for each in config.averages)),
    )


def test_the_skip_rule_restarts_where_the_mixture_or_the_level_of_the_learning_rate_changes(tmp_path):
    mixture = MixtureSchedule((MixtureSegment(0, {"web": 1.0}), MixtureSegment(7, {"web": 2.0})))
    cycles = WsdS(peak_value=1e-2, end_value=1e-3, warmup_steps=2, cycles=(Cycles(0, 5, 2), Cycles(10, 3, 1)))
    config = a_phase(cache_of(tmp_path, "web", last_id=8), mixture=mixture, learning_rate=cycles)
    restarts = [step for step in range(17) if hyperparameters(config, step).skip_restarts]
    assert restarts == [0, 5, 7, 10, 13, 16]


@pytest.mark.usefixtures("use_devices")
@pytest.mark.parametrize(("kernel", "asked"), [("pallas_tpu", 1), ("xla", 0)])
def test_a_phase_with_the_scatter_kernel_first_checks_its_sums(tmp_path, monkeypatch, kernel, asked):
    meshes = []
    build = train_step.build_train_step

    def built(model: Any, rope: Any, mesh: Any, options: ProgramOptions) -> Callable:
        return build(model, rope, mesh, dataclasses.replace(options, scatter_kernel="xla"))

    monkeypatch.setattr(phase_training, "build_train_step", built)
    monkeypatch.setattr(phase_training, "scatter_blocks", lambda *_: "in parts")
    monkeypatch.setattr(phase_training, "check_sums", lambda mesh, dtype: meshes.append((mesh, dtype)))
    phase = a_phase(cache_of(tmp_path / "cache", "web", last_id=MODEL.vocab_size), scatter_kernel=kernel, until_step=1)
    Trajectory(tmp_path / "phase", "f" * 64).run(phase)
    assert [dtype for _, dtype in meshes] == [phase.reduce_dtype] * asked


@pytest.mark.usefixtures("use_devices")
def test_a_wrong_loss_kernel_is_logged_and_trains_nothing(tmp_path, wrong_loss_kernel):
    run = Trajectory(tmp_path / "phase", "f" * 64)
    with expect_error(RuntimeError):
        run.run(a_phase(cache_of(tmp_path / "cache", "web", last_id=MODEL.vocab_size), until_step=1))
    assert run.how["loss"] == "mosaic_gpu: in tiles"
    assert [event["kernels"]["loss"] for event in run.events() if event["event"] == "phase"] == ["mosaic_gpu"]
    assert run.records == {}


@pytest.mark.usefixtures("use_devices")
def test_each_setting_reaches_exactly_the_steps_of_its_phase(tmp_path, monkeypatch):
    seen = Seen(monkeypatch)
    cache = cache_of(tmp_path / "cache", "web", last_id=MODEL.vocab_size)
    first = a_phase(cache, **FIRST)
    run = Trajectory(tmp_path / "first", "f" * 64)
    run.run(first)
    second = a_phase(cache, start=run.at(3), **SECOND)
    branch = Trajectory(tmp_path / "second", "s" * 64)
    branch.run(second)

    assert seen.numbers == [expected(first if step < 3 else second, step) for step in range(6)]
    assert len(set(seen.numbers[:3])) == 3, "the learning rate moves"
    assert [numbers.skip_restarts for numbers in seen.numbers] == [True, False, True, False, True, False]
    for config, built, trained in zip((first, second), seen.built, seen.trained, strict=True):
        settings = {name: getattr(config, name) for name in ("model", "rope", *PROGRAM)}
        assert built.items() >= (settings | {"optimizer": chosen(config.optimizer)}).items()
        settings, parts = trained
        saving = parts.saving
        assert [getattr(saving, name) for name in SAVING] == [getattr(config, name) for name in SAVING]
        assert (settings.until_step, settings.global_batch_size) == (config.until_step, config.global_batch_size)
        named = ("digest_every_steps", "norms_every_steps")
        assert settings.skip_rule == config.skip
        assert [getattr(settings, name) for name in named] == [getattr(config, name) for name in named]
        begins = {segment.start_step for segment in config.mixture.segments}
        watched = [not settings.monitors_reset_at(step) for step in range(6)]
        assert watched == [step > config.begin_step and step not in begins for step in range(6)]
        validation = parts.validation
        (num_windows,) = validation.held_out.domains.values()
        assert num_windows * config.sequence_length == config.validation_tokens_per_source
        steps = validation.every_steps, validation.begin_step, validation.until_step
        assert steps == (config.validate_every_steps, config.begin_step, config.until_step)
    plain = a_phase(cache)
    proves_nothing = [name for name, value in FIRST.items() if value in (SECOND[name], getattr(plain, name))]
    assert proves_nothing == []


@pytest.mark.parametrize("field", ["compute_dtype", "reduce_dtype"])
def test_float16_is_an_error(tmp_path, field):
    """Five bits of exponent: BLOOM no longer used it after tr8."""
    config = a_phase(cache_of(tmp_path, "web", last_id=8))
    for dtype in ("float32", "bfloat16"):
        assert TrainPhaseConfig(**{**dict(config), field: dtype})
    with expect_error(ValidationError):
        TrainPhaseConfig(**{**dict(config), field: "float16"})
