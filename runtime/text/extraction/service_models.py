"""Service descriptions of botocore to pages, laid out as the service's reference on the web is."""

import gzip
import html
import json
import zlib
from collections.abc import Iterator
from typing import Any

from runtime.text.extraction.extracted import NOT_UTF8, Extracted, Text, Unreadable, metadata
from runtime.text.extraction.html import plain_text

NOT_A_MODEL = "not a gzipped JSON service model"


class _OddModelError(ValueError):
    """JSON that describes no service."""


def read_service_models(data: bytes) -> Extracted:
    """A page for each operation, with its request and response, and for each structure that is neither."""
    try:
        model = json.loads(gzip.decompress(data))
        service = _words(_within(model, "metadata"), "serviceFullName")
        pages = list(_pages(model))
    except (OSError, EOFError, ValueError, zlib.error, RecursionError) as error:
        yield Unreadable("", NOT_A_MODEL, str(error), "")
        return
    for anchor, page in pages:
        try:
            page.encode()
        except UnicodeEncodeError as error:
            yield Unreadable(anchor.encode(errors="backslashreplace").decode(), NOT_UTF8, str(error), page)
            continue
        text = plain_text(page)
        if text:
            yield Text(anchor, text, metadata(service=service))


def _pages(model: Any) -> Iterator[tuple[str, str]]:
    shapes = _within(model, "shapes")
    title = _words(_within(model, "metadata"), "serviceFullName")
    documentation = _words(model, "documentation")
    if documentation:
        yield "service", _page(title, documentation)
    shown = set()
    for name in _within(model, "operations"):
        operation = _within(model["operations"], name)
        sections = [_words(operation, "documentation")]
        for heading, key in (("Request", "input"), ("Response", "output")):
            used = _words(_within(operation, key), "shape")
            if used:
                shown.add(used)
                sections.append(_members(heading, _within(shapes, used)))
        yield f"operation/{name}", _page(name, *sections)
    for name in shapes:
        shape = _within(shapes, name)
        documentation = _words(shape, "documentation")
        if documentation and name not in shown:
            yield f"shape/{name}", _page(name, documentation, _members("Contents", shape))


def _within(outer: Any, name: str) -> dict[str, Any]:
    """The object of this name; empty if there is none."""
    inner = outer.get(name, {}) if isinstance(outer, dict) else outer
    if not isinstance(inner, dict):
        raise _OddModelError(f"{name!r} is a {type(inner).__name__}, and no object")
    return inner


def _words(of: dict[str, Any], name: str) -> str:
    """The text of this name; "" if there is none."""
    words = of.get(name) or ""
    if not isinstance(words, str):
        raise _OddModelError(f"{name!r} is a {type(words).__name__}, and no text")
    return words


def _page(title: str, *sections: str) -> str:
    heading = html.escape(title)
    return f"<html><head><title>{heading}</title></head><body><h1>{heading}</h1>{''.join(sections)}</body></html>"


def _members(heading: str, shape: dict[str, Any]) -> str:
    members = _within(shape, "members")
    documented = [(name, text) for name in members if (text := _words(_within(members, name), "documentation"))]
    if not documented:
        return ""
    entries = "".join(f"<dt>{html.escape(name)}</dt><dd>{text}</dd>" for name, text in documented)
    return f"<h2>{heading}</h2><dl>{entries}</dl>"
