"""A program from the disk gives the bits of one compiled afresh, and is not compiled."""

import json
import os
import pathlib
import subprocess
import sys

SCRIPT = """
import json, sys, hashlib
import jax, numpy as np
from runtime.model.config import LLAMA3_ROPE, LlamaConfig
from runtime.parallel.compilation_cache import use_compilation_cache
from runtime.parallel.mesh import MeshShape, make_mesh
from runtime.training.state import initial_state
from runtime.training.train_step import Hyperparameters, build_train_step

hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name) if "cache_hit" in name else None)
use_compilation_cache(sys.argv[1])
config = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=16, max_position_embeddings=32,
)
mesh = make_mesh(MeshShape(), jax.devices()[:1])
state = initial_state(config, 0, mesh, with_average=True)
step = build_train_step(
    config, LLAMA3_ROPE, mesh,
    attention_kernel="reference", loss_kernel="chunked", compute_dtype="float32", remat="full",
)
tokens = np.random.default_rng(0).integers(0, 64, (8, 32), dtype=np.int32)
for _ in range(3):
    state, _ = step(state, tokens, np.zeros_like(tokens), Hyperparameters(1e-2, 0.1, 0.9, 0.95, 1e-8, 1.0, 1e-3, 0.99))
digest = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)))
print(json.dumps([digest.hexdigest(), len(hits)]))
"""


def run(folder: pathlib.Path) -> tuple[str, int]:
    root = pathlib.Path(__file__).parents[3]
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(folder)],
        capture_output=True,
        text=True,
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root), "JAX_PLATFORMS": "cpu"},
    )
    assert finished.returncode == 0, finished.stderr
    digest, num_hits = json.loads(finished.stdout)
    return digest, num_hits


def test_a_cached_step_gives_the_same_bits_as_a_fresh_one_and_is_not_compiled(tmp_path: pathlib.Path) -> None:
    fresh, no_hits = run(tmp_path)
    assert no_hits == 0
    assert list(tmp_path.glob("jit_program-*"))
    cached, num_hits = run(tmp_path)
    assert num_hits > 0
    assert cached == fresh
