"""Workbench: a recipe in a file that a test edits between two commands, each run on freshly imported code."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from marin_dag.cli.main import main
from marin_dag.code.fingerprint import notice_edits
from marin_dag.graph.assignments import build_graph
from marin_dag.graph.graph import Graph
from marin_dag.plan.lint import no_lint
from marin_dag.plan.plan import Plan, make_plan
from marin_dag.store.prefix import open_store

MODULE = "workbench_recipe"
RECIPE = '''\
"""Three texts, their count, and a trajectory in three legs."""

from pathlib import Path

from pydantic import BaseModel

from marin_dag.graph.cost import Cost
from marin_dag.graph.step import Input, StopAt, step

FACTOR = 2


class TextConfig(BaseModel, frozen=True, extra="forbid"):
    text: str


class Count(BaseModel, frozen=True, extra="forbid"):
    total: int


class CountConfig(BaseModel, frozen=True, extra="forbid"):
    texts: dict[str, Input[Count]]
    least: int = 1


class TrainConfig(BaseModel, frozen=True, extra="forbid"):
    start: Input[Count] | None
    until_step: StopAt[int]
    data: Input[Count]
    rate: float = 0.5


def weigh(number):
    """Grams."""
    return number * FACTOR


def train_cost(config, resources):
    begin = 0 if config.start is None else config.start.milestone
    return Cost({"tokens": 1000.0 * (config.until_step - begin)})


@step()
def text(config: TextConfig, context) -> Count:
    context.computed_with(letters="one by one")
    Path(context.output_path, "text.txt").write_text(config.text)
    return Count(total=len(config.text))


@step(policy="versioned", version="1")
def count(config: CountConfig, context) -> Count:
    return Count(total=weigh(sum(item.result.total for item in config.texts.values())))


@step(continues="start", cost=train_cost)
def train(config: TrainConfig, context) -> Count:
    return Count(total=config.until_step)


def build(arguments):
    texts = {name: text(f"text/{name}", TextConfig(text=name)) for name in ("web", "code")}
    counted = count("count", CountConfig(texts=texts))
    first = train(
        "first",
        TrainConfig(start=None, until_step=10, data=counted),
        policy="versioned",
        version="7",
    )
    second = first.then("second", until_step=20, rate=0.25)
    third = second.then("third", until_step=30)
    return [third]
'''


class Workbench:
    """`bench("why", "first")` runs a command on the recipe as it stands in the file."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.file = folder / f"{MODULE}.py"
        self.prefix = folder / "runs"
        self._capsys = capsys
        self.file.write_text(RECIPE)

    def __call__(self, *arguments: str) -> tuple[int, str]:
        self._capsys.readouterr()
        argv = ["--prefix", str(self.prefix), "--backend", "local", *arguments]
        recipe = self._recipe()
        follow, lint = getattr(recipe, "FOLLOW", None), getattr(recipe, "lint", no_lint)
        code = main(recipe.build, name="bench", argv=argv, follow=follow, lint=lint)
        output = self._capsys.readouterr()
        return code, output.out + output.err

    def plan(self, *arguments: str) -> Plan:
        """Return the plan behind a dry run."""
        recipe = self._recipe()
        graph = build_graph(lambda: Graph(recipe.build(None)), arguments[1::2])
        return make_plan(graph, open_store(str(self.prefix)))

    def edit(self, old: str, new: str) -> None:
        """Replace a text that is there exactly once."""
        source = self.file.read_text()
        assert source.count(old) == 1, old
        self.file.write_text(source.replace(old, new))

    def verdicts(self, *arguments: str) -> dict[str, str]:
        """Return step to verdict, as a dry run prints them."""
        _, table = self("--dry-run", "--every-step", *arguments)
        lines = table.split("\n\n")[0].splitlines()
        return {line.split()[0]: line.split()[1] for line in lines if not line.startswith(" ")}

    def files(self, folder: str = "") -> dict[str, bytes]:
        """Return every file below a folder of the prefix, with its bytes."""
        root = self.prefix / folder
        return {str(path.relative_to(self.prefix)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def _recipe(self) -> ModuleType:
        notice_edits()  # a process reads each source once; here the file changes under it
        spec = importlib.util.spec_from_file_location(MODULE, self.file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[MODULE] = module
        # Not from the cache of compiled files: two edits may fall into one tick of the clock.
        exec(compile(self.file.read_text(), str(self.file), "exec"), module.__dict__)
        return module
