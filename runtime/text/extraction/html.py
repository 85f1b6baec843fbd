"""HTML to text, by Resiliparse: block structure stays as line breaks, lists keep their marks."""

import gzip
import html
import json
from collections.abc import Iterator
from typing import Any

from resiliparse.extract.html2text import extract_plain_text

from runtime.text.extraction.extracted import Extracted, Text, Unreadable, decoded, metadata


def read_pages(data: bytes, *, main_content: bool) -> Extracted:
    page = decoded(data)
    if isinstance(page, Unreadable):
        yield page
        return
    yield Text("", plain_text(page, main_content=main_content))


def plain_text(page: str, *, main_content: bool = False) -> str:
    return extract_plain_text(page, preserve_formatting=True, main_content=main_content).strip()


def read_service_models(data: bytes) -> Extracted:
    """A page for each operation, with its request and response, and for each structure that is neither."""
    try:
        model = json.loads(gzip.decompress(data))
    except (OSError, EOFError, ValueError) as error:
        yield Unreadable("", "not a gzipped JSON service model", str(error), "")
        return
    service = model.get("metadata", {}).get("serviceFullName", "")
    for anchor, page in _pages(model):
        text = plain_text(page)
        if text:
            yield Text(anchor, text, metadata(service=service))


def _pages(model: dict[str, Any]) -> Iterator[tuple[str, str]]:
    shapes = model["shapes"]
    title = model.get("metadata", {}).get("serviceFullName", "")
    if model.get("documentation"):
        yield "service", _page(title, model["documentation"])
    shown = set()
    for name, operation in model["operations"].items():
        sections = [operation.get("documentation", "")]
        for heading, key in (("Request", "input"), ("Response", "output")):
            shape = operation.get(key, {}).get("shape")
            if shape:
                shown.add(shape)
                sections.append(_members(heading, shapes[shape]))
        yield f"operation/{name}", _page(name, *sections)
    for name, shape in shapes.items():
        if shape.get("documentation") and name not in shown:
            yield f"shape/{name}", _page(name, shape["documentation"], _members("Contents", shape))


def _page(title: str, *sections: str) -> str:
    heading = html.escape(title)
    return f"<html><head><title>{heading}</title></head><body><h1>{heading}</h1>{''.join(sections)}</body></html>"


def _members(heading: str, shape: dict[str, Any]) -> str:
    documented = [
        (name, member["documentation"])
        for name, member in shape.get("members", {}).items()
        if member.get("documentation")
    ]
    if not documented:
        return ""
    entries = "".join(f"<dt>{html.escape(name)}</dt><dd>{text}</dd>" for name, text in documented)
    return f"<h2>{heading}</h2><dl>{entries}</dl>"
