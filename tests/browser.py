"""Pages in a real browser: Debian's chromium, which the tests of pages drive."""

import contextlib
import shutil
import threading
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from marin_dag.cli.page_content import PageContent
from marin_dag.cli.page_server import PageServer
from marin_dag.cli.watched import Watched

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")


@contextlib.contextmanager
def running_browser() -> Iterator[Browser]:
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def run_page(watched: Watched, content: PageContent, *, width: int = 1100) -> Iterator[Page]:
    """Yield the page of a run, `width` pixels wide; fail at the end for each error and warning of its console."""
    problems: list[str] = []
    with PageServer(watched, 0, content) as server, running_browser() as browser:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        shown = browser.new_page(viewport={"width": width, "height": 900})
        shown.on("console", lambda message: message.type in ("error", "warning") and problems.append(message.text))
        shown.on("pageerror", lambda error: problems.append(str(error)))
        shown.goto(server.address)
        yield shown
        server.shutdown()
    assert problems == []
