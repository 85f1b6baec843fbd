"""The step `report`: one self-contained HTML page about a run."""

from pydantic import BaseModel

from marin_dag.graph.step import StepContext, step
from steps.report_config import ReportConfig

PAGE_FILE = "report.html"


class ReportResult(BaseModel, frozen=True, extra="forbid"):
    page: str
    """File, relative to the step's output."""


@step(policy="tracked", packages=("bokeh", "jinja2", "numpy", "pyarrow", "tokenizers"))
def report(config: ReportConfig, context: StepContext) -> ReportResult:
    """Write the page, which holds no time, host or path: the same results give the same bytes."""
    import fsspec

    from runtime.report.page import render
    from runtime.report.score_doubts import doubts
    from steps.report_contents import contents_of

    contents = contents_of(config)
    for doubt in doubts(contents):
        context.log.warning("%s", doubt)
    with fsspec.open(f"{context.output_path}/{PAGE_FILE}", "wb", auto_mkdir=True) as file:
        file.write(render(contents).encode())
    context.log.info("the report is %s/%s", context.output_path, PAGE_FILE)
    return ReportResult(page=PAGE_FILE)
