"""A whole HTML page around what it shows: head, style, the scripts, and that nothing may be loaded."""

import base64
import functools
import hashlib
from collections.abc import Sequence

from bokeh.resources import Resources

from runtime.report.markup import Markup, element
from runtime.report.script import SCRIPT
from runtime.report.theme import STYLE


def document(title: str, shown: Markup, *, scripts: Sequence[str] | None = None) -> str:
    """Return the file's text; equal arguments give equal bytes.

    Args:
        scripts: by default Bokeh, and the script that draws figures with it.
    """
    scripts = (_library(), SCRIPT) if scripts is None else scripts
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=content_security_policy(scripts)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(STYLE)),
    )
    code = [element("script", Markup(script)) for script in scripts]
    made = element("html", head, element("body", shown, *code), lang="en")
    return f"<!doctype html>\n{made}\n"


def content_security_policy(scripts: Sequence[str]) -> str:
    """Allow these scripts and the styles, nothing else: a page with strangers' texts loads and sends nothing."""
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    allowed = f"default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}"
    return f"{allowed}; base-uri 'none'; form-action 'none'"


@functools.cache
def _library() -> str:
    """Return the part of BokehJS that plots; widgets, tables and WebGL are others."""
    script: str = Resources(mode="inline", components=["bokeh"]).js_raw[0]
    return script


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
