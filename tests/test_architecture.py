"""Architecture: who may import whom, and what a plan must never wait for."""

import ast
import graphlib
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import LONGEST_FILES

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("marin_dag", "steps", "runtime", "pipelines")
ALLOWED = {
    "marin_dag": {"marin_dag"},
    "runtime": {"runtime"},
    "steps": {"steps", "runtime", "marin_dag"},
    "pipelines": {"pipelines", "steps", "runtime", "marin_dag"},
}
HEAVY = (
    "jax", "ray", "numpy", "pyarrow", "tensorstore", "tokenizers", "torch", "lm_eval", "fsspec", "gcsfs", "asyncio",
    "rich", "bokeh",
)  # fmt: skip
ENGINE_FOLDERS = ("cli", "keep", "run", "plan", "graph", "ledger", "identity", "code", "values", "store")
"""A module imports from its own folder, from the folders after it and from the modules of `marin_dag` itself."""
RUNTIME_FOLDERS = (
    *("cost", "report", "evaluation", "training", "interop", "tracking", "optim", "model", "parallel"),
    *("platform", "kernels", "data", "text", "tables", "scaling"),
)
"""The same of the runtime's. `model/config.py`, the interface of configs, is free of JAX and open to all."""
VAGUE = {"utils", "util", "common", "helpers", "misc"}
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def imported_packages(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").partition(".")[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    first_party = set(imported_packages(path)) & set(PACKAGES)
    assert first_party <= ALLOWED[package]


def test_folders_of_the_engine_import_one_way() -> None:
    assert imports_against("marin_dag", ENGINE_FOLDERS) == []
    top_modules = [path for path in (ROOT / "marin_dag").glob("*.py") if path.name != "__init__.py"]
    assert not any(imports_within("marin_dag")[f"marin_dag.{path.stem}"] for path in top_modules)


def test_no_modules_of_the_engine_import_each_other_in_a_circle() -> None:
    list(graphlib.TopologicalSorter(imports_within("marin_dag")).static_order())


def test_folders_of_the_runtime_import_one_way() -> None:
    assert imports_against("runtime", RUNTIME_FOLDERS, open_to_all=("model.config",)) == []


def imports_within(package: str) -> dict[str, set[str]]:
    """Return the modules of a package that each of its modules imports, be it for a type or in a function."""
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in (ROOT / package).rglob("*.py")}
    found = {}
    for name, path in paths.items():
        imported = re.findall(rf"^\s*(?:from|import) ({package}[\w.]*)(?: import (\w+))?", path.read_text(), re.M)
        found[name] = {target for pair in imported for target in (pair[0], ".".join(pair)) if target in paths}
    return found


def imports_against(
    package: str, folders: tuple[str, ...], open_to_all: tuple[str, ...] = ()
) -> list[tuple[Path, set[str]]]:
    """Return the files of each folder with the modules of folders before it that they import, be it for a type only."""
    assert {path.parent.name for path in (ROOT / package).glob("*/*.py")} == set(folders)
    found = []
    for index, folder in enumerate(folders):
        for path in (ROOT / package / folder).rglob("*.py"):
            imported = re.findall(rf"(?:from|import) {package}\.(\w+(?:\.\w+)?)", path.read_text())
            above = set(folders[:index])
            before = {name for name in imported if name not in open_to_all and name.partition(".")[0] in above}
            found += [(path, before)] if before else []
    return found


@pytest.mark.parametrize("package", ["steps", "pipelines"])
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    """Be it for a type only, or while it runs."""
    graph = {
        path.stem: set(re.findall(rf"(?:from|import) {package}\.(\w+)", path.read_text()))
        for path in (ROOT / package).glob("*.py")
    }
    list(graphlib.TopologicalSorter(graph).static_order())


LEARNING = {"jax", "jaxlib", "equinox", "optax", "torch", "transformers", "tokenizers", "lm_eval", "tensorstore"}
LEARNING_WORDS = re.compile(
    r"jax\w+|xla\w+|tensorstore|certified|optimi[sz]er|gradient|learning_rate|\bflops\b|chip.hours", re.IGNORECASE
)


def test_the_engine_knows_no_machine_learning() -> None:
    engine = [path for path in FILES if path.relative_to(ROOT).parts[0] == "marin_dag"]
    assert not {(path.name, name) for path in engine for name in imported_packages(path) if name in LEARNING}
    words = {(path.name, word) for path in engine for word in LEARNING_WORDS.findall(path.read_text())}
    assert words == set()


def test_no_module_has_a_vague_name() -> None:
    assert not [path for path in FILES if VAGUE & set(path.relative_to(ROOT).with_suffix("").parts)]


def test_files_that_run_first_are_there() -> None:
    assert [file for file in LONGEST_FILES if not (ROOT / file).is_file()] == []


def test_a_wheel_holds_every_file_beside_the_code() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    held = {
        path
        for name, globs in patterns.items()
        for each in globs
        for path in (ROOT / name.replace(".", "/")).glob(each)
    }
    files = {path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()}
    assert {path for path in files if path.suffix not in (".py", ".pyc")} == held


@pytest.mark.parametrize("package", PACKAGES)
def test_package_files_are_empty(package: str) -> None:
    filled = [path for path in FILES if path.name == "__init__.py" and path.is_relative_to(ROOT / package)]
    assert not [path for path in filled if path.read_text().strip()]


def test_building_and_planning_import_nothing_heavy() -> None:
    program = (
        f"import sys, pipelines.tootsie, marin_dag.cli.main\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_every_name_is_defined_where_names_of_axes_are_not() -> None:
    """Ruff and mypy cannot check modules with arrays: they take names of axes in annotations for undefined names."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "--output-format", "json"]
    folders = ["runtime", "tests/runtime", "benchmarks"]
    reported = json.loads(subprocess.run([*command, *folders], cwd=ROOT, capture_output=True, text=True).stdout)
    strings = {file: strings_of(Path(file)) for file in {each["filename"] for each in reported}}
    places = [(each["filename"], (each["location"]["row"], each["location"]["column"] - 1)) for each in reported]
    assert len(places) > 10, "ruff has looked: it reports the axes"
    outside = [place for place in places if not any(begin <= place[1] < end for begin, end in strings[place[0]])]
    assert outside == []


def strings_of(path: Path) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Return where each string begins and ends, as rows and columns."""
    with tokenize.open(path) as file:
        tokens = list(tokenize.generate_tokens(file.readline))
    return [(token.start, token.end) for token in tokens if token.type == tokenize.STRING]
