"""A whole HTML page around what it shows: head, style, the scripts, and that nothing may be loaded."""

import base64
import functools
import hashlib
from collections.abc import Sequence

from bokeh.resources import Resources

from runtime.report.markup import element, escaped
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
    head = f"""<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escaped(content_security_policy(scripts))}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{escaped(title)}</title><style>{STYLE}</style>"""
    header = element("header", element("h1", title), element("p", lead, class_="lead"), *opening)
    shown = element("main", header, *children, *(element("p", f"{note}.") for note in notes))
    code = "".join(f"<script>{script}</script>" for script in scripts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{shown}{code}</body></html>\n'


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
