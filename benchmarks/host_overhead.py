"""Claim: data, logging and control cost at most 2 % of a step of the laptop's model.

Ours is the loop of a phase: loader, prefetch, metrics, digests, norms by part, event log, control. The reference is the
same train step over batches that are there already, called in a plain `for`, its figures fetched two updates late as
the loop does. Both run in turns of a hundred updates, each first in every other turn; the first updates of a turn, for
which batches were fetched ahead, do not count. How fast the machine is drifts by more than is to be measured, so the
two of a process, whose turns alternate within seconds, are compared.

Where a process has its memory decides over as much again: of one process, a bare loop over other arrays of the same
batches is up to 1.4 % slower or faster in all turns alike. So there are ten processes: the figure is the median of
their ratios, beside the interval that the median lies in. Checkpoints have a benchmark of their own.

The loop's own work is measured a second time, without the noise of a train step: `loop_alone` is an update whose train
step answers at once with figures that are there already, as a share of the bare step. The claim holds if that share
is below the bar as well.

With `--hosts 2` both run in two processes of one core each, joined as the hosts of a phase are: what each update costs
that all must agree on stands in the ratio then. Figures are those of the first host.

    python benchmarks/host_overhead.py
    python benchmarks/host_overhead.py --hosts 2
"""

import argparse
import functools
import json
import math
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
from scipy.stats import quantile_test

from benchmarks.laptop_model import LaptopStep, loader_in
from benchmarks.verdict import conclude
from pipelines.scales import LAPTOP
from runtime.data.loader import Loader
from runtime.data.sampler import DataPosition
from runtime.parallel.hosts import Agreement, HostRows, host_rows, join_hosts, open_cores
from runtime.parallel.mesh import mesh_of_cores
from runtime.tracking.events import EventLog
from runtime.training import run_state
from runtime.training.control import Control
from runtime.training.figures import LATE_STEPS
from runtime.training.loop import LoopParts, TrainingStopped, train
from runtime.training.profiling import Profiler
from runtime.training.saving import SavingPlan
from runtime.training.settings import TrainSettings
from runtime.training.state import TrainState
from runtime.training.temporary import TemporaryCheckpoints
from runtime.training.train_step import Hyperparameters, StepMetrics, TrainStep

BAR = 1.02
SMALLEST_BATCH = LAPTOP.batches[0]  # of the recipe: the fastest steps
NEVER = 1_000_000
TOKENS_A_SOURCE = 1_000_000
UPDATES_ALONE = 2_000
MEASURED = "measured.json"
SETTLING_UPDATES = 8
"""The loop begins with batches that were fetched ahead, and a turn with caches full of the other contestant."""
UPDATES_A_TURN = 95
"""Behind those: a turn comes past its hundredth update, which has its digest and reports its norms."""


class Cost(NamedTuple):
    """Seconds of an update."""

    wall: float
    processor: float
    """Return the processor time of all threads of the process."""


SETTINGS = TrainSettings(
    until_step=NEVER,
    sequence_length=LAPTOP.sequence_length,
    global_batch_size=SMALLEST_BATCH.global_batch_size,
    digest_every_steps=100,
    norms_every_steps=100,
)
HYPERPARAMETERS = Hyperparameters(1e-3, weight_decay=0.1, b1=0.9, b2=0.95, eps=1e-8, max_norm=1.0, z_loss=0.0)


class Watch:
    """Observer that notes when each update begins."""

    def __init__(self) -> None:
        self._wall: list[float] = []
        self._processor: list[float] = []

    def note(self) -> None:
        self._wall.append(time.perf_counter())
        self._processor.append(time.process_time())

    def __len__(self) -> int:
        return len(self._wall)

    def cost(self) -> Cost:
        """Return the mean from the first update that counts to the last."""
        counted = len(self) - 1 - SETTLING_UPDATES
        return Cost(*((times[-1] - times[SETTLING_UPDATES]) / counted for times in (self._wall, self._processor)))


def events_in(folder: Path) -> str:
    """Return the event log of this host's part of a run that `cost_of_loop` made in the folder."""
    return str(folder / f"events-{jax.process_index()}.jsonl")


