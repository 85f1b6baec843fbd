"""A whole HTML page around what it shows: head, style, the scripts, and that nothing may be loaded."""

import base64
import functools
import hashlib

from bokeh.resources import Resources

from runtime.report.markup import Markup, element
from runtime.report.script import SCRIPT
from runtime.report.theme import STYLE


def document(title: str, shown: Markup) -> str:
    """Return the file's text; equal arguments give equal bytes."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=content_security_policy()),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(STYLE)),
    )
    scripts = [element("script", Markup(script)) for script in (_library(), SCRIPT)]
    made = element("html", head, element("body", shown, *scripts), lang="en")
    return f"<!doctype html>\n{made}\n"


def content_security_policy() -> str:
    """Allow the two scripts and the styles, nothing else: a page with strangers' texts loads and sends nothing."""
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in (_library(), SCRIPT))
    allowed = f"default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}"
    return f"{allowed}; base-uri 'none'; form-action 'none'"


@functools.cache
def _library() -> str:
    """Return the part of BokehJS that plots; widgets, tables and WebGL are others."""
    script: str = Resources(mode="inline", components=["bokeh"]).js_raw[0]
    return script


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
