"""A whole HTML page around what it shows: head, style, the one script, and that nothing may be loaded."""

from runtime.report.markup import Markup, element
from runtime.report.theme import SCRIPT, STYLE, content_security_policy


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
    made = element("html", head, element("body", shown, element("script", Markup(SCRIPT))), lang="en")
    return f"<!doctype html>\n{made}\n"
