"""Example crawl: a few hundred pages in WARC files, made of the interpreter's library, for a run without a crawl."""

from pydantic import BaseModel

from marin_dag.graph.step import StepContext, step
from steps.download import DownloadedFile, DownloadResult
from steps.fetch import InstalledPython


class ExampleCrawlConfig(BaseModel, frozen=True, extra="forbid"):
    python: InstalledPython
    """Whose docstrings; `installed_python()` fills it in."""


@step(policy="tracked")
def example_crawl(config: ExampleCrawlConfig, context: StepContext) -> DownloadResult:
    """Three WARC files, and an evaluation set of items that some of their pages quote."""
    import tempfile
    from pathlib import Path

    from runtime.text.example_crawl import write_crawl
    from runtime.text.fetch.copy import copy_verified
    from runtime.text.fetch.installed_python import Inventory, refuse_another_python

    refuse_another_python(Inventory(config.python.python_version, config.python.inventory_sha256))
    files = []
    with tempfile.TemporaryDirectory() as folder:
        write_crawl(Path(folder))
        for path in sorted(Path(folder).iterdir()):
            relative = f"files/{path.name}"
            copied = copy_verified(str(path), f"{context.output_path}/{relative}", sha256=None, cure="")
            files.append(DownloadedFile(path=relative, name=path.name, **copied._asdict()))
    return DownloadResult(files=tuple(files))
