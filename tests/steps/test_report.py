"""The report step: inputs in, one page out, the same bytes whatever the inputs are called and wherever they lie."""

import logging
from pathlib import Path
from types import SimpleNamespace

from marin_dag.code.fingerprint import closure_of
from runtime.report import html
from steps.report import report
from tests.steps.report_inputs import example


def run(config, folder):
    context = SimpleNamespace(output_path=str(folder), log=logging.getLogger("test"), name="report")
    return report.function(config, context)


def test_the_step_writes_one_page(tmp_path):
    result = run(example(tmp_path / "inputs"), tmp_path / "output")
    assert {path.name for path in (tmp_path / "output").iterdir()} == {result.page}
    page = (tmp_path / "output" / result.page).read_text()
    assert "<b>1.300</b>" in page, "bits per byte of the average"
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<b>&lt;i&gt;The sea&lt;/i&gt;</b> is &lt;/pre&gt;salt …" in page
    assert "look at the samples" in page, "the warning that comes with a score"


def test_the_bytes_do_not_depend_on_where_or_under_which_label_the_inputs_are(tmp_path):
    first = run(example(tmp_path / "here"), tmp_path / "one")
    run(example(tmp_path / "somewhere" / "else"), tmp_path / "two")
    made_once = (tmp_path / "one" / first.page).read_bytes()
    assert made_once == (tmp_path / "two" / first.page).read_bytes()
    assert str(tmp_path).encode() not in made_once
    assert b"label of" not in made_once


def test_each_template_counts_in_the_identity_of_a_report():
    found = closure_of(report.function)
    folder = Path(html.__file__).parent / "templates"
    files = {f"<files>.runtime.report.html:runtime/report/templates/{path.name}" for path in folder.iterdir()}
    assert len(files) >= 8
    assert files == {each for each in found.definitions if each.startswith("<files>.")}, "no file of another page"
    assert not any("runtime.report" in each for each in found.opaque), "the page hides no code from the analysis"
