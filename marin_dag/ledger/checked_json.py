"""Checked JSON: files that end with the CRC32C of the bytes before it, so that a reader sees each change of them."""

import re

import google_crc32c
from pydantic import BaseModel

CHECKSUM = re.compile(rb',\n "file_crc32c": "([0-9a-f]{8})"\n}\Z')


class ChecksumError(ValueError):
    """A file is not as it was written; the text says what differs, without the path."""


def checked_json(model: BaseModel) -> bytes:
    """Return a model with fields as JSON, with the checksum as the last key."""
    body = model.model_dump_json(indent=1).removesuffix("\n}").encode()
    return body + f',\n "file_crc32c": "{_crc32c(body)}"\n}}'.encode()


def checked_body(data: bytes) -> bytes:
    """Return the JSON without its checksum; raise ChecksumError if the checksum is missing or differs."""
    found = CHECKSUM.search(data)
    if found is None:
        raise ChecksumError("it does not end with its checksum; cut short, edited, or written by another version")
    body = data[: found.start()]
    actual, recorded = _crc32c(body), found[1].decode()
    if actual != recorded:
        raise ChecksumError(f"it has CRC32C {actual}, recorded {recorded}; edited or damaged")
    return body + b"\n}"


def _crc32c(data: bytes) -> str:
    return f"{google_crc32c.value(data):08x}"
