"""Steps for tests on a cluster, and a driver of them: python cluster_steps.py PREFIX MARKS STEP...

Each execution leaves a file in the folder MARKS with its name and node; steps can wait for a file of the test.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from marin_dag.graph.resources import Cpu
from marin_dag.graph.step import Input, Runtime, Step, StepContext, StepStopped, StopAt, step
from marin_dag.run.driver import Run
from marin_dag.run.live import display_for
from marin_dag.run.ray.backend import RayBackend
from marin_dag.store.prefix import open_store
from tests.marin_dag.toy_steps import Count, write_file

SHARDS = 6


def note(marks: str, what: str) -> None:
    """Leave a file `WHAT.NODE-ID.PID.TIME`."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    Path(marks).mkdir(parents=True, exist_ok=True)
    (Path(marks) / f"{what}.{node}.{os.getpid()}.{time.monotonic_ns()}").touch()


def notes(marks: Path, what: str = "") -> list[tuple[str, str, int]]:
    """Return (what, node id, pid) of each execution of `what`, in order of time."""
    found = [path.name.split(".") for path in marks.iterdir()] if marks.exists() else []
    kept = sorted((entry for entry in found if len(entry) == 4 and what in ("", entry[0])), key=lambda x: int(x[3]))
    return [(entry[0], entry[1], int(entry[2])) for entry in kept]


def wait_until_exists(path: Path) -> None:
    while not path.exists():
        time.sleep(0.02)


class WalkConfig(BaseModel, frozen=True, extra="forbid"):
    until_step: StopAt[int]
    start: "Input[Count] | None" = None
    stride: int = 2
    gate_at: Runtime[int] = -1
    """The step that waits until the test makes MARKS/open."""
    is_deaf: Runtime[bool] = False
    """Whether it waits even when it is asked to stop."""
    marks: Runtime[str] = ""


WalkConfig.model_rebuild()


@step(resources=Cpu(2), continues="start")
def walk(config: WalkConfig, context: StepContext) -> Count:
    """Count up; save after each step and publish every fifth."""
    published = context.milestones()
    position = Count(step=0, value=0) if config.start is None else config.start.result
    saved = Path(context.work_path) / "saved.json"
    if saved.exists():
        position = Count.model_validate_json(saved.read_text())
    note(config.marks, f"{context.name}-from-{position.step}")
    for number in range(position.step, config.until_step):
        if number == config.gate_at:
            note(config.marks, f"{context.name}-gate")
            while not (Path(config.marks) / "open").exists():
                if context.stop_requested() and not config.is_deaf:
                    raise StepStopped(f"at {number}")
                time.sleep(0.02)
        position = Count(step=number + 1, value=position.value + config.stride)
        if position.step % 5 == 0 and position.step not in published:
            write_file(f"{context.output_path}/step-{position.step}/value.txt", str(position.value))
            context.publish(position.step, f"step-{position.step}", position)
        saved.with_suffix(".new").write_text(position.model_dump_json())
        saved.with_suffix(".new").replace(saved)
    write_file(f"{context.output_path}/value.txt", str(position.value))
    return position


class SpreadConfig(BaseModel, frozen=True, extra="forbid"):
    gate: Runtime[int] = -1
    """The shard that waits until the test makes MARKS/open."""
    marks: Runtime[str] = ""


def spread_shard(item: tuple[int, int, str], path: str) -> int:
    number, gate, marks = item
    note(marks, f"shard-{number}")
    if number == gate:
        wait_until_exists(Path(marks) / "open")
    write_file(f"{path}/square.txt", str(number**2))
    return number**2


@step(resources=Cpu(0))
def spread(config: SpreadConfig, context: StepContext) -> Count:
    items = [(number, config.gate, config.marks) for number in range(SHARDS)]
    note(config.marks, "spread")
    return Count(step=SHARDS, value=sum(context.map(spread_shard, items, in_flight=3)))


def graph(marks: str, gate: int, *, is_deaf: bool = False) -> dict[str, Step[Any]]:
    main = walk("main", WalkConfig(until_step=12, gate_at=gate, is_deaf=is_deaf, marks=marks))
    return {
        "main": main,
        "branch": walk("branch", WalkConfig(until_step=8, start=main.at(step=5), stride=7, marks=marks)),
        "spread": spread("spread", SpreadConfig(gate=gate, marks=marks)),
    }


def main(arguments: Sequence[str]) -> int:
    prefix, marks, *names = arguments
    steps = graph(marks, int(os.environ.get("GATE", "-1")))
    chosen = [steps[name] for name in names]
    display = display_for(stream_is_terminal=False)
    return Run(chosen, open_store(prefix), RayBackend(), display, command="again", back_off_seconds=0.01).run()


if __name__ == "__main__":
    from tests.marin_dag.cluster_steps import main as imported  # workers must find the kinds by this module's name

    sys.exit(imported(sys.argv[1:]))
