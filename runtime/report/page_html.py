"""HTML of the pages that commands draw, made from the files in `page_templates/`.

The folder is not that of the report, whose identity covers all files of its own: an edit of these pages leaves reports
current.
"""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from runtime.report import html

_FOLDER = Path(__file__).parent / "page_templates"


def macro(template: str, name: str, *arguments: Any, **keywords: Any) -> Markup:
    """Return what a macro of a template makes."""
    return html.macro_in(html.environment(_FOLDER), template, name, *arguments, **keywords)


def source(name: str) -> str:
    """Return the text of a script."""
    return (_FOLDER / name).read_text(encoding="utf-8")
