"""Claim: asynchronous checkpoints cost a run of the laptop's model at most 5 %, with one saved every 20 updates.

Both contestants are the loop of a phase (see `host_overhead.py`, whose measuring this is), the reference without any
save. The state has an average, as in most phases: four trees of float32. Writes go on while the next updates are made,
and the updates behind the last save of a turn count too. The median of the turns' ratios is the figure.

    python benchmarks/checkpoint_overhead.py
"""

import argparse
import functools
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.host_overhead import (
    HYPERPARAMETERS,
    NEVER,
    SMALLEST_BATCH,
    TOKENS_A_SOURCE,
    Cost,
    compared,
    cost_of_loop,
    events_in,
    in_turns,
)
from benchmarks.laptop_model import LaptopStep, loader_in
from benchmarks.verdict import conclude
from runtime.tracking.events import read_events

SAVE_EVERY_STEPS = 20
BAR = 1.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--updates", type=int, default=5 * SAVE_EVERY_STEPS, help="in one turn")
    arguments = parser.parse_args()
    if arguments.updates % SAVE_EVERY_STEPS:
        parser.error(f"--updates is {arguments.updates}: a turn must hold whole distances of {SAVE_EVERY_STEPS}")
    laptop = LaptopStep(SMALLEST_BATCH)
    step, fresh = laptop.step, functools.partial(laptop.state, averages=("averaged",))
    hyperparameters = HYPERPARAMETERS._replace(average_decays=(0.9,))

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        loader = loader_in(folder, tokens_a_source=TOKENS_A_SOURCE)

        def turn_of(every: int, name: str) -> Cost:
            return cost_of_loop(
                fresh(),
                step,
                loader,
                folder / name,
                arguments.updates,
                hyperparameters=hyperparameters,
                checkpoint_every_steps=every,
            )

        turn_of(SAVE_EVERY_STEPS, "first")  # compiles
        contestants: dict[str, Callable[[int], Cost]] = {
            "without": lambda turn: turn_of(NEVER, f"without-{turn}"),
            "saving": lambda turn: turn_of(SAVE_EVERY_STEPS, f"saving-{turn}"),
        }
        costs = in_turns(contestants, arguments.turns)
        saves = [
            event
            for turn in range(arguments.turns)
            for event in read_events(events_in(folder / f"saving-{turn}"))
            if event["event"] == "checkpoint"
        ]
    claim = f"a save every {SAVE_EVERY_STEPS} updates makes an update at most 5 % longer: laptop's model"
    line = compared(claim, BAR, costs["saving"], costs["without"])
    medians = {name: statistics.median(save[name] for save in saves) for name in ("blocked_seconds", "write_seconds")}
    conclude(line | medians | {"size_in_bytes": saves[0]["size_in_bytes"]})


if __name__ == "__main__":
    main()