def cost_of_loop(
    state: TrainState,
    step: TrainStep,
    loader: Loader,
    folder: Path,
    updates: int,
    *,
    hyperparameters: Hyperparameters = HYPERPARAMETERS,
    checkpoint_every_steps: int = NEVER,
    rows: HostRows | None = None,
) -> Cost:
    """Return the cost of an update in a run that is then stopped.

    Args:
        folder: the same on all hosts, and used by no other run.
    """
    watch = Watch()

    def timed(*arguments: object) -> tuple:
        watch.note()
        return step(*arguments)  # type: ignore[arg-type]

    saving = SavingPlan(
        temporary=TemporaryCheckpoints(str(folder / "work"), 1),
        checkpoint_every_steps=checkpoint_every_steps,
        checkpoint_every_seconds=math.inf,
        keep_good_every_steps=1_000,
        output_folder=str(folder / "output"),
        publish_every_steps=0,
        facts={},
    )
    with EventLog(events_in(folder)) as events:
        try:
            train(
                run_state.from_scratch(state),
                SETTINGS,
                LoopParts(
                    hyperparameters=lambda index: hyperparameters,
                    train_step=timed,
                    loader=loader,
                    saving=saving,
                    events=events,
                    control=Control(
                        lambda: "measured" if len(watch) > SETTLING_UPDATES + updates else "",
                        agree=Agreement(folder.name),
                    ),
                    profiler=Profiler(str(folder / "profiles"), events),
                    rows=rows,
                ),
            )
        except TrainingStopped:
            assert len(watch) == SETTLING_UPDATES + updates + 1, "stopped by something else than the benchmark"
            return watch.cost()
    raise AssertionError("the run was not stopped")


def cost_of_loop_alone(
    state: TrainState, step: TrainStep, loader: Loader, folder: Path, *, rows: HostRows | None = None
) -> float:
    """Return the seconds of the loop's own work for an update; its train step answers at once with known figures."""
    answers: list[StepMetrics] = []

    def at_once(state: TrainState, *arguments: object) -> tuple[TrainState, StepMetrics]:
        if not answers:
            state, answer = step(state, *arguments)  # type: ignore[arg-type]
            answers.append(jax.block_until_ready(answer))
        return state, answers[0]

    return cost_of_loop(state, at_once, loader, folder, UPDATES_ALONE, rows=rows).wall


def cost_of_steps(
    state: TrainState, step: TrainStep, batches: list, updates: int, *, rows: HostRows | None = None
) -> Cost:
    """Return the cost of an update by the bare train step."""
    watch, pending = Watch(), []
    for index in range(SETTLING_UPDATES + updates + 1):
        watch.note()
        batch = batches[index % len(batches)]
        tokens, segment_ids = batch.tokens, batch.segment_ids
        if rows is not None:
            tokens, segment_ids = rows.placed(tokens), rows.placed(segment_ids)
        state, metrics = step(state, tokens, segment_ids, HYPERPARAMETERS)
        pending.append(metrics)
        if len(pending) > LATE_STEPS:
            jax.device_get(pending.pop(0))
    return watch.cost()


def in_turns(contestants: dict[str, Callable[[int], Cost]], turns: int) -> dict[str, list[Cost]]:
    """Return each contestant's cost in each turn; each turn has another order."""
    costs: dict[str, list[Cost]] = {name: [] for name in contestants}
    for turn in range(turns):
        for name in list(contestants)[:: 1 if turn % 2 else -1]:
            costs[name].append(contestants[name](turn))
        shown = (f"{1e3 * of_turns[-1].wall:.2f} ms {name}" for name, of_turns in costs.items())
        print(f"turn {turn}: {', '.join(shown)}", flush=True)
    return costs


def compared(claim: str, bar: float, ours: list[Cost], reference: list[Cost]) -> dict[str, object]:
    """Return the last line: each cost against the reference of the same turn."""
    walls = [mine.wall / other.wall for mine, other in zip(ours, reference, strict=True)]
    processor = [mine.processor / other.processor for mine, other in zip(ours, reference, strict=True)]
    ends = quantile_test(walls, q=1, p=0.5).confidence_interval(0.95)  # of whatever distribution the ratios are
    return {
        "claim": claim,
        "ours": statistics.median(cost.wall for cost in ours),
        "reference": statistics.median(cost.wall for cost in reference),
        "ratio": round(statistics.median(walls), 4),
        # Of fewer than six there is none.
        "interval_at_95_percent": [round(end, 4) if math.isfinite(end) else None for end in (ends.low, ends.high)],
        "bar": bar,
        "holds": statistics.median(walls) <= bar,
        "unit": "seconds an update",
        "ratio_of_processor_time": round(statistics.median(processor), 4),
        "load": round(os.getloadavg()[0], 1),
        "jax": jax.__version__,
        "device": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
    }


