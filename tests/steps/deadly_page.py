"""An extraction with pages that end their reader's process, repeated until it succeeds.

    python -m tests.steps.deadly_page PREFIX CORPUS [ray]

Each attempt is a fork, and prints how it ended. In a Python that finds `SITECUSTOMIZE` as sitecustomize.py, and in its
children, Resiliparse dies of a page that says "deadly", and never ends a page that says "endless".
"""

import os
import sys
import zipfile
from pathlib import Path

from rich.console import Console

from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.run.driver import Run
from marin_dag.run.live import LineDisplay
from marin_dag.run.local.backend import LocalBackend
from marin_dag.run.ray.backend import RayBackend
from marin_dag.run.task import Backend
from marin_dag.store.prefix import open_store
from runtime.text import documents  # noqa: F401 -- once, not in each fork
from runtime.text.extraction.extract import extract as extract_unit  # noqa: F401
from runtime.text.extraction.formats import HtmlPages, WebArchive
from runtime.text.extraction.limits import Limits
from steps.download import DownloadConfig, download
from steps.extract import ExtractConfig, extract
from steps.fetch import files_in

SITECUSTOMIZE = """
import os, signal
from resiliparse.parse import html

class Tree:
    def parse(page, own=html.HTMLTree):
        if "deadly" in page:
            os.kill(os.getpid(), signal.SIGSEGV)
        while "endless" in page:
            pass
        return own.parse(page)

html.HTMLTree = Tree
"""
MAX_TRIES = 9


def page(text: str) -> bytes:
    return f"<html><body><p>{text}</p></body></html>".encode()


def write_corpus(folder: Path) -> None:
    """Write an archive of pages, one of them deadly, and one of records, one deadly and one endless."""
    folder.mkdir()
    with zipfile.ZipFile(folder / "pages.zip", "w") as archive:
        for number in range(3):
            archive.writestr(zipfile.ZipInfo(f"{number}.html"), page("deadly" if number == 1 else f"page {number}"))
    with (folder / "crawl.warc").open("wb") as file:
        for number in range(4):
            body = page({2: "deadly", 3: "endless"}.get(number, f"record {number}"))
            head = f"WARC/1.0\r\nWARC-Type: resource\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n\r\n"
            file.write(head.encode() + body + b"\r\n\r\n")


def extraction(corpus: str) -> Step:
    fetched = download("download", DownloadConfig(fetch=files_in(corpus, "*")))
    formats = (HtmlPages(members=("*.html",), main_content=False), WebArchive(members=("*.warc",), main_content=False))
    limits = Limits(max_document_seconds=0.5)
    config = ExtractConfig(download=fetched, formats=formats, limits=limits, unit_bytes=150, max_unreadable_share=0.5)
    return extract("extract", config)


def run(prefix: str, corpus: str, backend: Backend) -> int:
    steps = Graph([extraction(corpus)]).steps
    display = LineDisplay(Console(stderr=True), Console(stderr=True))
    return Run(steps, open_store(prefix), backend, display, command="").run()


def main(prefix: str, corpus: str, backend: str = "local") -> int:
    for _ in range(MAX_TRIES):
        child = os.fork()
        if child == 0:
            os._exit(run(prefix, corpus, RayBackend() if backend == "ray" else LocalBackend()))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status)
        if status >= 0:
            return status
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
