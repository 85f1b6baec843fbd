"""Small steps for the engine's tests: importable, since workers import what they run."""

import functools
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import BaseModel

from marin_dag.graph.cost import Cost
from marin_dag.graph.resources import Cpu, Resources
from marin_dag.graph.step import Input, Runtime, StepContext, StepStopped, StopAt, step
from marin_dag.run.ray.control_actor import UPDATE_SECONDS


class WriteConfig(BaseModel, frozen=True, extra="forbid"):
    text: str
    marks: Runtime[str] = ""
    """A folder where each execution leaves a file, so that a test can count them."""


class Text(BaseModel, frozen=True, extra="forbid"):
    file: str
    num_bytes: int


def mark(folder: str, what: str) -> None:
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"{what}-{time.monotonic_ns()}").touch()


def executions(folder: Path) -> dict[str, int]:
    """Return how often each thing was executed."""
    names = [path.name.rpartition("-")[0] for path in folder.iterdir()] if folder.exists() else []
    return {name: names.count(name) for name in sorted(set(names))}


def write_file(url: str, text: str) -> None:
    import fsspec

    with fsspec.open(url, "w") as file:
        file.write(text)


def read_file(url: str) -> str:
    import fsspec

    with fsspec.open(url, "r") as file:
        return file.read()


@step()
def write(config: WriteConfig, context: StepContext) -> Text:
    mark(config.marks, context.name)
    context.log.info("writing %s", config.text)
    write_file(f"{context.output_path}/deep/text.txt", config.text)
    return Text(file="deep/text.txt", num_bytes=len(config.text))


class WriteByConfig(BaseModel, frozen=True, extra="forbid"):
    library: Literal["tensorstore", "pyarrow"]
    num_values: int


@step()
def write_by(config: WriteByConfig, context: StepContext) -> Text:
    """Write floats to a file through a library, past Python."""
    values = np.arange(float(config.num_values))
    file = "c/0" if config.library == "tensorstore" else "values.parquet"
    if config.library == "tensorstore":
        import tensorstore

        metadata = {"shape": values.shape, "data_type": "float64", "codecs": ["bytes"]}
        kvstore = {"driver": "file", "path": f"{context.output_path}/"}
        array = tensorstore.open({"driver": "zarr3", "kvstore": kvstore, "metadata": metadata}, create=True).result()
        array.write(values).result()
    else:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"value": values}), f"{context.output_path}/{file}")
    return Text(file=file, num_bytes=values.nbytes)


class JoinConfig(BaseModel, frozen=True, extra="forbid"):
    texts: tuple[Input[Text], ...]
    marks: Runtime[str] = ""


@step(resources=Cpu(2))
def join(config: JoinConfig, context: StepContext) -> Text:
    mark(config.marks, context.name)
    text = "".join(read_file(item.join(item.result.file)) for item in config.texts)
    write_file(f"{context.output_path}/text.txt", text)
    return Text(file="text.txt", num_bytes=len(text))


class FailConfig(BaseModel, frozen=True, extra="forbid"):
    message: str
    kind: str = "permanent"
    num_failures: int = 1_000
    keeps_work: bool = False
    marks: Runtime[str] = ""


class Size(BaseModel, frozen=True, extra="forbid"):
    size: float


class OddConfig(BaseModel, frozen=True, extra="forbid"):
    what: str


def infinite(item: int, path: str) -> Size:
    """A shard."""
    return Size(size=math.inf)


@step()
def odd(config: OddConfig, context: StepContext) -> Size:
    """End in a way that no step should."""
    match config.what:
        case "exit":
            sys.exit(0)
        case "itself":
            error = ValueError("it is its own cause")
            raise error from error
        case "shard":
            context.map(infinite, [1], in_flight=1)
    return Size(size=math.inf)


@step()
def fail(config: FailConfig, context: StepContext) -> Text:
    """Fail a number of times, then work."""
    mark(config.marks, context.name)
    if config.kind == "count":
        return Text(file="none", num_bytes=executions(Path(config.marks))[context.name])
    if executions(Path(config.marks))[context.name] <= config.num_failures:
        if config.keeps_work:
            write_file(f"{context.work_path}/{context.attempt}", "more")
        if config.kind == "transient":
            raise ConnectionResetError(config.message)
        if config.kind == "leaves":
            context.progress(1, 2, "tries")
            raise StepStopped(config.message)
        if config.kind in ("killed", "terminated"):
            os.kill(os.getpid(), signal.SIGKILL if config.kind == "killed" else signal.SIGTERM)
            time.sleep(60)
        raise ValueError(config.message)
    return Text(file="none", num_bytes=0)


