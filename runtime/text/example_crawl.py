"""A small crawl that nobody had to fetch: docstrings of Python's own library as pages of a web site, in WARC files.

Among the pages is what every crawl has: copies, nearly equal pages, a banner on all of them, pages of nothing but
links, another language, an error page, a revisit, and pages that quote items of an evaluation set.
"""

import gzip
import html
import json
import pathlib
import sysconfig
from collections.abc import Iterator
from typing import NamedTuple

from runtime.text.extraction.extracted import Text
from runtime.text.extraction.python_source import read_docstrings

MODULES = (
    "argparse.py", "bisect.py", "calendar.py", "cmd.py", "codecs.py", "configparser.py", "contextlib.py", "copy.py",
    "datetime.py", "decimal.py", "difflib.py", "doctest.py", "enum.py", "fractions.py", "ftplib.py", "functools.py",
    "heapq.py", "inspect.py", "locale.py", "logging/__init__.py", "mailbox.py", "optparse.py", "pathlib.py",
    "pickle.py", "random.py", "shutil.py", "smtplib.py", "statistics.py", "string.py", "subprocess.py", "tarfile.py",
    "tempfile.py",
    "textwrap.py", "threading.py", "typing.py", "unittest/case.py", "unittest/mock.py", "urllib/parse.py",
    "urllib/request.py", "zipfile.py",
)  # fmt: skip
FILES = 3
MIN_WORDS = 60
ITEM_WORDS = 16
_BANNER = "<p>This site keeps cookies to remember you. By reading on you accept them all. See our page of terms.</p>"
_LINKS = "<ul>" + "".join(f"<li><a href='/{name}'>{name}</a></li>" for name in ("Home", "News", "Shop")) + "</ul>"
_GERMAN = (
    "Das Spielzeug im Tal wird seit langer Zeit aus Holz gemacht, und niemand weiß mehr, wer damit angefangen hat. "
)


class Page(NamedTuple):
    path: str
    body: str
    kind: str = "response"
    status: str = "200 OK"


def write_crawl(folder: pathlib.Path) -> None:
    """Writes `crawl-N.warc.gz`, and `quoted.jsonl`, an evaluation set whose items are quoted by some of the pages."""
    pages, items = _pages()
    for number in range(FILES):
        records = b"".join(gzip.compress(_record(page), mtime=0) for page in pages[number::FILES])
        (folder / f"crawl-{number}.warc.gz").write_bytes(records)
    lines = "".join(json.dumps({"question": item, "answer": "yes"}) + "\n" for item in items)
    (folder / "quoted.jsonl").write_text(lines)


def _pages() -> tuple[list[Page], list[str]]:
    texts = list(_texts())
    pages = [Page(name, _body(name, text)) for name, text in texts]
    items = [" ".join(text.split()[20 : 20 + ITEM_WORDS]) for _, text in texts[7::20]]
    copies = [Page(f"mirror/{page.path}", page.body) for page in pages[::25]]
    versions = [
        Page(f"old/{name}", _body(name, f"{text}\n\nThis was an older version.")) for name, text in texts[5::25]
    ]
    odd = [
        Page("links", f"<p>All our pages.</p>{_LINKS * 5}"),
        Page("de/spielzeug", f"<p>{_GERMAN * 6}</p>"),
        Page("gone", "<p>There is nothing here.</p>", status="404 Not Found"),
        Page("again", "", kind="revisit"),
    ]
    return [*pages, *copies, *versions, *odd], items


def _texts() -> Iterator[tuple[str, str]]:
    library = pathlib.Path(sysconfig.get_path("stdlib"))
    for module in MODULES:
        path = library / module
        if not path.exists():  # a version of Python that has it elsewhere
            continue
        for found in read_docstrings(path.read_bytes()):
            if isinstance(found, Text) and len(found.text.split()) >= MIN_WORDS:
                yield f"{module.removesuffix('.py')}/{found.anchor or 'about'}", found.text


def _body(name: str, text: str) -> str:
    blocks = []
    for block in text.split("\n\n"):
        is_code = all(line.startswith((" ", ">")) for line in block.split("\n") if line)
        blocks.append(f"<pre>{html.escape(block)}</pre>" if is_code else f"<p>{html.escape(block)}</p>")
    return f"<h1>{html.escape(name)}</h1>{''.join(blocks)}"


def _record(page: Page) -> bytes:
    body = f"<nav>{_LINKS}</nav><main>{page.body}{_BANNER}</main>"
    shown = f"<html><head><title>{page.path}</title></head><body>{body}</body></html>"
    answer = f"HTTP/1.1 {page.status}\r\nContent-Type: text/html; charset=utf-8\r\n\r\n{shown}".encode()
    headers = (
        f"WARC/1.0\r\nWARC-Type: {page.kind}\r\nWARC-Target-URI: https://toys.example/{page.path}\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(answer)}\r\n\r\n"
    )
    return headers.encode() + answer + b"\r\n\r\n"
