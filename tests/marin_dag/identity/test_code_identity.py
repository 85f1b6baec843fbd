"""Code identity: what reaches an output moves its fingerprint, what does not leaves it alone."""

from pathlib import Path
from textwrap import dedent

import pytest

from marin_dag.code.closure import Closures
from marin_dag.code.references import Aspect
from marin_dag.code.sources import CodeError, Place, Sources
from marin_dag.identity.code_identity import package_version
from tests.catalogue import expect_error

MODULES = {
    "steps/__init__.py": "",
    "steps/tokenize.py": """
        from pydantic import BaseModel

        from marin_dag.graph.step import Runtime, StepContext, step
        from runtime.text import normal
        from runtime.text.normal import LIMIT, Base

        class Config(BaseModel, frozen=True):
            workers: Runtime[int] = 2

        class Result(BaseModel, frozen=True):
            size: int = 0

        def unrelated():
            return 1

        @step(packages=("tokenizers",))
        def tokenize(config: Config, context: StepContext) -> Result:
            \"\"\"A docstring.\"\"\"
            from runtime.late import late as deferred

            kept = [deferred(item) for item in range(LIMIT)]
            return Result(size=normal.clean(kept), base=Base())
        """,
    "runtime/__init__.py": "",
    "runtime/text/__init__.py": "",
    "runtime/text/normal.py": """
        import functools
        from numpy import float32 as number

        LIMIT = 10
        TABLE = {"a": 1}
        OTHER = 3

        def trace(function):
            return function

        class Root:
            scale = TABLE

        class Base(Root):
            def size(self):
                return number(1)

        @trace
        def clean(items, default=LIMIT):
            return functools.partial(_inner, default)

        def _inner(x):
            return x

        def never_called():
            return 0
        """,
    "runtime/late.py": """
        from .deeper import depth

        def late(x):
            return depth(x)
        """,
    "runtime/deeper.py": "def depth(x):\n    return x\n",
}


class Project:
    def __init__(self, root: Path) -> None:
        self.root = root
        for name, source in MODULES.items():
            self.write(name, dedent(source))

    def write(self, name: str, source: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)

    def edit(self, name: str, old: str, new: str) -> None:
        source = (self.root / name).read_text()
        assert old in source
        self.write(name, source.replace(old, new))

    def closure(self) -> tuple[str, dict[str, str], tuple[str, ...]]:
        closures = Closures(Sources((self.root,), frozenset({"steps", "runtime"})))
        return closures.closure([Place("steps.tokenize", "tokenize", Aspect.VALUE)])


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_the_closure_holds_what_the_function_reaches_and_nothing_else(project: Project) -> None:
    _, definitions, opaque = project.closure()
    assert set(definitions) == {
        "steps.tokenize.tokenize",
        "steps.tokenize.Result",
        "runtime.text.normal.LIMIT",
        "runtime.text.normal.TABLE",
        "runtime.text.normal.trace",
        "runtime.text.normal.Root",
        "runtime.text.normal.Base",
        "runtime.text.normal.clean",
        "runtime.text.normal._inner",
        "runtime.late.late",
        "runtime.deeper.depth",
    }
    assert opaque == ()


def test_covered_are_the_modules_that_the_function_loads(project: Project) -> None:
    project.write("runtime/never_imported.py", "")
    closures = Closures(Sources((project.root,), frozenset({"steps", "runtime"})))
    modules, files, _ = closures.covered([Place("steps.tokenize", "tokenize", Aspect.VALUE)])
    assert modules == {
        *("steps", "steps.tokenize", "runtime", "runtime.text", "runtime.text.normal"),
        *("runtime.late", "runtime.deeper"),
    }
    assert files == {project.root / name for name in MODULES}


NORMAL = "runtime/text/normal.py"
TOKENIZE = "steps/tokenize.py"


