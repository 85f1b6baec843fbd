"""Mistakes in what a recipe hands to the functions that make its steps."""

import pytest
from pydantic import ValidationError

from marin_dag.cli.mistakes import config_mistakes
from pipelines import recipe
from tests.catalogue import check_message


def test_a_mistake_in_a_merge_names_the_line_of_the_recipe_and_the_step():
    with pytest.raises(ValidationError) as caught:
        recipe.merge("merged", [])
    place = f"{__file__}:{caught.traceback[0].lineno + 1}: "
    line = config_mistakes(caught.value)
    assert line.startswith(f"{place}merged: ")
    check_message(line.removeprefix(place))
