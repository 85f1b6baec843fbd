"""Docstrings of Python modules."""

import ast
import warnings

from runtime.text.extraction.extracted import Extracted, Text, Unreadable, decoded

NOT_PYTHON = "not Python"


def read_docstrings(data: bytes) -> Extracted:
    """Yield the module's docstring, and those of each function or class under its signature."""
    tree = _parsed(data)
    if isinstance(tree, Unreadable):
        yield tree
        return
    module = ast.get_docstring(tree)
    if module:
        yield Text("", module)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            try:
                sections = _sections(node, node.name)
            except RecursionError as error:
                yield Unreadable(node.name, NOT_PYTHON, str(error), "")
                continue
            if sections:
                yield Text(node.name, "\n\n".join(sections))


def _sections(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, name: str) -> list[str]:
    found = []
    docstring = ast.get_docstring(node)
    if docstring:
        heading = name if isinstance(node, ast.ClassDef) else f"{name}({ast.unparse(node.args)})"
        found.append(f"{heading}\n\n{docstring}")
    if isinstance(node, ast.ClassDef):
        for member in node.body:
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found += _sections(member, f"{name}.{member.name}")
    return found


def _parsed(data: bytes) -> ast.Module | Unreadable:
    text = decoded(data)
    if isinstance(text, Unreadable):
        return text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two for deep nesting
        return Unreadable("", NOT_PYTHON, str(error), text)
