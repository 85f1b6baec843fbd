"""Documentation in packages: docstrings of Python modules, and botocore's descriptions of services as pages."""

import ast
import gzip
import html
import io
import json
import warnings
import zlib
from collections.abc import Iterator
from typing import Any

from runtime.text.extraction.extracted import Extracted, Text, Unreadable, decoded, metadata
from runtime.text.extraction.html import plain_text
from runtime.text.extraction.limits import TOO_LARGE

NOT_A_MODEL = "not a gzipped JSON service model"
NOT_PYTHON = "not Python"


def read_service_models(data: bytes, max_bytes: int) -> Extracted:
    """Yield a page for each operation, with its request and response, and for each structure that is neither."""
    try:
        with gzip.open(io.BytesIO(data)) as stream:
            unpacked = stream.read(max_bytes + 1)
        if len(unpacked) > max_bytes:
            yield Unreadable("", TOO_LARGE, f"more than {max_bytes:,} bytes", "")
            return
        model = json.loads(unpacked)
        service = model.get("metadata", {}).get("serviceFullName") or ""
        texts = [(anchor, plain_text(page)) for anchor, page in _pages(model, service)]
    except (OSError, EOFError, ValueError, TypeError, AttributeError, zlib.error, RecursionError) as error:
        yield Unreadable("", NOT_A_MODEL, str(error), "")
        return
    for anchor, text in texts:
        if text:
            yield Text(anchor, text, metadata(service=service))


def _pages(model: dict[str, Any], service: str) -> Iterator[tuple[str, str]]:
    shapes = model.get("shapes", {})
    if model.get("documentation"):
        yield "service", _page(service, model["documentation"])
    shown = set()
    for name, operation in model.get("operations", {}).items():
        sections = [operation.get("documentation") or ""]
        for heading, key in (("Request", "input"), ("Response", "output")):
            used = operation.get(key, {}).get("shape") or ""
            if used:
                shown.add(used)
                sections.append(_members(heading, shapes.get(used, {})))
        yield f"operation/{name}", _page(name, *sections)
    for name, shape in shapes.items():
        if shape.get("documentation") and name not in shown:
            yield f"shape/{name}", _page(name, shape["documentation"], _members("Contents", shape))


def _page(title: str, *sections: str) -> str:
    heading = html.escape(title)
    return f"<html><head><title>{heading}</title></head><body><h1>{heading}</h1>{''.join(sections)}</body></html>"


def _members(heading: str, shape: dict[str, Any]) -> str:
    members = shape.get("members", {}).items()
    documented = [(name, text) for name, member in members if (text := member.get("documentation") or "")]
    if not documented:
        return ""
    entries = "".join(f"<dt>{html.escape(name)}</dt><dd>{text}</dd>" for name, text in documented)
    return f"<h2>{heading}</h2><dl>{entries}</dl>"


def read_docstrings(data: bytes) -> Extracted:
    """Yield the module's docstring, and those of each function or class under its signature."""
    text = decoded(data)
    if isinstance(text, Unreadable):
        yield text
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two for deep nesting
        yield Unreadable("", NOT_PYTHON, str(error), text)
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
