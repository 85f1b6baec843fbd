"""The report step: inputs in, one page out, the same bytes whatever the inputs are called and wherever they lie."""

import json
import logging
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from runtime.report.recipe import Node
from steps.report import report
from steps.report_config import check_names
from tests.catalogue import expect_error
from tests.steps.report_inputs import example


def run(config, folder):
    context = SimpleNamespace(output_path=str(folder), log=logging.getLogger("test"), name="report")
    return report.function(config, context)


def test_the_step_writes_one_page_and_its_headline_figures(tmp_path):
    result = run(example(tmp_path / "inputs"), tmp_path / "output")
    assert {path.name for path in (tmp_path / "output").iterdir()} == {result.page, result.summary}
    summary = json.loads((tmp_path / "output" / result.summary).read_text())
    assert summary["consumed_tokens"] == 40 * 8 * 256 + 20 * 24 * 256
    assert summary["bits_per_byte"] == {"phase": "ocelot", "hot": 1.375, "averages": {"averaged": 1.3}}
    page = (tmp_path / "output" / result.page).read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<b>&lt;i&gt;The sea&lt;/i&gt;</b> is &lt;/pre&gt;salt …" in page
    assert "look at the samples" in page, "the warning that comes with a score"


def test_the_bytes_do_not_depend_on_where_or_under_which_label_the_inputs_are(tmp_path):
    first = run(example(tmp_path / "here"), tmp_path / "one")
    run(example(tmp_path / "somewhere" / "else"), tmp_path / "two")
    for name in (first.page, first.summary):
        made_once = (tmp_path / "one" / name).read_bytes()
        assert made_once == (tmp_path / "two" / name).read_bytes()
        assert str(tmp_path).encode() not in made_once
        assert b"label of" not in made_once


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"main_line": ("kestrel", "ocelott")}, r"main_line names \['ocelott'\], which are no phases"),
        ({"parents": {"ocelot": "kestral"}}, r"parents names \['kestral'\]"),
        ({"scores": "exports"}, r"scores names \['other'\], which are no exports"),
        ({"graph": (Node(name="a", kind="x", inputs=("b",), group=""),)}, r"'a' reads \['b'\]"),
    ],
)
def test_names_that_nothing_has_are_refused_when_the_plan_is_made(tmp_path, changes, message):
    config = example(tmp_path)
    if changes.get("scores"):
        changes = {"scores": {"other": config.scores["ocelot"]}}
    with expect_error(ValueError):
        check_names(example(tmp_path, **changes))


def test_a_stage_that_is_none_is_refused(tmp_path):
    config = example(tmp_path)
    with expect_error(ValidationError):
        example(tmp_path, sources={"web": {"tokenise": config.sources["web"]["filter"]}})
