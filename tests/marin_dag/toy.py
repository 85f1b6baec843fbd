"""A small pipeline for the engine's tests: texts, their count, and a trajectory over it. Also runs as a script."""

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from marin_dag.cli.main import main
from marin_dag.graph.cost import Cost
from marin_dag.graph.resources import Resources
from marin_dag.graph.step import Input, Runtime, Step, StepContext, StopAt, step

FACTOR = 2


class TextConfig(BaseModel, frozen=True, extra="forbid"):
    text: str
    workers: Runtime[int] = 1


class CountResult(BaseModel, frozen=True, extra="forbid"):
    count: int


class CountConfig(BaseModel, frozen=True, extra="forbid"):
    texts: dict[str, Input[CountResult]]
    least: int = 1


class TrainConfig(BaseModel, frozen=True, extra="forbid"):
    start: Input["CountResult"] | None
    until_step: StopAt[int]
    data: Input[CountResult]
    z_loss: float = 0.0


def weigh(count: int) -> int:
    return count * FACTOR


def _refuse_least_below_zero(config: CountConfig) -> None:
    if config.least < 0:
        raise ValueError(f"least is {config.least}; a count is never below 0.")


@step()
def text(config: TextConfig, context: StepContext) -> CountResult:
    Path(context.output_path, "text.txt").write_text(config.text)
    return CountResult(count=weigh(len(config.text)))


@step(check=_refuse_least_below_zero)
def count(config: CountConfig, context: StepContext) -> CountResult:
    if config.least == 13:
        raise ValueError("least must not be 13")
    return CountResult(count=sum(item.result.count for item in config.texts.values()))


def _train_cost(config: TrainConfig, _: Resources) -> Cost:
    begin = 0 if config.start is None else config.start.milestone or 0
    return Cost({"tokens": 1000.0 * (config.until_step - begin)}, bytes_written=500.0)


@step(continues="start", cost=_train_cost)
def train(config: TrainConfig, context: StepContext) -> CountResult:
    return CountResult(count=config.until_step)


def build(arguments: Namespace) -> list[Step[Any]]:
    texts = {word: text(f"text/{word}", TextConfig(text=word)) for word in ("web", "code", "math", "books")}
    counted = count("count", CountConfig(texts=texts))  # type: ignore[arg-type]
    kestrel = train("kestrel", TrainConfig(start=None, until_step=10, data=counted))  # type: ignore[arg-type]
    ocelot = kestrel.then("ocelot", until_step=20, z_loss=1e-4)
    phoenix = ocelot.then("phoenix", until_step=30)
    return [phoenix]


if __name__ == "__main__":
    sys.exit(main(build, name="toy"))
