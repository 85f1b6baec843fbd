"""Muon against AdamW: the tokens that each needs for the same loss, on the largest size of the laptop's ladder.

Each optimizer has its own best rate, from a sweep on a smaller size with as many tokens a parameter, and three seeds.
A seed trains once at a constant rate, and a cooldown gives each length. Muon's tokens to AdamW's final loss lie on
straight lines between its lengths, in logarithms of tokens.

    python benchmarks/muon_against_adamw.py --sweep --backend local     the loss at each rate
    python benchmarks/muon_against_adamw.py --backend local             the losses and the tokens
    python benchmarks/muon_against_adamw.py --time                      seconds of a step, in turns on one core
"""

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from marin_dag.cli.session import Finished
from marin_dag.graph.step import Step
from pipelines import ladder, recipe
from pipelines.output import aligned
from runtime.kernels.kernel_shape import KernelShape
from runtime.model.config import LLAMA3_ROPE
from runtime.optim.optimizer import ChosenOptimizer, Muon, chosen
from runtime.parallel.hosts import open_cores
from runtime.parallel.mesh import devices_of, mesh_of_cores
from runtime.training.kernel_choice import default_kernels
from runtime.training.state import initial_state
from runtime.training.train_step import Hyperparameters, ProgramOptions, build_train_step
from steps.ema_eval import ema_eval

OPTIMIZERS: dict[str, ChosenOptimizer] = {"adamw": None, "muon": Muon()}
SWEPT_RATES = (0.003, 0.006, 0.012, 0.024, 0.048)
"""Rates at width 64; see `Ladder.rate`."""
SWEPT_WIDTH = 32
BEST_RATES = {"adamw": 0.006, "muon": 0.006}
"""The rate of `SWEPT_RATES` with the lowest loss."""
SEEDS = (0, 1, 2)
LENGTHS = (2.5, 4, 6, 8, 10)
"""Tokens a parameter."""
TIMED_STEPS = 200


def build(arguments: argparse.Namespace) -> Sequence[Step]:
    """Return the evaluations of the sweep's rungs, or of the comparison's."""
    caches, mixture = ladder.laptop_data()
    found = []
    for prefix, of_one in (sweep() if arguments.sweep else comparison()).items():
        found += [rung.phase for rung in ladder.rungs(of_one, caches, mixture, prefix=f"{prefix}/").values()]
    return recipe.evaluate(found, max_tokens_per_domain=ladder.LAPTOP.evaluation_tokens, sampled_windows_per_domain=0)


def sweep() -> dict[str, ladder.Ladder]:
    """Return a ladder of one rung for each optimizer and rate."""
    small = dataclasses.replace(ladder.LAPTOP, widths=(SWEPT_WIDTH,), tokens_per_parameter=LENGTHS[-1:])
    return {
        f"{name}-{rate:g}": dataclasses.replace(small, rate=rate, optimizer=optimizer)
        for name, optimizer in OPTIMIZERS.items()
        for rate in SWEPT_RATES
    }


def comparison() -> dict[str, ladder.Ladder]:
    """Return a ladder of one size for each optimizer and seed."""
    large = dataclasses.replace(ladder.LAPTOP, widths=ladder.LAPTOP.widths[-1:], tokens_per_parameter=LENGTHS)
    return {
        f"{name}-{seed}": dataclasses.replace(large, rate=BEST_RATES[name], optimizer=optimizer, seed=seed)
        for name, optimizer in OPTIMIZERS.items()
        for seed in SEEDS
    }


