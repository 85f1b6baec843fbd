"""A whole HTML page around what it shows: head, style, the scripts, and that nothing may be loaded."""

import base64
import functools
import hashlib
from collections.abc import Sequence

from bokeh.resources import Resources

from runtime.report.markup import Markup, element
from runtime.report.script import SCRIPT
from runtime.report.theme import STYLE


def document(
    title: str,
    lead: str,
    *children: str,
    opening: Sequence[str] = (),
    notes: Sequence[str] = (),
    scripts: Sequence[str] | None = None,
) -> str:
    """Return the file's text; equal arguments give equal bytes.

    Args:
        title: heading of the page.
        lead: what the page shows, in one sentence or two.
        children: what stands below.
        opening: further elements below the lead.
        notes: sentences without a full stop, at the end.
        scripts: by default Bokeh, and the script that draws figures with it.
    """
    scripts = figure_scripts() if scripts is None else scripts
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=content_security_policy(scripts)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(STYLE)),
    )
    header = element("header", element("h1", title), element("p", lead, class_="lead"), *opening)
    shown = element("main", header, *children, *(element("p", f"{note}.") for note in notes))
    code = [element("script", Markup(script)) for script in scripts]
    return f"<!doctype html>\n{element('html', head, element('body', shown, *code), lang='en')}\n"


def content_security_policy(scripts: Sequence[str]) -> str:
    """Allow these scripts and the styles, nothing else: a page with strangers' texts loads and sends nothing."""
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    hashes = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    allowed = f"default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}"
    return f"{allowed}; base-uri 'none'; form-action 'none'"


@functools.cache
def figure_scripts() -> tuple[str, str]:
    """Return the plotting part of BokehJS (no widgets, tables and WebGL), and the script that draws figures with it."""
    return Resources(mode="inline", components=["bokeh"]).js_raw[0], SCRIPT
