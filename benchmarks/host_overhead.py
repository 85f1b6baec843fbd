"""Claim: data, logging and control cost at most 2 % of a step of the laptop's model.

Ours is the loop of a phase: loader, prefetch, metrics, event log, control. The reference is the same train step over
batches that are there already, called in a plain `for`, its figures fetched two updates late as the loop does. Both run
in turns of so many updates; the medians of the time an update are compared. Checkpoints have a benchmark of their own.

    python benchmarks/host_overhead.py
"""

import argparse
import functools
import json
import math
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax

from benchmarks.laptop_model import LaptopStep, loader_in
from pipelines.scales import LAPTOP
from runtime.data.loader import DataPosition, Loader
from runtime.tracking.events import EventLog
from runtime.training import run_state
from runtime.training.control import Control
from runtime.training.loop import METRICS_LATE_STEPS, TrainingStopped, TrainSettings, train
from runtime.training.saving import SavingPlan
from runtime.training.state import TrainState
from runtime.training.temporary import TemporaryCheckpoints
from runtime.training.train_step import TrainStep

BAR = 1.02
GLOBAL_BATCH_SIZE = LAPTOP.batch_sizes[0]  # the smallest one of the recipe: the fastest steps
NEVER = 1_000_000
TOKENS_A_SOURCE = 1_000_000


SETTINGS = TrainSettings(
    until_step=NEVER,
    sequence_length=LAPTOP.sequence_length,
    global_batch_size=GLOBAL_BATCH_SIZE,
    learning_rate=lambda step: 1e-3,
    weight_decay=0.1,
    b1=0.9,
    b2=0.95,
    eps=1e-8,
    max_norm=1.0,
    z_loss=0.0,
    average_decay=None,
)


def seconds_of_loop(state: TrainState, step: TrainStep, loader: Loader, folder: Path, updates: int) -> float:
    """Seconds an update between the first and the last of a run that is then stopped."""
    moments: list[float] = []

    def timed(*arguments: object) -> tuple:
        moments.append(time.perf_counter())
        return step(*arguments)  # type: ignore[arg-type]

    saving = SavingPlan(
        temporary=TemporaryCheckpoints(str(folder / "work"), 1),
        checkpoint_every_steps=NEVER,
        checkpoint_every_seconds=math.inf,
        output_folder=str(folder / "output"),
        publish_every_steps=0,
        facts={},
    )
    with EventLog(str(folder / "events.jsonl")) as events:
        try:
            train(
                run_state.from_scratch(state),
                settings=SETTINGS,
                train_step=timed,
                loader=loader,
                saving=saving,
                events=events,
                control=Control(lambda: len(moments) > updates),
                on_milestone=lambda run, milestone: None,
            )
        except TrainingStopped:
            assert len(moments) == updates + 1, "stopped by something else than the benchmark"
            return (moments[-1] - moments[0]) / (len(moments) - 1)
    raise AssertionError("the run was not stopped")


def seconds_of_steps(state: TrainState, step: TrainStep, batches: list, updates: int) -> float:
    """The same of the bare train step."""
    moments, pending = [], []
    for index in range(updates + 1):
        moments.append(time.perf_counter())
        batch = batches[index % len(batches)]
        state, metrics = step(state, batch.tokens, batch.segment_ids, SETTINGS.hyperparameters(index))
        pending.append(metrics)
        if len(pending) > METRICS_LATE_STEPS:
            jax.device_get(pending.pop(0))
    return (moments[-1] - moments[0]) / (len(moments) - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--updates", type=int, default=40, help="in one turn")
    arguments = parser.parse_args()
    laptop = LaptopStep()
    step, fresh = laptop.step, functools.partial(laptop.state, with_average=False)
    with_loop, bare = [], []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        loader, position, batches = loader_in(folder, tokens_a_source=TOKENS_A_SOURCE), DataPosition(), []
        for index in range(8):
            batch, position = loader.batch(position, index, GLOBAL_BATCH_SIZE)
            batches.append(batch)
        seconds_of_steps(fresh(), step, batches, 4)  # compiles
        for turn in range(arguments.turns):
            bare.append(seconds_of_steps(fresh(), step, batches, arguments.updates))
            with_loop.append(seconds_of_loop(fresh(), step, loader, folder / str(turn), arguments.updates))
            print(f"turn {turn}: {1e3 * bare[-1]:.2f} ms bare, {1e3 * with_loop[-1]:.2f} ms in the loop", flush=True)
    ours, reference = statistics.median(with_loop), statistics.median(bare)
    line = {
        "claim": "the loop around the train step takes at most 2 % of its time, laptop's model, smallest batch",
        "ours": ours,
        "reference": reference,
        "ratio": round(ours / reference, 4),
        "bar": BAR,
        "holds": ours / reference <= BAR,
        "unit": "seconds an update",
        "load": round(os.getloadavg()[0], 1),
        "jax": jax.__version__,
        "device": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
