"""HTML from the files in `templates/`: texts are escaped, and `Markup` is kept.

A sample of a web page, which may hold anything, cannot become part of the page by being forgotten somewhere: only a
`Markup`, which templates alone make, passes unescaped.
"""

import base64
import functools
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from bokeh.resources import Resources
from markupsafe import Markup

from runtime.evaluation.uncertainty import is_noise
from runtime.report import recipe
from runtime.report.contents import leading, mean, name_of_weights
from runtime.report.markup import printable, printable_data
from runtime.report.tables import bits_row, changed_settings, least_bits, summed, window_noise
from runtime.tracking.stalls import SECONDS_HEADINGS, STALLS_HEADINGS, seconds_rows, stalls_rows

_FOLDER = Path(__file__).parent / "templates"


@functools.cache
def environment() -> jinja2.Environment:
    """Return what makes HTML of the files in `templates/`."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "bytes": recipe.bytes_label, "counted": recipe.counted, "form": format, "json": _data, "mean": mean,
        "percent": recipe.percent, "rate": recipe.rate, "tokens": recipe.tokens_label,
    }  # fmt: skip
    made.globals |= {
        "changed_settings": changed_settings, "counts": Counter, "is_noise": is_noise, "leading": leading,
        "bits_row": bits_row, "least_bits": least_bits, "name_of_weights": name_of_weights,
        "seconds_headings": SECONDS_HEADINGS, "seconds_rows": seconds_rows, "side_branches": recipe.side_branches,
        "stalls_headings": STALLS_HEADINGS, "stalls_rows": stalls_rows, "summed": summed, "window_noise": window_noise,
        "zip": zip,
    }  # fmt: skip
    return made


def macro(template: str, name: str, *arguments: Any, **keywords: Any) -> Markup:
    """Return the HTML of a macro of a template."""
    templates = environment()
    made = templates.getattr(templates.get_template(template).module, name)(*arguments, **keywords)
    return Markup(made.strip())


def document(
    title: str,
    lead: str,
    *children: str,
    notes: Sequence[str] = (),
    scripts: Sequence[str] | None = None,
    template: str = "page.html",
    **values: Any,
) -> str:
    """Return the text of a whole page, which loads nothing; equal arguments give equal bytes.

    Args:
        title: heading of the page.
        lead: what the page shows, in one sentence or two.
        children: what stands below.
        notes: sentences without a full stop, at the end.
        scripts: by default those of figures.
        template: the page's own template, with its `values`.
    """
    scripts = figure_scripts() if scripts is None else scripts
    return (
        environment()
        .get_template(template)
        .render(
            title=title,
            lead=lead,
            children=children,
            notes=notes,
            scripts=[Markup(script) for script in scripts],
            style=Markup(source("style.css")),
            policy=_content_security_policy(scripts),
            **values,
        )
    )


def figure_scripts() -> tuple[str, str]:
    """Return the plotting part of BokehJS (no widgets, tables and WebGL), and the script that draws figures with it."""
    return Resources(mode="inline", components=["bokeh"]).js_raw[0], source("figures.js")


def source(name: str) -> str:
    """Return the text of a style sheet or script."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def _content_security_policy(scripts: Sequence[str]) -> str:
    """Allow these scripts and the styles, nothing else: a page with strangers' texts loads and sends nothing."""
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    script_source = f"script-src {allowed}; " if allowed else ""
    return f"default-src 'none'; style-src 'unsafe-inline'; {script_source}base-uri 'none'; form-action 'none'"


def _data(value: Any) -> Markup:
    """Return JSON data for a script; no character of the data can end the element that holds it."""
    text = json.dumps(printable_data(value), separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
