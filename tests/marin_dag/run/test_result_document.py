"""Result documents: a result of another type, or with a path below the prefix, is refused with the fix."""

import pytest
from pydantic import BaseModel

from marin_dag.run.result_document import result_document
from tests.catalogue import expect_error
from tests.marin_dag.toy import CountResult


class Page(BaseModel, frozen=True, extra="forbid"):
    page: str


def test_a_result_of_another_type_is_refused() -> None:
    with expect_error(TypeError):
        result_document("count", CountResult, {"count": 1}, "/data/runs")


@pytest.mark.parametrize(
    ("page", "is_refused"),
    [
        ("/data/runs/outputs/a.html", True),
        ("see /data/runs", True),
        ("gs://bucket/data/runs/a", False),
        ("/data/runs-of-others/a", False),
    ],
)
def test_a_path_below_the_prefix_is_refused_and_a_similar_one_is_not(page: str, is_refused: bool) -> None:
    if is_refused:
        with expect_error(ValueError):
            result_document("report", Page, Page(page=page), "/data/runs")
    else:
        assert result_document("report", Page, Page(page=page), "/data/runs") == {"page": page}
