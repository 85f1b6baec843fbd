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
            try:
                sections = _sections(node, node.name)
            except RecursionError as error:
                yield Unreadable(node.name, NOT_PYTHON, str(error), "")
                continue
            if sections:
                yield Text(node.name, "\n\n".join(sections))


def read_topics(data: bytes) -> Extracted:
    tree = _parsed(data)
    if isinstance(tree, Unreadable):
        yield tree
        return
    for node in tree.body:
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)):
            continue
        entries = zip(node.value.keys, node.value.values, strict=True)
        literals = [(getattr(name, "value", None), getattr(text, "value", None)) for name, text in entries]
        topics = [(name, text) for name, text in literals if isinstance(name, str) and isinstance(text, str)]
        for name, text in sorted(topics):
            yield Text(name, inspect.cleandoc(text))
        if len(topics) < len(literals):
            detail = f"line {node.lineno}: {len(literals) - len(topics)} of {len(literals)} topics are no literal texts"
            yield Unreadable("", NOT_PYTHON, detail, "")


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
    except (
        SyntaxError,
        ValueError,
        RecursionError,
        MemoryError,
    ) as error:  # the last: nested too deeply for the parser
        return Unreadable("", NOT_PYTHON, str(error), text)
