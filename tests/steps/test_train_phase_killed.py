"""SIGKILL in the middle of a real training phase: every leaf and batch equals those of an undisturbed run."""

import functools
import hashlib
import itertools
import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from runtime.data.mixture import MixtureSchedule, MixtureSegment
from runtime.model.config import LLAMA3_ROPE
from runtime.optim.ema import Ema
from runtime.optim.skip_rule import SkipRule
from runtime.parallel import mesh
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.training import train_step
from runtime.training.replay import main as replay
from steps import phase_training
from steps.phase_config import TrainPhaseConfig
from tests.steps.phase_runs import MODEL, Trajectory, a_phase, cache_of

UNTIL_STEP = 12
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["jax", "equinox", "tensorstore", "pyarrow.parquet", "runtime.training.loop"])
BUILD = train_step.build_train_step


@pytest.fixture(scope="module")
def phase(tmp_path_factory: pytest.TempPathFactory) -> TrainPhaseConfig:
    return a_phase(
        cache_of(tmp_path_factory.mktemp("tokenize"), "web", last_id=MODEL.vocab_size),
        until_step=UNTIL_STEP,
        rope=LLAMA3_ROPE,
        global_batch_size=8,
        averages=(Ema(decay=0.75), Ema(0.9995, "slow")),  # the second is taken at every second update
        # The skip rule restarts in the middle.
        mixture=MixtureSchedule((MixtureSegment(0, {"web": 1.0}), MixtureSegment(UNTIL_STEP // 2, {"web": 2.0}))),
        skip=SkipRule(window_steps=4, sigma=1.0, warmup_steps=3, max_consecutive=9),  # so tight that it does skip
        digest_every_steps=2,
    )


def build_recorded(log: Path, dies_at: int | None, *arguments: Any, **keywords: Any) -> Callable:
    """The train step; what it is given is written down, and at one step it dies instead."""
    step, updates = BUILD(*arguments, **keywords), itertools.count()

    def recorded(state: Any, tokens: Any, segment_ids: Any, numbers: Any) -> Any:
        if next(updates) == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        batch = hashlib.sha256(np.asarray(tokens).tobytes() + np.asarray(segment_ids).tobytes()).hexdigest()
        with log.open("a") as file:
            file.write(f"{batch}\n")
        return step(state, tokens, segment_ids, numbers)

    return recorded


def shared_mesh(num_cores: int, *, replica: int, model: int, context: int) -> Mesh:
    """Devices without common memory, like accelerators: each holds a part of every leaf."""
    return make_mesh(MeshShape(data=num_cores), jax.devices())


def train(
    xla_flags: str | None,
    folder: Path,
    config: TrainPhaseConfig,
    num_devices: int,
    is_shared: bool,
    attempt: int,
    dies_at: int | None = None,
) -> Any:
    """Run an attempt on the first devices of this process; flags need a process without devices."""
    if xla_flags is not None:
        os.environ["XLA_FLAGS"] = xla_flags  # XLA reads them when JAX asks for the first device
    simulated = jax.devices()[:num_devices]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda *_: simulated)
        patch.setattr(jax, "device_count", lambda *_: num_devices)
        if is_shared:
            patch.setattr(mesh, "mesh_of_cores", shared_mesh)
        log = folder / f"batches-{attempt}"
        patch.setattr(phase_training, "build_train_step", functools.partial(build_recorded, log, dies_at))
        trajectory = Trajectory(folder, "e" * 64)
        trajectory.attempts = attempt - 1
        trajectory.run(config)
    return trajectory


def batches(folder: Path, attempt: int) -> list[str]:
    return (folder / f"batches-{attempt}").read_text().splitlines()


@pytest.fixture(scope="module")
def drawn() -> dict[str, list[str]]:
    """The batches of the first run of the module, which those on other devices draw too."""
    return {}


def train_to_the_end(xla_flags: str | None, *arguments: Any) -> Any:
    """Here, with the flags of the suite, or in a process that has others."""
    if xla_flags is None:
        return train(xla_flags, *arguments)
    with ProcessPoolExecutor(1, mp_context=FORKSERVER) as process:
        return process.submit(train, xla_flags, *arguments).result()


@pytest.mark.parametrize(
    ("num_devices", "is_shared", "xla_flags"),
    [
        (1, False, None),
        (2, False, None),
        (8, True, "--xla_backend_optimization_level=3"),  # the machine code of a run, which that of the suite is not
    ],
    ids=str,
)
def test_killed_at_any_step_the_next_attempt_ends_with_the_leaves_and_batches_of_an_undisturbed_run(
    tmp_path, phase, num_devices, is_shared, xla_flags, drawn, capsys
):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    undisturbed = train_to_the_end(xla_flags, whole, phase, num_devices, is_shared, 1)

    # The second save waits for the first, so behind it there is a state to go on from.
    dies_at = random.Random(num_devices).randrange(2 * phase.checkpoint_every_steps + 1, UNTIL_STEP)
    child = FORKSERVER.Process(target=train, args=(xla_flags, killed, phase, num_devices, is_shared, 1, dies_at))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL, f"at step {dies_at}"
    resumed = train_to_the_end(xla_flags, killed, phase, num_devices, is_shared, 2)

    expected, got = undisturbed.files(UNTIL_STEP), resumed.files(UNTIL_STEP)
    assert expected.keys() == got.keys()
    assert [name for name in expected if expected[name] != got[name]] == []
    assert any("/averages." in name for name in expected) and any(".nu." in name for name in expected)
    assert any("/history." in name for name in expected)
    parts_of_a_leaf = [name for name in expected if "/params.embed_tokens/c." in name]
    assert len(parts_of_a_leaf) == (num_devices if is_shared else 1)
    assert 0 < undisturbed.at(UNTIL_STEP).result.num_skipped < UNTIL_STEP
    seen, again = batches(whole, 1), batches(killed, 2)
    assert seen == drawn.setdefault("by the first", seen)
    assert len(set(seen)) == UNTIL_STEP
    first_step = UNTIL_STEP - len(again)
    assert 0 < first_step <= dies_at and first_step % phase.checkpoint_every_steps == 0, "it went on, not from scratch"
    assert (batches(killed, 1), again) == (seen[:dies_at], seen[first_step:]), f"killed at step {dies_at}"

    assert replay([str(whole / "work"), str(killed / "work")]) == 0
    assert capsys.readouterr().out