def summary(run: Finished) -> Iterator[str]:
    """Yield the loss at the end of each length, and with the comparison what Muon needs for AdamW's final loss."""
    curves: dict[str, dict[int, float]] = {}
    for step in run.graph.steps:
        if step.kind is ema_eval and (result := run.result(step.name)) is not None:
            curves.setdefault(step.name.split("/")[1], {})[result.consumed_tokens] = result.hot_mean
    lengths = sorted({tokens for curve in curves.values() for tokens in curve})
    rows = [["bits per byte after tokens", *(f"{tokens:,}" for tokens in lengths)]]
    rows += [[name, *(f"{curve[tokens]:.4f}" for tokens in lengths)] for name, curve in curves.items()]
    yield from aligned(rows)
    if "muon-0" not in curves:
        return
    shares = []
    for seed in SEEDS:
        final = curves[f"adamw-{seed}"][lengths[-1]]
        shares.append(tokens_to(final, curves[f"muon-{seed}"]) / lengths[-1])
        yield f"seed {seed}: Muon reaches AdamW's final {final:.4f} with {shares[-1]:.2f} of its tokens"
    mean, error = float(np.mean(shares)), float(np.std(shares, ddof=1) / np.sqrt(len(shares)))
    yield f"mean {mean:.3f} ± {error:.3f} of AdamW's tokens"


def tokens_to(loss: float, curve: Mapping[int, float]) -> float:
    """Return the tokens at which a curve reaches a loss, outside its lengths on the line of the nearest two."""
    tokens, losses = np.array(sorted(curve.items())).T
    after = int(np.clip(np.searchsorted(-losses, -loss), 1, len(losses) - 1))
    slope = np.log(tokens[after] / tokens[after - 1]) / (losses[after] - losses[after - 1])
    return float(tokens[after] * np.exp(slope * (loss - losses[after])))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the choice of the sweep."""
    parser.add_argument("--sweep", action="store_true", help="train at each rate, instead of the comparison")


def step_seconds() -> dict[str, float]:
    """Return the median seconds of a training step of each optimizer on the compared size; they take turns."""
    open_cores(1)
    mesh, (width,) = mesh_of_cores(1), ladder.LAPTOP.widths[-1:]
    model = ladder.LAPTOP.model(width)
    rows = np.random.default_rng(0).integers(
        1, model.vocab_size, (ladder.LAPTOP.global_batch_size, ladder.LAPTOP.sequence_length), dtype=np.int32
    )
    numbers = Hyperparameters(ladder.LAPTOP.learning_rate(width), 0.1, 0.9, 0.95, eps=1e-8, max_norm=1.0, z_loss=0.0)
    kernels = default_kernels(
        KernelShape.of(
            devices_of(mesh),
            model,
            num_rows=len(rows),
            sequence_length=ladder.LAPTOP.sequence_length,
            compute_dtype="float32",
            num_microbatches=1,
        )
    )
    steps, states = {}, {}
    for name, optimizer in OPTIMIZERS.items():
        options = ProgramOptions(
            attention_kernel=kernels.attention,
            loss_kernel=kernels.loss,
            compute_dtype="float32",
            remat="none",
            optimizer=chosen(optimizer),
        )
        steps[name] = build_train_step(model, LLAMA3_ROPE, mesh, options)
        states[name] = initial_state(model, 0, mesh, optimizer=chosen(optimizer))
    seconds: dict[str, list[float]] = {name: [] for name in OPTIMIZERS}
    for _ in range(TIMED_STEPS):
        for name, step in steps.items():
            began = time.monotonic()
            states[name], figures = step(states[name], rows, 0 * rows, numbers)
            jax.block_until_ready(figures)
            seconds[name].append(time.monotonic() - began)
    return {name: statistics.median(found[1:]) for name, found in seconds.items()}


def main() -> int:
    """Train, or time a step; return the exit code."""
    if sys.argv[1:] == ["--time"]:
        found = step_seconds()
        print(
            f"a step takes {1_000 * found['adamw']:.1f} ms with AdamW and {1_000 * found['muon']:.1f} ms with Muon: "
            f"{found['muon'] / found['adamw']:.2f} times as long"
        )
        return 0
    return recipe.main(
        build,
        name="muon_against_adamw",
        add_arguments=add_arguments,
        summary=summary,
        variant=lambda parsed: "sweep" if parsed.sweep else "",
    )


if __name__ == "__main__":
    sys.exit(main())
