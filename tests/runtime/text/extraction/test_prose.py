"""reStructuredText: markup goes, its text stays, and no run of one character takes quadratic time."""

import pytest

from runtime.text.extraction.prose import plain_restructured_text


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        ("See `the docs\n<https://toys.example>`_ and `more`_.", "See the docs and more."),
        ("Call :py:func:`~toys.wind` or :ref:`the key <key>` or :any:`it `.", "Call toys.wind or the key or it."),
        ("As follows::\n\n    wind", "As follows:\n\n    wind"),
        ("Wind it.\n\n.. versionadded:: 3.2", "Wind it."),
        (".. note:: Wind it.", "Wind it."),
    ],
)
def test_markup_goes_and_its_text_stays(marked, plain):
    assert plain_restructured_text(marked) == plain


@pytest.mark.parametrize(
    "line", ["x{}y", "`{}", ":a:`{}", "`a{}<b", "x{}::y"], ids=["in a line", "title", "role", "address", "block"]
)
@pytest.mark.parametrize("run", [" ", ":a", ":", ". ", "`a "], ids=["spaces", "roles", "colons", "dots", "titles"])
def test_a_run_of_one_character_is_read(line, run):
    text = line.format(run * 100_000)
    assert len(plain_restructured_text(text)) <= len(text)
    assert plain_restructured_text(f".. {text}\n\nx").endswith("x")
