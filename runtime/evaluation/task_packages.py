"""Packages of tasks: what the functions of a definition import, checked without running them."""

import ast
import functools
import importlib.metadata
import importlib.util
import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path


@functools.cache
def missing_packages(module: Path) -> tuple[str, ...]:
    """Return the packages that a module needs at its import and that are not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of lm-eval's modules have invalid escapes
        tree = ast.parse(module.read_bytes())
    names = dict.fromkeys(_imports(tree.body))
    beside = {path.stem for path in module.parent.iterdir()}
    return tuple(name for name in names if name not in beside and importlib.util.find_spec(name) is None)


def install_command(packages: Iterable[str]) -> str:
    """Return the command that installs packages: that of lm-eval's extras where these have them."""
    extras = {
        re.split(r"[\s\[<>=!;~]", line)[0].replace("-", "_"): match[1]
        for line in importlib.metadata.requires("lm_eval") or ()
        if (match := re.search(r"extra == \"(\w+)\"", line))
    }
    wanted = dict.fromkeys(f'"lm_eval[{extras[name]}]"' if name in extras else name for name in packages)
    return f"pip install {' '.join(wanted)}"


def _imports(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the packages of absolute imports at module level whose failure the module does not catch."""
    for node in body:
        match node:
            case ast.Import(names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(str(module), level=0):
                yield module.partition(".")[0]
            case ast.Try(attempted, handlers):
                if any(isinstance(inner, ast.Raise) for handler in handlers for inner in handler.body):
                    yield from _imports(attempted)
