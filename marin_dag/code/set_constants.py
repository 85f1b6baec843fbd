"""Set constants: constants of modules that this process has set to another value than their source.

A recipe may import a module of its steps and set a constant there. The digest does not cover that, and a worker in
another process computes with the constant of the source.
"""

import ast
import re
import reprlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from marin_dag.code.syntax import nodes_of, parse_module

_TYPES = (bool, bytes, float, int, str, tuple, type(None))
"""Types of values that cannot change in place."""


def set_constants(definitions: Iterable[str]) -> tuple[str, ...]:
    """Return a line for each constant whose value in this process is not the literal of its source.

    Args:
        definitions: qualified names in a closure. A constant that code of their modules sets is omitted.
    """
    sources: dict[str, str] = {}
    candidates = []
    for module, name in ((each.rpartition(".")[0], each.rpartition(".")[2]) for each in definitions):
        values = vars(sys.modules[module]) if module in sys.modules else {}
        file = values.get("__file__")
        if not isinstance(file, str) or not Path(file).is_file():
            continue
        if module not in sources:
            sources[module] = Path(file).read_text(encoding="utf-8", errors="replace")
        if name in values and type(values[name]) in _TYPES:
            candidates.append((module, name, values[name]))
    lines = []
    for module, name, value in candidates:
        literal = _literal(name, sources[module])
        if literal is None or repr(literal.value) == repr(value):
            continue
        if _is_constant(module, name, literal.line, sources):
            here, there = reprlib.repr(value), reprlib.repr(literal.value)
            lines.append(f"constant {module}.{name} ({here} here, {there} in its source)")
    return tuple(lines)


class _Literal(NamedTuple):
    value: object
    line: int


def _literal(name: str, source: str) -> _Literal | None:
    """Return the literal that a line of the source gives a name; None for another value."""
    found = re.search(rf"^{name}(?::[^=\n]+)? = (.+)$", source, re.MULTILINE)
    if found is None:
        return None
    try:
        return _Literal(ast.literal_eval(found[1]), source.count("\n", 0, found.start()) + 1)
    except (SyntaxError, ValueError):  # computed, or on several lines
        return None


def _is_constant(module: str, name: str, line: int, sources: dict[str, str]) -> bool:
    """Return whether a module binds a name on this line alone, and no code of these sources sets it later."""
    sets = re.compile(rf"""\.{name}\b\s*[^=\s]{{0,3}}=[^=]|(?:setattr\([^)\n]*|\[)["']{name}["']""")
    if any(map(sets.search, sources.values())):
        return False
    parsed = parse_module(module, Path(f"{module}.py"), sources[module].encode())
    nodes = (node for statement in parsed.executed for node in nodes_of(statement))
    return (
        [each.lineno for each in parsed.definitions.get(name, ())] == [line]
        and name not in parsed.imports
        and not any(isinstance(node, ast.Global) and name in node.names for node in nodes)
    )
