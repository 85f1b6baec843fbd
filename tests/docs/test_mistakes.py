"""Pins down: tests that docs/mistakes.md names exist, its links lead somewhere, and a row without a test says so."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/mistakes.md"
TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def rows(page: str) -> list[list[str]]:
    """The cells of every row of its tables, headings left out."""
    found = []
    for line in page.splitlines():
        if line.startswith("|") and not line.startswith(("|---", "| mistake |")):
            found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


ROWS = rows(PAGE.read_text(encoding="utf-8"))
NAMED = sorted({test for row in ROWS for test in TEST.findall(row[-1])})


@functools.cache
def functions_of(path: Path) -> frozenset[str]:
    """Names of the tests that a file defines, read off its syntax tree: nothing of it is imported."""
    return frozenset(node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))


@functools.cache
def anchors(path: Path) -> frozenset[str]:
    """Of the headings of a page, as they are linked to."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[f"{Path(file).stem}::{name}" for file, name in NAMED])
def test_every_test_that_is_named_exists(file: str, name: str) -> None:
    assert (ROOT / file).is_file()
    assert name.startswith("test_") and name in functions_of(ROOT / file)


def test_each_row_names_a_test_or_says_that_nothing_catches_it() -> None:
    assert len(ROWS) > 50 and {len(row) for row in ROWS} == {4}
    assert [row[0] for row in ROWS if not row[3] and "**not caught**" not in row[2].lower()] == []
    assert [row[0] for row in ROWS if row[3] and not TEST.search(row[3])] == []


def test_no_mistake_stands_twice() -> None:
    names = [row[0] for row in ROWS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("page", ["mistakes.md", "training.md", "recipe.md", "evaluation.md"])
def test_every_relative_link_leads_to_a_file_and_its_heading(page: str) -> None:
    links = [link for link in LINK.findall((ROOT / "docs" / page).read_text(encoding="utf-8")) if "://" not in link]
    assert links
    for link in links:
        path, _, anchor = link.partition("#")
        target = (ROOT / "docs" / (path or page)).resolve()
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link
