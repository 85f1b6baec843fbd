"""Example crawl: a few hundred pages in WARC files, made of the interpreter's library, for a run without a crawl."""

from pydantic import BaseModel

from marin_dag.graph.step import StepContext, step
from steps.download import DownloadedFile, DownloadResult
from steps.fetch import InstalledPython


class ExampleCrawlConfig(BaseModel, frozen=True, extra="forbid"):
    python: InstalledPython
    """The interpreter whose docstrings become pages; `installed_python()` fills it in."""


@step(policy="tracked")
def example_crawl(config: ExampleCrawlConfig, context: StepContext) -> DownloadResult:
    """Write three WARC files, and an evaluation set whose items some of the pages quote."""
    from runtime.text.example_crawl import crawl_files
    from runtime.text.fetch.packages import Inventory, check_inventory
    from runtime.text.fetch.verified import write_verified

    check_inventory(Inventory(config.python.python_version, config.python.inventory_sha256))
    files = []
    for name, data in crawl_files().items():
        path = f"files/{name}"
        written = write_verified([data], f"{context.output_path}/{path}", name=name, sha256=None, cure="")
        files.append(DownloadedFile(path=path, name=name, **written._asdict()))
    return DownloadResult(files=tuple(files))