def measured_anew(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what `measure` finds in new processes, one for each host."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
        free.close()
        command = [sys.executable, __file__, "--turns", str(arguments.turns), "--updates", str(arguments.updates)]
        command += ["--hosts", str(arguments.hosts), "--host", coordinator, folder]
        hosts = [
            subprocess.Popen([*command, str(index)], stdout=None if index == 0 else subprocess.DEVNULL)
            for index in range(arguments.hosts)
        ]
        if failed := [host.returncode for host in hosts if host.wait()]:
            sys.exit(f"a measuring process ended with status {failed[0]}; its error is above.")
        found: dict[str, Any] = json.loads(Path(folder, MEASURED).read_text())
    return found


def measure(arguments: argparse.Namespace, folder: Path, laptop: LaptopStep, rows: HostRows | None = None) -> None:
    """Leave the costs of both contestants in `folder`; run in a measuring process.

    Args:
        rows: rows that are read of each batch; None reads all.
    """
    step, fresh = laptop.step, laptop.state
    caches = folder / f"caches-{jax.process_index()}"
    caches.mkdir()
    loader, position, batches = loader_in(caches, tokens_a_source=TOKENS_A_SOURCE), DataPosition(), []
    read = slice(None) if rows is None else rows.rows
    for index in range(8):
        batch, position = loader.batch(position, index, SMALLEST_BATCH.global_batch_size, rows=read)
        batches.append(batch)
    bare = functools.partial(cost_of_steps, step=step, batches=batches, rows=rows)
    looped = functools.partial(cost_of_loop, step=step, loader=loader, rows=rows)
    bare(fresh(), updates=4)
    looped(fresh(), folder=folder / "first", updates=100)  # compiles the step, and the digests
    costs = in_turns(
        {
            "bare": lambda turn: bare(fresh(), updates=arguments.updates),
            "looped": lambda turn: looped(fresh(), folder=folder / str(turn), updates=arguments.updates),
        },
        arguments.turns,
    )
    found: dict[str, Any] = {name: mean_of(of_turns) for name, of_turns in costs.items()}
    found["alone"] = cost_of_loop_alone(fresh(), step, loader, folder / "alone", rows=rows)
    if jax.process_index() == 0:
        (folder / MEASURED).write_text(json.dumps(found))


def mean_of(turns: list[Cost]) -> Cost:
    """Return the mean of as many turns in which a contestant was first as second, so that a drift cancels out."""
    return Cost(*map(statistics.fmean, zip(*turns, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--turns", type=int, default=2, help="in one process")
    parser.add_argument("--updates", type=int, default=UPDATES_A_TURN, help="in one turn")
    parser.add_argument("--hosts", type=int, default=1, help="processes of one core each")
    parser.add_argument("--host", nargs=3, metavar=("COORDINATOR", "FOLDER", "INDEX"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.turns % 2:
        parser.error(f"--turns is {arguments.turns}: each is first in every other one, so there must be pairs of them")
    if arguments.host is not None:
        be_a_host(arguments, *arguments.host)
        return
    found = [measured_anew(arguments) for _ in range(arguments.processes)]
    ours, reference = ([Cost(*each[name]) for each in found] for name in ("looped", "bare"))
    claim = "the loop around the train step takes at most 2 % of its time, laptop's model, smallest batch"
    line = compared(claim, BAR, ours, reference)
    alone = statistics.median(each["alone"] / bare.wall for each, bare in zip(found, reference, strict=True))
    holds = line["holds"] and alone <= BAR - 1
    conclude(line | {"hosts": arguments.hosts, "loop_alone": round(alone, 4), "holds": holds})


def be_a_host(arguments: argparse.Namespace, coordinator: str, folder: str, index: str) -> None:
    """Measure in this process, as one of several hosts where there are several."""
    if arguments.hosts == 1:
        measure(arguments, Path(folder), LaptopStep(SMALLEST_BATCH))
        return
    open_cores(1, is_gang=True)
    join_hosts(coordinator=coordinator, num_hosts=arguments.hosts, index=int(index))
    mesh = mesh_of_cores(1)
    rows = host_rows(mesh, SMALLEST_BATCH.global_batch_size)
    measure(arguments, Path(folder), LaptopStep(SMALLEST_BATCH, mesh), rows)


if __name__ == "__main__":
    main()