@pytest.mark.parametrize(
    ("module", "old", "new", "moved"),
    [
        (NORMAL, "return x", "return x + 0", "runtime.text.normal._inner"),
        (NORMAL, "LIMIT = 10", "LIMIT = 11", "runtime.text.normal.LIMIT"),
        (NORMAL, '"a": 1', '"a": 1.0', "runtime.text.normal.TABLE"),
        (NORMAL, "return function", "return [function]", "runtime.text.normal.trace"),
        (NORMAL, "default=LIMIT", "default=3", "runtime.text.normal.clean"),
        (NORMAL, "scale = TABLE", "scale = dict(TABLE)", "runtime.text.normal.Root"),
        (NORMAL, "number(1)", "number(2)", "runtime.text.normal.Base"),
        (NORMAL, "from numpy import", "from jax.numpy import", "runtime.text.normal.Base"),
        ("runtime/deeper.py", "return x", "return -x", "runtime.deeper.depth"),
        (TOKENIZE, "size: int = 0", "size: int = 1", "steps.tokenize.Result"),
        (TOKENIZE, "range(LIMIT)", "range(LIMIT + 1)", "steps.tokenize.tokenize"),
    ],
)
def test_an_edit_that_reaches_the_output_moves_exactly_its_definition(
    project: Project, module: str, old: str, new: str, moved: str
) -> None:
    fingerprint, before, _ = project.closure()
    project.edit(module, old, new)
    after_fingerprint, after, _ = project.closure()
    assert fingerprint != after_fingerprint
    assert {name for name in before if after.get(name) != before[name]} == {moved}


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        (NORMAL, "LIMIT = 10", "# a comment\nLIMIT = (10)"),
        (NORMAL, "LIMIT = 10", "LIMIT = 1_0"),
        (NORMAL, "return 0", "return 1"),
        (NORMAL, "OTHER = 3", "OTHER = 4"),
        (NORMAL, "def _inner(x):", 'def _inner(\n    x,\n):\n    """Now documented."""'),
        (TOKENIZE, "A docstring.", "Another docstring."),
        (TOKENIZE, "return 1", "return 2"),
        (TOKENIZE, "Runtime[int] = 2", "Runtime[int] = 64"),
        (TOKENIZE, 'packages=("tokenizers",)', 'packages=("tokenizers", "numpy")'),
        ("runtime/deeper.py", "def depth", "unused = 1\n\n\ndef depth"),
    ],
)
def test_an_edit_that_cannot_reach_the_output_moves_nothing(project: Project, module: str, old: str, new: str) -> None:
    before = project.closure()
    project.edit(module, old, new)
    assert project.closure() == before


def test_a_local_variable_that_hides_a_global_is_not_a_reference(project: Project) -> None:
    project.edit("runtime/deeper.py", "return x", "never = x\n    return never")
    project.write(
        "runtime/deeper.py", (project.root / "runtime/deeper.py").read_text() + "\n\ndef never():\n    pass\n"
    )
    assert "runtime.deeper.never" not in project.closure()[1]


def test_a_comprehension_variable_hides_nothing_outside_it(project: Project) -> None:
    project.write(
        "runtime/deeper.py",
        "def depth(x):\n    return [twice for twice in x] + twice(x)\n\n\ndef twice(x):\n    return x\n",
    )
    assert "runtime.deeper.twice" in project.closure()[1]


def test_code_that_runs_on_import_counts(project: Project) -> None:
    before, _, _ = project.closure()
    project.write("runtime/deeper.py", "import jax\n\njax.config.update('x64', True)\n\ndef depth(x):\n    return x\n")
    after, definitions, _ = project.closure()
    assert before != after
    assert "runtime.deeper.<module>" in definitions


def test_a_main_guard_does_not_count(project: Project) -> None:
    before = project.closure()
    project.edit("runtime/deeper.py", "return x", "return x\n\n\nif __name__ == '__main__':\n    depth(1)")
    assert project.closure() == before


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("import importlib\n    return importlib.import_module(x).run()", "importlib.import_module(x)"),
        ("return getattr(x, name)(1)", "getattr(x, name)"),
        ("return eval(x)", "eval(...)"),
        ("return globals()[name](x)", "globals(...)"),
        ("import inspect\n    return inspect.getsource(x)", "inspect.getsource(x)"),
        ("import pkgutil\n    return pkgutil.resolve_name(name)(x)", "pkgutil.resolve_name(name)"),
        ("from pydantic import ImportString, TypeAdapter\n    return TypeAdapter(ImportString)", "an object by name"),
        ("import runtime.text as all\n    return all.__dict__[name](x)", "runtime.text.__dict__: names"),
        ("import runtime.text as all\n    return vars(all)[name](x)", "runtime.text.__dict__: names"),
        ("from runtime import gone\n    return gone.f(x)", "runtime.gone: not found in the source"),
    ],
)
def test_code_that_cannot_be_followed_is_listed(project: Project, body: str, what: str) -> None:
    project.write("runtime/deeper.py", f"def depth(x, name=''):\n    {body}\n")
    _, _, opaque = project.closure()
    assert len(opaque) == 1
    assert what in opaque[0]