class ShardsConfig(BaseModel, frozen=True, extra="forbid"):
    num_shards: int
    seconds: Runtime[float] = 0.0
    marks: Runtime[str] = ""
    fail_at: Runtime[int] = -1


class ShardResult(BaseModel, frozen=True, extra="forbid"):
    square: int


class Squares(BaseModel, frozen=True, extra="forbid"):
    total: int


def square(item: tuple[int, float, str, int], path: str) -> ShardResult:
    number, seconds, marks, fail_at = item
    time.sleep(seconds)
    if number == fail_at and not (Path(marks) / "repaired").exists():
        raise ValueError(f"shard {number} is bad")
    mark(marks, f"shard{number}")
    write_file(f"{path}/square.txt", str(number**2))
    return ShardResult(square=number**2)


@step()
def squares(config: ShardsConfig, context: StepContext) -> Squares:
    items = [(number, config.seconds, config.marks, config.fail_at) for number in range(config.num_shards)]
    results = context.map(square, items, in_flight=3)
    write_file(f"{context.output_path}/total.txt", str([result.square for result in results]))
    return Squares(total=sum(result.square for result in results))


@step()
def twice(config: ShardsConfig, context: StepContext) -> Squares:
    items = [(number, 0.0, "", -1) for number in range(config.num_shards)]
    squares = context.map(square, items, in_flight=1)
    return Squares(total=sum(result.square for result in [*squares, *context.map(square, items[::-1], in_flight=1)]))


class CountConfig(BaseModel, frozen=True, extra="forbid"):
    """A run that counts from where its start stopped, by its stride."""

    stride: int
    until_step: StopAt[int]
    start: "Input[Count] | None" = None
    publish_every: int = 5
    seconds: Runtime[float] = 0.0
    marks: Runtime[str] = ""


class Count(BaseModel, frozen=True, extra="forbid"):
    step: int
    value: int


CountConfig.model_rebuild()


def _count_cost(config: CountConfig, _: Resources) -> Cost:
    begin = 0 if config.start is None else config.start.milestone or 0
    return Cost({"tokens": 10.0 * (config.until_step - begin)}, bytes_written=7.0)


def _resumes_at(paths: Sequence[str]) -> list[int]:
    return [int(path.removeprefix("saved-").removesuffix(".json")) for path in paths if path.startswith("saved-")]


class LoopConfig(BaseModel, frozen=True, extra="forbid"):
    until_step: StopAt[int]
    num_failures: int
    saves: bool
    marks: Runtime[str] = ""


@step(resumes_at=_resumes_at)
def loop(config: LoopConfig, context: StepContext) -> Count:
    """Leave a log each time and, if it saves, one step more to resume at; fail a number of times."""
    mark(config.marks, context.name)
    number = executions(Path(config.marks))[context.name]
    write_file(f"{context.work_path}/events/{context.attempt}.jsonl", "a line" * number)
    if config.saves:
        write_file(f"{context.work_path}/saved-{number:06d}.json", "{}")
    if number <= config.num_failures:
        raise ConnectionResetError("reset")
    return Count(step=config.until_step, value=number)


@step(continues="start", cost=_count_cost, resumes_at=_resumes_at, requests=("publish",))
def count(config: CountConfig, context: StepContext) -> Count:
    published = context.milestones()
    position = Count(step=0, value=0) if config.start is None else config.start.result
    earlier = [milestone for milestone in published if milestone <= config.until_step]
    if earlier and max(earlier) > position.step:
        position = published[max(earlier)].result
    for saved in sorted(Path(context.work_path).glob("saved-*.json")) if "://" not in context.work_path else ():
        kept = Count.model_validate_json(saved.read_text())
        if kept.step in {*context.wanted_milestones} - published.keys():
            write_file(f"{context.output_path}/step-{kept.step}/value.txt", str(kept.value))
            context.publish(kept.step, f"step-{kept.step}", kept)
        position = kept if position.step < kept.step <= config.until_step else position
    asked = {*context.wanted_milestones}
    for number in range(position.step, config.until_step):
        if context.stop_requested():
            (Path(context.work_path) / f"saved-{position.step:06d}.json").write_text(position.model_dump_json())
            raise StepStopped(f"at {number} ({context.stop_reason()})")
        time.sleep(config.seconds)
        mark(config.marks, f"count{number}")
        position = Count(step=number + 1, value=position.value + config.stride)
        context.progress(position.step, config.until_step, "steps", counts_per_second=10.0)
        for reported in context.requests():
            asked.add(reported.milestone or position.step)
            context.reply(reported, f"publishes {reported.milestone or position.step:,}")
        is_due = position.step % config.publish_every == 0 or position.step in asked
        if is_due and position.step not in published:
            write_file(f"{context.output_path}/step-{position.step}/value.txt", str(position.value))
            context.publish(position.step, f"step-{position.step}", position)
    if config.until_step % config.publish_every:
        write_file(f"{context.output_path}/value.txt", str(position.value))
    return position


