"""A small crawl that needs no download: docstrings of Python's library as pages of a web site, in WARC files.

The pages include what every crawl has: copies, nearly equal pages, a banner on every page, pages of links only, another
language, an error page, a revisit, and pages that quote items of an evaluation set.
"""

import gzip
import html
import json
import pathlib
import sysconfig
from collections.abc import Iterator
from typing import NamedTuple

from runtime.text.extraction.extracted import Text
from runtime.text.extraction.packages import read_docstrings

MODULES = (
    "argparse", "bisect", "calendar", "cmd", "codecs", "configparser", "contextlib", "copy", "datetime", "decimal",
    "difflib", "doctest", "enum", "fractions", "ftplib", "functools", "heapq", "inspect", "locale", "logging/__init__",
    "mailbox", "optparse", "pathlib", "pickle", "random", "shutil", "smtplib", "statistics", "string", "subprocess",
    "tarfile", "tempfile", "textwrap", "threading", "typing", "unittest/case", "unittest/mock", "urllib/parse",
    "urllib/request", "zipfile",
)  # fmt: skip
FILES = 3
MIN_WORDS = 60
ITEM_WORDS = 16
_BANNER = "<p>This site uses cookies to remember you. By reading on you accept them all. See our page of terms.</p>"
_LINKS = "<ul>" + "".join(f"<li><a href='/{name}'>{name}</a></li>" for name in ("Home", "News", "Shop")) + "</ul>"
_GERMAN = (
    "Das Spielzeug im Tal wird seit langer Zeit aus Holz gemacht, und niemand weiß mehr, wer damit angefangen hat. "
)


class Page(NamedTuple):
    path: str
    body: str
    kind: str = "response"
    status: str = "200 OK"


def crawl_files() -> dict[str, bytes]:
    """Return the bytes of `crawl-N.warc.gz`, and of `quoted.jsonl`, an evaluation set that some pages quote."""
    pages, items = _pages()
    files = {
        f"crawl-{number}.warc.gz": b"".join(gzip.compress(_record(page), mtime=0) for page in pages[number::FILES])
        for number in range(FILES)
    }
    lines = "".join(json.dumps({"question": item, "answer": "yes"}) + "\n" for item in items)
    return {**files, "quoted.jsonl": lines.encode()}


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
        path = library / f"{module}.py"
        if not path.exists():  # some versions of Python have it elsewhere
            continue
        for found in read_docstrings(path.read_bytes()):
            if isinstance(found, Text) and len(found.text.split()) >= MIN_WORDS:
                yield f"{module}/{found.anchor or 'about'}", found.text


def _body(name: str, text: str) -> str:
    blocks = []
    for block in text.split("\n\n"):
        is_code = all(line.startswith((" ", ">")) for line in block.split("\n") if line)
        blocks.append(f"<pre>{html.escape(block)}</pre>" if is_code else f"<p>{html.escape(block)}</p>")
    return f"<h1>{html.escape(name)}</h1>{''.join(blocks)}"


def _record(page: Page) -> bytes:
    body = f"<nav>{_LINKS}</nav><main>{page.body}{_BANNER}</main>"
    document = f"<html><head><title>{page.path}</title></head><body>{body}</body></html>"
    answer = f"HTTP/1.1 {page.status}\r\nContent-Type: text/html; charset=utf-8\r\n\r\n{document}".encode()
    headers = (
        f"WARC/1.0\r\nWARC-Type: {page.kind}\r\nWARC-Target-URI: https://toys.example/{page.path}\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(answer)}\r\n\r\n"
    )
    return headers.encode() + answer + b"\r\n\r\n"
