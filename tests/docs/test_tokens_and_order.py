"""Pins down: the example of docs/tokens-and-order.md runs and prints what the page says."""

import contextlib
import io
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tokens-and-order.md"


def test_the_example_prints_what_the_page_says():
    found = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(found[1], str(PAGE), "exec"), {})
    assert printed.getvalue() == found[2]


def test_every_file_that_the_page_links_to_is_there():
    links = re.findall(r"\]\((\.\./[^)]+)\)", PAGE.read_text())
    assert links and all((PAGE.parent / link).is_file() for link in links)
