"""Mistakes in a recipe: the line, the field, what was found there and the nearest name."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError, model_validator

from marin_dag.cli.main import main
from marin_dag.cli.mistakes import config_mistakes
from marin_dag.graph import resources
from marin_dag.graph.graph import Graph, GraphError
from tests.catalogue import check_message, expect_error

PROJECT = Path(__file__).parents[3]


class Rate(BaseModel, frozen=True, extra="forbid"):
    value: float = Field(lt=1)


@dataclasses.dataclass(frozen=True)
class Share:
    amount: float = 0.0


class Config(BaseModel, frozen=True, extra="forbid"):
    learning_rate: Rate
    either: Rate | Share = Share()
    share: Share = Share()
    name: str = ""

    @model_validator(mode="after")
    def _named(self) -> "Config":
        if self.name == "none":
            raise ValueError("a name is wanted.")
        return self


@pytest.mark.parametrize(
    "fields",
    [
        {"learning_rte": {"value": 0.1}},
        {"learning_rate": {"value": 2}},
        {"learning_rate": {"valu": 2}},
        {"learning_rate": {"value": 0}, "share": {"amont": 1}},
        {"learning_rate": {"value": 0}, "either": 3},
        {},
        {"learning_rate": {"value": 0}, "name": 3},
        {"learning_rate": "x" * 99},
        {"learning_rate": {"value": 0}, "name": "none"},
    ],
    ids=str,
)
def test_each_wrong_field_is_named_with_its_value_and_the_line_that_set_it(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        Config(**fields)
    lines = config_mistakes(caught.value).splitlines()
    place = f"{__file__}:{caught.traceback[0].lineno + 1}: "
    assert all(line.startswith(place) for line in lines)
    check_message("\n".join(line.removeprefix(place) for line in lines))


def test_a_value_made_with_wrong_arguments_shows_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def build(parsed: object) -> Any:
        return resources.Gpu(kind="H100", num_gpus=8)  # type: ignore[call-arg]

    assert main(build, name="mine", argv=["plan", "--prefix", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("Traceback")


@pytest.mark.parametrize("built", [None, 3, "steps", [None]])
def test_a_recipe_that_returns_no_steps_is_refused(built: Any) -> None:
    with expect_error(GraphError):
        Graph(built)


@pytest.mark.parametrize(
    "body",
    ["return toy.count('c', toy.CountConfig(texts={}, leest=1))", "return toy.count('c', 1)", "return []", "pass"],
)
def test_a_recipe_with_a_mistake_is_one_message(tmp_path: Path, body: str) -> None:
    recipe = tmp_path / "mine.py"
    recipe.write_text(
        "from marin_dag.cli.main import main\nfrom tests.marin_dag import toy\n\n\n"
        f"def build(arguments):\n    # A mistake is in the next line.\n    {body}\n\n\n"
        "if __name__ == '__main__':\n    raise SystemExit(main(build, name='mine'))\n"
    )
    command = [sys.executable, str(recipe), "plan", "--prefix", str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    check_message(done.stderr)
