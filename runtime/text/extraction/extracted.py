"""The values that readers of a format yield: texts, unreadable pieces, and pieces that are no documents."""

import json
from collections.abc import Iterator
from typing import NamedTuple


class DamagedFileError(ValueError):
    """A file that cannot be read from here on; the other files of its source can."""


class Text(NamedTuple):
    """A document; `anchor` is its id within the file ("" for the only document of a file)."""

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


class Excluded(NamedTuple):
    """A piece that is no document by its nature; many of them are no fault."""

    anchor: str
    reason: str
    detail: str


Extracted = Iterator[Text | Unreadable | Excluded]

NOT_UTF8 = "not UTF-8"
NO_TEXT = "no text"
EXCERPT_BYTES = 200


def no_bytes(name: str) -> DamagedFileError:
    return DamagedFileError(f"{name}: holds no bytes: its upload was cut short. Fetch it again, or leave it out.")


def decoded(data: bytes) -> str | Unreadable:
    """Decode UTF-8 strictly; guessing another encoding would silently change the text."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        detail = f"byte {data[error.start]:#04x} at offset {error.start}: {error.reason}"
        around = data[max(0, error.start - EXCERPT_BYTES // 2) : error.start + EXCERPT_BYTES // 2]
        return Unreadable("", NOT_UTF8, detail, around.decode("utf-8", errors="backslashreplace"))


def metadata(**values: object) -> str:
    return json.dumps(values, ensure_ascii=False, sort_keys=True)
