"""Every test that docs/reference names in its tables exists, and every link of the docs leads somewhere."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/mistakes.md"
RECIPE = ROOT / "docs/reference/recipe.md"
TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED_PATH = re.compile(r"`((?:marin_dag|runtime|steps|pipelines|infra|benchmarks|tests)/[a-z0-9_./-]+)`")
"""A file or folder of the repository in code quotes; a placeholder in capitals is none."""


def rows(page: str) -> list[list[str]]:
    """Return the cells of every row of its tables, without headings."""
    found = []
    for line in page.splitlines():
        if line.startswith("|") and not line.startswith(("|---", "| mistake |")):
            found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


ROWS = rows(PAGE.read_text(encoding="utf-8"))
PUBLIC_CODE = RECIPE.read_text(encoding="utf-8").partition("## Defaults of the public code")[2].partition("\n## ")[0]
DEFAULTS = rows(PUBLIC_CODE)[1:]
NAMED = sorted({test for row in ROWS + DEFAULTS for test in TEST.findall(row[-1])})


@functools.cache
def functions_of(path: Path) -> frozenset[str]:
    """Return the names of the functions that a test file defines."""
    return frozenset(node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))


@functools.cache
def anchors(path: Path) -> frozenset[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


def test_every_test_that_is_named_exists() -> None:
    assert len(NAMED) > 100 and all(name.startswith("test_") for _, name in NAMED)
    missing = [
        f"{file}::{name}"
        for file, name in NAMED
        if not (ROOT / file).is_file() or name not in functions_of(ROOT / file)
    ]
    assert missing == []


def test_each_row_names_a_test_or_says_that_nothing_catches_it() -> None:
    assert len(ROWS) > 50 and {len(row) for row in ROWS} == {4}
    assert [row[0] for row in ROWS if not row[3] and "**not caught**" not in row[2].lower()] == []
    assert [row[0] for row in ROWS if row[3] and not TEST.search(row[3])] == []


def test_each_default_of_the_public_code_names_a_test() -> None:
    assert len(DEFAULTS) >= 12 and {len(row) for row in DEFAULTS} == {4}
    assert [row[0] for row in DEFAULTS if not TEST.search(row[-1])] == []


def test_no_mistake_stands_twice() -> None:
    names = [row[0] for row in ROWS]
    assert len(set(names)) == len(names)


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file_and_its_heading(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    named = set(NAMED_PATH.findall(page.read_text(encoding="utf-8")))
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_docs_have_at_most_thirty_thousand_words() -> None:
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in PAGES) <= 30_000
