"""What asynchronous checkpoints cost a run at laptop scale: the same updates with and without a save every 20.

Runs with and without saves take turns, so that a machine that slows down slows both; the medians are compared.
The last line is JSON: claim, ours, reference, ratio, bar, holds.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import numpy as np

from runtime.kernels.choice import default_kernels
from runtime.model.config import LLAMA2_ROPE, LlamaConfig
from runtime.parallel.mesh import MeshShape, make_mesh, platform
from runtime.training import checkpoint
from runtime.training.state import TrainState, initial_state
from runtime.training.train_step import Hyperparameters, build_train_step

SAVE_EVERY_STEPS = 20
BAR = 1.05
MODEL = LlamaConfig(
    vocab_size=4096,
    hidden_size=128,
    intermediate_size=352,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=128,
)
BATCH = (8, 128)
TOLD = Hyperparameters(1e-3, 0.1, 0.9, 0.95, 1e-8, 1.0, 1e-4, 0.995)


def seconds_for(steps: int, folder: Path | None, state: TrainState, train_step, tokens: np.ndarray) -> tuple:  # type: ignore[no-untyped-def,type-arg]
    """Wall time of `steps` updates, the last save not waited for; the state is used up."""
    segment_ids = np.zeros_like(tokens)
    blocked, saves = 0.0, []
    jax.block_until_ready(state)
    began = time.perf_counter()
    for step in range(1, steps + 1):
        state, metrics = train_step(state, tokens, segment_ids, TOLD)
        metrics.loss.block_until_ready()
        if folder is not None and step % SAVE_EVERY_STEPS == 0:
            saves.append(checkpoint.save(str(folder / f"{step}" / "checkpoint"), state, {"step": step}))
            blocked += saves[-1].snapshot_seconds
    jax.block_until_ready(state)
    elapsed = time.perf_counter() - began
    for save in saves:
        save.wait()
    return elapsed, blocked, state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40, help="updates a turn")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    mesh = make_mesh(MeshShape(data=jax.device_count()))
    kernels = default_kernels(platform(mesh), sequence_length=BATCH[1])
    train_step = build_train_step(
        MODEL,
        LLAMA2_ROPE,
        mesh,
        attention_kernel=kernels.attention,
        loss_kernel=kernels.loss,
        compute_dtype=np.float32,
        remat="none",
    )
    state = initial_state(MODEL, 0, mesh, with_average=True)
    tokens = np.random.default_rng(0).integers(0, MODEL.vocab_size, BATCH, dtype=np.int32)
    _, _, state = seconds_for(3, None, state, train_step, tokens)  # compiles
    with_saves, without, blocked_shares = [], [], []
    for turn in range(arguments.turns):
        plain, _, state = seconds_for(arguments.steps, None, state, train_step, tokens)
        with tempfile.TemporaryDirectory() as folder:
            saving, blocked, state = seconds_for(arguments.steps, Path(folder), state, train_step, tokens)
        without.append(plain)
        with_saves.append(saving)
        blocked_shares.append(blocked / saving)
        print(
            f"turn {turn}: {plain:.3f} s plain, {saving:.3f} s saving, {blocked * 1e3:.1f} ms of it blocked", flush=True
        )
    ours = statistics.median(with_saves) / arguments.steps
    reference = statistics.median(without) / arguments.steps
    device = f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    print(f"{MODEL.num_parameters:,} parameters, {device}, jax {jax.__version__}")
    print(
        json.dumps(
            {
                "claim": f"a save every {SAVE_EVERY_STEPS} steps makes a step at most 5 % longer",
                "ours": ours,
                "reference": reference,
                "ratio": ours / reference,
                "bar": BAR,
                "holds": ours / reference <= BAR,
                "unit": "seconds a step",
                "blocked_share": statistics.median(blocked_shares),
            }
        )
    )


if __name__ == "__main__":
    main()