def test_a_constant_dynamic_import_is_followed(project: Project) -> None:
    project.write("runtime/extra.py", "def run():\n    return 1\n")
    project.write(
        "runtime/deeper.py",
        "import importlib\n\n\ndef depth(x):\n    return importlib.import_module('runtime.extra').run()\n",
    )
    _, definitions, opaque = project.closure()
    assert "runtime.extra.run" in definitions
    assert opaque == ()


def test_mutually_recursive_modules_end(project: Project) -> None:
    project.write("runtime/deeper.py", "from runtime.late import late\n\n\ndef depth(x):\n    return late(x)\n")
    assert {"runtime.late.late", "runtime.deeper.depth"} <= set(project.closure()[1])


def test_a_name_that_a_package_passes_on_is_found_where_it_is_defined(project: Project) -> None:
    project.write("runtime/text/__init__.py", "from runtime.deeper import depth as deep\n")
    project.edit("runtime/late.py", "from .deeper import depth", "from runtime.text import deep as depth")
    _, definitions, opaque = project.closure()
    assert "runtime.deeper.depth" in definitions
    assert opaque == ()


def test_a_star_import_is_searched(project: Project) -> None:
    project.edit("runtime/late.py", "from .deeper import depth", "from runtime.deeper import *")
    assert "runtime.deeper.depth" in project.closure()[1]


def test_a_class_whose_instance_a_config_holds_counts_whole(tmp_path: Path) -> None:
    schedule = "class Linear:\n    peak: float = 1.0\n\n    def __call__(self, step):\n        return {}\n"

    def fingerprint(source: str) -> str:
        (tmp_path / "runtime").mkdir(exist_ok=True)
        (tmp_path / "runtime/schedule.py").write_text(source)
        closures = Closures(Sources((tmp_path,), frozenset({"runtime"})))
        return closures.closure([Place("runtime.schedule", "Linear", Aspect.VALUE)])[0]

    before = fingerprint(schedule.format("step"))
    assert fingerprint(schedule.format("step").replace("1.0", "2.0")) != before
    assert fingerprint(schedule.format("step + 1")) != before


@pytest.mark.parametrize("constant", ["LIMIT: ClassVar[int] = 3", "_limit: int = 3"])
def test_a_constant_of_a_class_counts(project: Project, constant: str) -> None:
    def fingerprint(line: str) -> str:
        source = f"class Linear:\n    peak: float = 1.0\n    {line}\n\n    def at(self):\n        return self.peak\n"
        project.write("runtime/schedule.py", source)
        closures = Closures(Sources((project.root,), frozenset({"runtime"})))
        return closures.closure([Place("runtime.schedule", "Linear", Aspect.VALUE)])[0]

    assert fingerprint(constant) != fingerprint(constant.replace("3", "4"))


@pytest.mark.parametrize(
    "imports",
    [
        "try:\n    from runtime.fast import impl\nexcept ImportError:\n    from runtime.slow import impl\n",
        "import sys\n\nif sys.version_info < (3, 99):\n    from runtime.fast import impl\n"
        "else:\n    from runtime.slow import impl\n",
    ],
)
def test_an_import_under_a_condition_is_followed_both_ways(project: Project, imports: str) -> None:
    project.write("runtime/fast.py", "def impl(x):\n    return x\n")
    project.write("runtime/slow.py", "def impl(x):\n    return x\n")
    project.write("runtime/deeper.py", f"{imports}\n\ndef depth(x):\n    return impl(x)\n")
    assert {"runtime.fast.impl", "runtime.slow.impl"} <= set(project.closure()[1])


def test_a_definition_inside_a_function_counts(project: Project) -> None:
    source = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    LEAST: int\nelse:\n    LEAST = 3\n"
    project.write("runtime/deeper.py", f"{source}\n\ndef depth(x):\n    return LEAST\n")
    before, _, _ = project.closure()
    project.edit("runtime/deeper.py", "LEAST = 3", "LEAST = 4")
    assert project.closure()[0] != before


def test_a_package_that_is_not_installed_is_named() -> None:
    with expect_error(CodeError):
        package_version("no-such-thing", "tokenize")
