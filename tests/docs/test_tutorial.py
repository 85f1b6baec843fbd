"""The tutorial's commands work in their order and print what the page shows."""

import re
from pathlib import Path

from tests.docs.tutorial import BLOCK, PAGE, run, without_varying


def test_the_tutorial_prints_what_its_page_shows(tmp_path: Path) -> None:
    page = PAGE.read_text()
    again = "if that is meant: python -m tests.docs.tutorial"
    assert without_varying(run(tmp_path, page)) == without_varying(page), again


def test_the_recipe_has_at_most_45_lines_and_one_import_of_names() -> None:
    (recipe,) = [text for language, text in BLOCK.findall(PAGE.read_text()) if "def build(" in text]
    assert len(recipe.splitlines()) <= 45
    assert re.findall(r"^(?:from|import) .*", recipe, re.MULTILINE) == ["from pipelines import recipe"]
