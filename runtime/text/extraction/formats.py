"""Formats of downloaded files and members of archives, and which members they cover. Plain values.

`members` and `exclude` are shell patterns over the whole member name (`*` also matches `/`), or over the name of a file
that is no archive.
"""

import dataclasses
from typing import NamedTuple


@dataclasses.dataclass(frozen=True)
class ServiceModels:
    """Service descriptions of botocore: gzipped JSON with documentation in HTML, a page an operation or structure."""

    members: tuple[str, ...] = ("*/service-2.json.gz",)
    exclude: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pages:
    """Settings of formats that hold HTML pages."""

    main_content: bool = True
    """Leave navigation, side bars and footers out."""
    max_replaced_share: float = 0.001
    """Read a page with U+FFFD for up to this share of its characters, where its charset lacks them."""


@dataclasses.dataclass(frozen=True)
class HtmlPages(Pages):
    """HTML pages, one a member, in UTF-8 or the charset that it declares."""

    members: tuple[str, ...] = ("*.html", "*.htm")
    exclude: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class WebArchive(Pages):
    """Pages of a crawl in WARC files, and the texts of WET files."""

    members: tuple[str, ...] = ("*.warc", "*.warc.gz", "*.wet", "*.wet.gz")
    exclude: tuple[str, ...] = ()
    statuses: tuple[int, ...] = (200,)
    """HTTP statuses of pages; others are error pages."""


@dataclasses.dataclass(frozen=True)
class PlainText:
    """Texts in UTF-8, one a member, kept as they are: notes, code, pages with light markup."""

    members: tuple[str, ...] = ("*.txt", "*.md", "*.rst")
    exclude: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class PythonDocstrings:
    """Docstrings: a document for each module, and for each top-level function or class with its methods."""

    members: tuple[str, ...] = ("*.py",)
    exclude: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class JsonLines:
    """JSON objects, one per line, packed by gzip or zstd or not at all."""

    members: tuple[str, ...] = ("*.jsonl", "*.jsonl.gz", "*.jsonl.zst", "*.json.gz", "*.json.zst")
    exclude: tuple[str, ...] = ()
    text_field: str = "text"
    id_field: str | None = "id"
    """If None, or absent from a row, the file's name and the line number are the id."""
    unique_ids: bool = False
    """Whether two rows with one id are an error. Published corpora have such rows; dedup judges them. The id of a
    later row is then followed by its line number."""


@dataclasses.dataclass(frozen=True)
class ParquetTable:
    """Rows of a Parquet table, one a document."""

    members: tuple[str, ...] = ("*.parquet",)
    exclude: tuple[str, ...] = ()
    text_field: str = "text"
    id_field: str | None = "id"


@dataclasses.dataclass(frozen=True)
class ChatTable:
    """Conversations, one a row of a Parquet table or a line of JSON: lists of turns, written with their speakers."""

    members: tuple[str, ...] = ("*.parquet",)
    exclude: tuple[str, ...] = ()
    messages_field: str = "messages"
    id_field: str | None = "id"


Format = ServiceModels | HtmlPages | WebArchive | PlainText | PythonDocstrings | JsonLines | ParquetTable | ChatTable


class Unit(NamedTuple):
    """Work for one shard: members of one file, read as one format."""

    file: str
    name: str
    """The file's name in ids; "" for the only archive of a source."""
    format_index: int
    members: tuple[str, ...]
    """Empty for a file that is no archive."""