class SumConfig(BaseModel, frozen=True, extra="forbid"):
    counts: tuple[Input[Count], ...]


@step()
def summed(config: SumConfig, context: StepContext) -> Count:
    return Count(step=0, value=sum(item.result.value for item in config.counts))


@step(continues="start")
def wobble(config: CountConfig, context: StepContext) -> Count:
    """Train without determinism: from the second execution on, the last milestone differs."""
    mark(config.marks, "wobble")
    position = Count(step=0, value=0)
    for number in range(0, config.until_step, config.publish_every):
        position = Count(step=number + config.publish_every, value=position.value + config.stride)
        is_last = position.step == config.until_step
        text = f"{position.value} {executions(Path(config.marks))['wobble'] if is_last else ''}"
        write_file(f"{context.output_path}/step-{position.step}/value.txt", text)
        context.publish(position.step, f"step-{position.step}", position)
    return position


class NamesConfig(BaseModel, frozen=True, extra="forbid"):
    names: Runtime[tuple[str, ...]] = ()
    """A config that is execution only: its list changes under one identity, as the files of a remote folder do."""
    suffix: Runtime[str] = ""
    refuses: Runtime[str] = ""
    marks: Runtime[str] = ""


class Names(BaseModel, frozen=True, extra="forbid"):
    made: tuple[str, ...]


def shout(suffix: str, item: tuple[str, str, str], path: str) -> str:
    name, refuses, marks = item
    if name == refuses and not (Path(marks) / "repaired").exists():
        raise ValueError(f"{name} is refused")
    mark(marks, name)
    write_file(f"{path}/name.txt", name.upper() + suffix)
    return name.upper() + suffix


@step()
def shouted(config: NamesConfig, context: StepContext) -> Names:
    items = [(name, config.refuses, config.marks) for name in config.names]
    return Names(made=tuple(context.map(functools.partial(shout, config.suffix), items, in_flight=1)))


class AddConfig(BaseModel, frozen=True, extra="forbid"):
    numbers: tuple[int, ...] = (1, 2)
    order: Runtime[str] = "forwards"


@step()
def add(config: AddConfig, context: StepContext) -> Text:
    """Return a sum that does not depend on the order."""
    context.computed_with(order=config.order)
    write_file(f"{context.output_path}/sum.txt", str(sum(config.numbers)))
    return Text(file="sum.txt", num_bytes=1)


class WarnConfig(BaseModel, frozen=True, extra="forbid"):
    text: str
    samples: tuple[str, ...] = ()
    file: str = ""


@step()
def warn(config: WarnConfig, context: StepContext) -> Text:
    """Warn about its output, twice with one text."""
    for _ in range(2):
        context.warn_about_output(config.text, samples=config.samples, file=config.file)
    write_file(f"{context.output_path}/text.txt", config.text)
    return Text(file="text.txt", num_bytes=len(config.text))


class AskConfig(BaseModel, frozen=True, extra="forbid"):
    sum: Input[Text]


@step()
def ask(config: AskConfig, context: StepContext) -> Text:
    """Return how its input was computed, and what it knows about the scheduler."""
    context.warn(f"added {dict(config.sum.computed_with)}, notice {context.notice_seconds}")
    time.sleep(2 * UPDATE_SECONDS)  # of what a plain step says last, Ray's driver asks nothing once it is done
    write_file(f"{context.output_path}/asked.txt", "")
    return Text(file="asked.txt", num_bytes=0)


@step()
def unsteady(config: FailConfig, context: StepContext) -> Text:
    """Return the same result each time, and write other bytes."""
    mark(config.marks, context.name)
    write_file(f"{context.output_path}/a.txt", str(executions(Path(config.marks))[context.name]))
    write_file(f"{context.output_path}/b.txt", "b")
    return Text(file="a.txt", num_bytes=1)
