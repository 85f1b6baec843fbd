"""Mistakes in a recipe: the line, the field, what was found there and the nearest name."""

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field, ValidationError, model_validator

from marin_dag.cli.main import main
from marin_dag.cli.mistakes import said_of
from marin_dag.graph import resources
from marin_dag.graph.graph import Graph, GraphError
from tests.catalogue import expect_error

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
    ("fields", "said"),
    [
        (
            {"learning_rte": {"value": 0.1}},
            "Config.learning_rte: there is no such field. Did you mean 'learning_rate'?",
        ),
        ({"lr": 0.1}, "Config.lr: there is no such field. Did you mean 'learning_rate'?"),
        ({"learning_rate": {"value": 2}}, "Config.learning_rate.value: 2 is refused: Input should be less than 1."),
        ({"learning_rate": {"valu": 2}}, "Config.learning_rate.valu: there is no such field."),
        ({"learning_rate": {"value": 0}, "share": {"amont": 1}}, "Config.share.amont: there is no such field."),
        ({"learning_rate": {"value": 0}, "either": 3}, "Config.either: 3 is refused: it takes one of Rate, Share."),
        ({}, "Config.learning_rate: is not given, and has no default."),
        ({"learning_rate": {"value": 0}, "name": 3}, "Config.name: 3 is refused: Input should be a valid string."),
        ({"learning_rate": "x" * 99}, f"Config.learning_rate: '{'x' * 59}... is refused: Input should be a valid"),
        ({"learning_rate": {"value": 0}, "name": "none"}, ": Config: a name is wanted."),
    ],
)
def test_each_field_is_said_with_its_value_and_the_line_that_wrote_it(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Config(**fields)
    lines = said_of(caught.value).splitlines()
    assert all(line.startswith(f"{__file__}:") for line in lines)
    assert any(said in line for line in lines)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Share(amont=1), ["Share.amont: there is no such field. Did you mean 'amount'?"]),  # type: ignore[call-arg]
        (lambda: resources.Gpu(kind="H100", num_gpus=8), ["Gpu.num_gpus: there is no such field."]),  # type: ignore[call-arg]
        (
            lambda: resources.Gpu(num_hosts=8),  # type: ignore[call-arg]
            [f"Gpu.{field}: is not given, and has no default." for field in ("kind", "count")],
        ),
    ],
)
def test_a_value_made_with_fields_that_it_has_not_is_told_like_a_config(
    make: Callable[[], Any], said: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["plan", "--prefix", str(tmp_path)]
    assert main(lambda parsed: make(), name="mine", argv=arguments) == 1
    lines = capsys.readouterr().err.removeprefix("mine: ").splitlines()
    assert len(lines) == len(said) and all(line.startswith(f"{__file__}:") for line in lines)
    assert all(expected in line for expected, line in zip(said, lines, strict=True))
    main(lambda parsed: make(), name="mine", argv=[*arguments, "--traceback"])
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("file", [f"{PROJECT}/marin_dag/engine.py", "/venv/lib/site-packages/library.py"])
def test_a_value_that_the_engine_or_a_library_made_wrongly_is_no_mistake_of_the_recipe(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {"Share": Share}
    exec(compile("def make(): Share(amont=1)", file, "exec"), names)
    assert main(lambda parsed: names["make"](), name="mine", argv=["plan", "--prefix", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("Traceback") and f'File "{file}", line 1, in make' in said


@pytest.mark.parametrize("built", [None, 3, "steps", [None]])
def test_a_recipe_that_returns_no_steps_is_told_what_to_return(built: Any) -> None:
    with expect_error(GraphError):
        Graph(built)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "return toy.count('c', toy.CountConfig(texts={}, leest=1))",
            ":7: CountConfig.leest: there is no such field. Did",
        ),
        ("return toy.count('c', toy.CountConfig(texts={}, least=1))", "returned Step("),
        ("return []", "the recipe's function returned no steps; return"),
        ("pass", "returned None, where a list of steps belongs"),
    ],
)
def test_a_recipe_with_a_mistake_is_one_message(tmp_path: Path, body: str, said: str) -> None:
    recipe = tmp_path / "mine.py"
    recipe.write_text(
        "from marin_dag.cli.main import main\nfrom tests.marin_dag import toy\n\n\n"
        f"def build(arguments):\n    # A mistake is in the next line.\n    {body}\n\n\n"
        "if __name__ == '__main__':\n    raise SystemExit(main(build, name='mine'))\n"
    )
    command = [sys.executable, str(recipe), "plan", "--prefix", str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith("mine: ") and said in done.stderr
