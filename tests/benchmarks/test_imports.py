"""A benchmark is run by hand, months apart: what it takes of the project is still there under that name."""

import ast
import importlib
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[2] / "benchmarks").glob("*.py"))
OURS = ("marin_dag", "pipelines", "runtime", "steps", "tests")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_import_of_a_benchmark_exists(file: Path):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OURS:
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
