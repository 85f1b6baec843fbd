"""The step `report`: one self-contained HTML page about a run, and its headline figures as JSON."""

from pydantic import BaseModel

from marin_dag.graph.step import StepContext, step
from steps.report_config import ReportConfig, check_names

PAGE_FILE, SUMMARY_FILE = "report.html", "summary.json"


class ReportResult(BaseModel, frozen=True, extra="forbid"):
    """Files, relative to the step's output."""

    page: str
    summary: str
    """JSON: the headline figures."""


@step(policy="tracked", packages=("bokeh", "numpy", "pyarrow"), check=check_names)
def report(config: ReportConfig, context: StepContext) -> ReportResult:
    """Write the page, which holds no time, host or path: the same results give the same bytes."""
    import json

    import fsspec

    from runtime.report.page import render, summary
    from runtime.report.score_doubts import doubts
    from steps.report_contents import contents_of

    contents = contents_of(config)
    for doubt in doubts(contents):
        context.log.warning("%s", doubt)
    written = {
        PAGE_FILE: render(contents),
        SUMMARY_FILE: json.dumps(summary(contents), indent=2, sort_keys=True, ensure_ascii=False) + "\n",
    }
    for name, text in written.items():
        with fsspec.open(f"{context.output_path}/{name}", "wb", auto_mkdir=True) as file:
            file.write(text.encode())
    context.log.info("the report is %s/%s", context.output_path, PAGE_FILE)
    return ReportResult(page=PAGE_FILE, summary=SUMMARY_FILE)
