"""Formats: what a downloaded file or a member of an archive is, and which members count. Plain values.

`members` and `exclude` are shell patterns over the whole member name (`*` also matches `/`); a file that is no
archive is matched by its own name.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class ServiceModels:
    """Service descriptions whose documentation strings are HTML (botocore): gzipped JSON, a page an operation or
    structure, laid out as the service's reference on the web is."""

    members: tuple[str, ...] = ("*/service-2.json.gz",)
    exclude: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class HtmlPages:
    """One page a member, in UTF-8 or the charset that it declares."""

    members: tuple[str, ...] = ("*.html", "*.htm")
    exclude: tuple[str, ...] = ()
    main_content: bool = True
    """Leave navigation, side bars and footers out."""
    max_replaced_share: float = 0.001
    """A page that keeps to its charset but for this share of its characters is read, with U+FFFD for them."""


@dataclasses.dataclass(frozen=True)
class WebArchive:
    """Pages of a crawl, out of WARC files; the texts of WET files as they are."""

    members: tuple[str, ...] = ("*.warc", "*.warc.gz", "*.wet", "*.wet.gz")
    exclude: tuple[str, ...] = ()
    main_content: bool = True
    """Leave navigation, side bars and footers out."""
    statuses: tuple[int, ...] = (200,)
    """What a server must have answered; an error page is none that was asked for."""
    max_record_bytes: int = 32 << 20
    """Larger records, and pages that are larger when decompressed, are counted as unreadable; memory holds one."""
    max_replaced_share: float = 0.001
    """A page that keeps to its charset but for this share of its characters is read, with U+FFFD for them."""


@dataclasses.dataclass(frozen=True)
class PythonSource:
    """One module a document, as it is."""

    members: tuple[str, ...] = ("*.py",)
    exclude: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class PythonDocstrings:
    """Docstrings alone: a document for each module, and one for each of its top-level functions and classes
    (with the methods)."""

    members: tuple[str, ...] = ("*.py",)
    exclude: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class RestructuredText:
    """One page a member; links, roles and directives give way to the text they stand for."""

    members: tuple[str, ...] = ("*.rst", "*.rst.txt")
    exclude: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class PydocTopics:
    """The language reference that `help()` reads: `pydoc_data/topics.py`, a document a topic."""

    members: tuple[str, ...] = ("*pydoc_data/topics.py",)
    exclude: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class PackageMetadata:
    """The long description of a distribution, out of its core metadata."""

    members: tuple[str, ...] = ("*.dist-info/METADATA",)
    exclude: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class JsonLines:
    """One JSON object a line; `.gz` and `.zst` are unpacked on the way."""

    members: tuple[str, ...] = ("*.jsonl", "*.jsonl.gz", "*.jsonl.zst", "*.json.gz", "*.json.zst")
    exclude: tuple[str, ...] = ()
    text_field: str = "text"
    id_field: str | None = "id"
    """None, or absent from a row: the file's name and the line number."""
    unique_ids: bool = False
    """Whether two rows of one id are an error. Published corpora have such rows, which dedup is there to judge."""


@dataclasses.dataclass(frozen=True)
class ParquetTable:
    """One row a document."""

    members: tuple[str, ...] = ("*.parquet",)
    exclude: tuple[str, ...] = ()
    text_field: str = "text"
    id_field: str | None = "id"


@dataclasses.dataclass(frozen=True)
class ChatTable:
    """One conversation a row of a Parquet table: a list of `{role, content}`, written as turns with their speakers."""

    members: tuple[str, ...] = ("*.parquet",)
    exclude: tuple[str, ...] = ()
    messages_field: str = "messages"
    id_field: str | None = "id"


Format = (
    ServiceModels
    | HtmlPages
    | WebArchive
    | PythonSource
    | PythonDocstrings
    | RestructuredText
    | PydocTopics
    | PackageMetadata
    | JsonLines
    | ParquetTable
    | ChatTable
)


def is_read_in_any_order(format_: Format) -> bool:
    """Whether its reader goes back in the file; the others read it from its beginning to its end."""
    return isinstance(format_, WebArchive | ParquetTable | ChatTable) or (
        isinstance(format_, JsonLines) and format_.unique_ids
    )
