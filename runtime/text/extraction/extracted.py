"""What a reader of one format yields: texts, and what it could not read."""

import json
from collections.abc import Iterator
from typing import NamedTuple


class DamagedFileError(ValueError):
    """A file that cannot be read from here on; the others of its source can."""


class Text(NamedTuple):
    """One document of a file; `anchor` tells it from the others of the same file ("" where there are none)."""

    anchor: str
    text: str
    metadata: str = "{}"
    """A JSON object."""


class Unreadable(NamedTuple):
    """A piece that should have been a document; `reason` is counted, `detail` says what and where."""

    anchor: str
    reason: str
    detail: str
    excerpt: str


class LeftOut(NamedTuple):
    """A piece that is no document by its nature, so that nothing is wrong if there are many."""

    anchor: str
    reason: str
    detail: str


Extracted = Iterator[Text | Unreadable | LeftOut]

NOT_UTF8 = "not UTF-8"
EXCERPT_BYTES = 200


def decoded(data: bytes) -> str | Unreadable:
    """Strict UTF-8; a guess at another encoding would be a silent change of what is trained on."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        detail = f"byte {data[error.start]:#04x} at offset {error.start}: {error.reason}"
        around = data[max(0, error.start - EXCERPT_BYTES // 2) : error.start + EXCERPT_BYTES // 2]
        return Unreadable("", NOT_UTF8, detail, around.decode("utf-8", errors="backslashreplace"))


def metadata(**values: object) -> str:
    return json.dumps(values, ensure_ascii=False, sort_keys=True)
