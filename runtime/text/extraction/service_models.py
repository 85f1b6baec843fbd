"""Service descriptions of botocore as pages, laid out like the service's reference on the web."""

import gzip
import html
import io
import json
import zlib
from collections.abc import Iterator
from typing import Any

from runtime.text.extraction.extracted import Extracted, Text, Unreadable, metadata
from runtime.text.extraction.html import plain_text
from runtime.text.extraction.limits import TOO_LARGE

NOT_A_MODEL = "not a gzipped JSON service model"


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
