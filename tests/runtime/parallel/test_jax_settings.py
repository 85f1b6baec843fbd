"""JAX settings: nothing in a user's environment changes a bit unnoticed, and a program compiles once on a machine."""

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import jax
import numpy as np

from runtime.model.llama.config import LlamaConfig
from runtime.parallel import jax_settings
from runtime.parallel.jax_settings import PINNED, changed_by_environment, settle_jax
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.training.state import _initialization, initial_state
from runtime.training.train_step import Hyperparameters, _train_program
from tests.runtime.training.plain_step import plain_step

ROOT = Path(__file__).parents[3]
CONFIG = LlamaConfig(64, 32, 48, 2, 2, 1, 16, 32)
NUMBERS = Hyperparameters(1e-2, 0.1, 0.9, 0.95, 1e-8, 1.0, 1e-3)
CHANGES = [
    ("jax_threefry_partitionable", False),
    ("jax_enable_x64", True),
    ("jax_random_seed_offset", 7),
    ("jax_disable_jit", True),
    ("jax_disable_most_optimizations", True),
    ("jax_default_matmul_precision", "bfloat16"),
    ("jax_numpy_dtype_promotion", "standard"),
    ("jax_default_prng_impl", "rbg"),
]
COMPILE = """
import jax, jax.monitoring, json, sys
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name) if "cache_hits" in name else None)
from runtime.parallel import jax_settings
jax_settings.LEAST_COMPILE_SECONDS = 0  # a fast machine compiles this program in less
jax_settings.settle_jax()
import jax.numpy as jnp
import numpy as np
def steps(x):
    for index in range(60):
        x = jnp.sin(x @ x + index) / (1 + jnp.abs(x))
    return x
value = np.asarray(jax.jit(steps)(np.ones((8, 8), np.float32)))  # the only program
print(float(value.sum()), len(hits), jax.config.jax_compilation_cache_dir)
"""


def two_steps() -> list[np.ndarray]:
    """Return the leaves after two training steps from scratch, with programs compiled for the settings in force."""
    _train_program.cache_clear()
    _initialization.cache_clear()
    jax.clear_caches()
    settle_jax()
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, CONFIG.vocab_size, (4, 32), dtype=np.int32)
    state, step = initial_state(CONFIG, 3, mesh), plain_step(CONFIG, mesh)
    for _ in range(2):
        state, _ = step(state, tokens, np.zeros_like(tokens), NUMBERS)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


def test_settings_of_the_user_change_no_bit_of_a_run():
    as_pinned = two_steps()
    before = {name: jax.config.values[name] for name, _ in CHANGES}
    try:
        for name, value in CHANGES:
            jax.config.update(name, value)
        found = two_steps()
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
    assert all(mine.dtype == theirs.dtype for mine, theirs in zip(as_pinned, found, strict=True))
    assert all(mine.tobytes() == theirs.tobytes() for mine, theirs in zip(as_pinned, found, strict=True))


def test_every_pinned_setting_is_tried():
    assert PINNED.keys() <= {name for name, _ in CHANGES}


def test_settings_that_change_a_program_are_recorded_and_no_others(monkeypatch):
    for name in [name for name in os.environ if name.startswith(jax_settings.RECORDED)]:
        monkeypatch.delenv(name)
    assert changed_by_environment() == "nothing"
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=/tmp --xla_cpu_collective_call_terminate_timeout_seconds=9")
    assert changed_by_environment() == "nothing"
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true --xla_dump_to=/tmp")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    assert changed_by_environment() == "NVIDIA_TF32_OVERRIDE=1; XLA_FLAGS=--xla_cpu_enable_fast_math=true"


def environment(home: Path, **others: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    return kept | {"MARIN_DAG_CACHE": str(home), "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"} | others


def start(home: Path, **others: str) -> subprocess.Popen:
    command = [sys.executable, "-W", "error::UserWarning", "-c", COMPILE]
    return subprocess.Popen(command, env=environment(home, **others), stdout=subprocess.PIPE, text=True)


def result(process: subprocess.Popen) -> list[str]:
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return printed.split()


def test_processes_that_start_at_once_share_what_they_compile_and_a_later_one_compiles_nothing(tmp_path):
    first, second = [start(tmp_path) for _ in range(2)]
    (value, _, folder), (other, _, _) = result(first), result(second)
    assert value == other and Path(folder).parent == tmp_path / "programs"
    programs = list(Path(folder).glob("*steps*-cache"))
    assert len(programs) == 1
    assert result(start(tmp_path))[:2] == [value, "1"]

    # A process was killed while it wrote: the next one compiles, and writes the whole program.
    programs[0].write_bytes(programs[0].read_bytes()[:-9])
    (Path(folder) / "checked").unlink()
    assert result(start(tmp_path))[:2] == [value, "0"]
    assert zlib.decompress(programs[0].read_bytes())

    own = str(tmp_path / "own")
    assert result(start(tmp_path, JAX_COMPILATION_CACHE_DIR=own))[2] == own


def test_a_home_that_cannot_be_written_keeps_no_programs(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text(json.dumps("not a folder"))
    assert result(start(blocked))[1:] == ["0", "None"]


def test_processors_that_run_other_instructions_have_folders_of_their_own(monkeypatch):
    mine = jax_settings._machine()
    assert jax_settings._machine() == mine
    monkeypatch.setattr(jax_settings.Path, "read_text", lambda *_, **__: "model name: another\nflags: sse2\n")
    assert jax_settings._machine() != mine
