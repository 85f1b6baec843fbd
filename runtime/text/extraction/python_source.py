"""Python modules: the source as it is, the docstrings alone, or the topics that `help()` shows."""

import ast
import inspect
import warnings

from runtime.text.extraction.extracted import Extracted, Text, Unreadable, decoded

NOT_PYTHON = "not Python"


def read_source(data: bytes) -> Extracted:
    text = decoded(data)
    if isinstance(text, Unreadable):
        yield text
    elif text.strip():
        yield Text("", text)


def read_docstrings(data: bytes) -> Extracted:
    """Names stand above their docstrings as the signature that a reader would call."""
    tree = _parsed(data)
    if isinstance(tree, Unreadable):
        yield tree
        return
    module = ast.get_docstring(tree)
    if module:
        yield Text("", module)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            sections = list(_sections(node, node.name))
            if sections:
                yield Text(node.name, "\n\n".join(sections))


def read_topics(data: bytes) -> Extracted:
    tree = _parsed(data)
    if isinstance(tree, Unreadable):
        yield tree
        return
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for name, text in sorted(ast.literal_eval(node.value).items()):
                yield Text(name, inspect.cleandoc(text))


def _sections(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, name: str) -> list[str]:
    found = []
    docstring = ast.get_docstring(node)
    if docstring:
        found.append(f"{_heading(node, name)}\n\n{docstring}")
    if isinstance(node, ast.ClassDef):
        for member in node.body:
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found += _sections(member, f"{name}.{member.name}")
    return found


def _heading(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, name: str) -> str:
    return name if isinstance(node, ast.ClassDef) else f"{name}({ast.unparse(node.args)})"


def _parsed(data: bytes) -> ast.Module | Unreadable:
    text = decoded(data)
    if isinstance(text, Unreadable):
        return text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in somebody else's code
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        return Unreadable("", NOT_PYTHON, str(error), text)
