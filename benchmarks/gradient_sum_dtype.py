"""Claim: summing gradients over devices in bfloat16 changes the loss by less than the seed does.

The laptop's model trains on Python's standard library on eight simulated devices, with float32 and with bfloat16 sums:
scattered over all eight (one level), and scattered over four and added over two replicas (two levels). Printed: the
loss of the same held-out text by seed. Some eight minutes of two cores. The last line is JSON.

    python -m benchmarks.gradient_sum_dtype
"""

import statistics
from typing import Any

import jax
import numpy as np

from benchmarks.document_boundaries import NUM_HELD_OUT_ROWS, SCHEDULE, SEEDS, Rows, rows
from benchmarks.verdict import conclude
from pipelines.scales import LAPTOP
from runtime.model.config import LLAMA2_ROPE
from runtime.parallel.hosts import open_cores
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.training.eval_step import build_eval_step
from runtime.training.state import initial_state
from runtime.training.train_step import Hyperparameters, ProgramOptions, build_train_step

NUM_STEPS = 160
GLOBAL_BATCH_SIZE = 8
LAYOUTS = {"one level": MeshShape(data=8), "two levels": MeshShape(replica=2, data=4)}
KERNELS: dict[str, Any] = {"attention_kernel": "chunked", "loss_kernel": "chunked", "compute_dtype": "float32"}


def held_out_loss(text: Rows, seed: int, shape: MeshShape, reduce_dtype: str) -> float:
    """Train on eight devices, and return the mean loss of the held-out rows in nats."""
    mesh = make_mesh(shape, jax.devices()[:8])
    options = ProgramOptions(**KERNELS, remat="none", reduce_dtype=reduce_dtype)
    step = build_train_step(LAPTOP.model, LLAMA2_ROPE, mesh, options)
    state = initial_state(LAPTOP.model, seed, mesh)
    drawn = np.random.default_rng(seed).permutation(len(text.tokens) - NUM_HELD_OUT_ROWS)
    for index in range(NUM_STEPS):
        chosen = drawn[index * GLOBAL_BATCH_SIZE : (index + 1) * GLOBAL_BATCH_SIZE]
        numbers = Hyperparameters(SCHEDULE(index), 0.05, 0.9, 0.95, 1e-8, 1.0, 0.0)
        state, _ = step(state, text.tokens[chosen], text.segment_ids[chosen], numbers)
        jax.block_until_ready(state)  # two programs at once may each hold threads that the other waits for
    scores = build_eval_step(LAPTOP.model, LLAMA2_ROPE, mesh, **KERNELS)(
        state.params, text.tokens[-NUM_HELD_OUT_ROWS:], text.segment_ids[-NUM_HELD_OUT_ROWS:]
    )
    return float(np.asarray(scores.loss, np.float64).sum() / np.asarray(scores.has_target).sum())


def main() -> None:
    """Train with each layout, dtype and seed, and print the differences."""
    open_cores(8)
    text = rows()
    found: dict[str, Any] = {}
    noise = 0.0
    for name, shape in LAYOUTS.items():
        exact = [held_out_loss(text, seed, shape, "float32") for seed in SEEDS]
        rounded = [held_out_loss(text, seed, shape, "bfloat16") for seed in SEEDS]
        for seed, here, there in zip(SEEDS, exact, rounded, strict=True):
            print(f"{name}, seed {seed}: {here:.4f} float32, {there:.4f} bfloat16", flush=True)
        noise = max(noise, statistics.stdev(exact))
        differences = [there - here for here, there in zip(exact, rounded, strict=True)]
        found |= {f"float32, {name}": statistics.mean(exact), f"difference, {name}": statistics.mean(differences)}
    conclude(
        {
            "claim": "a sum of gradients in bfloat16 changes the held-out loss by less than the seed does",
            "holds": all(abs(found[f"difference, {name}"]) < noise for name in LAYOUTS),
            **found,
            "deviation_over_seeds": noise,
            "num_steps": NUM_STEPS,
        }
    )


if __name__ == "__main__":
    main()
