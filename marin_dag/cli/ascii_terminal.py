"""ASCII terminals: characters that the encoding of a terminal lacks are replaced, so that no print fails."""

import codecs
import io
from typing import TextIO

ERRORS = "marin_dag.ascii"
IN_ASCII = {"→": "->", "–": "-", "—": "-", "…": "...", "×": "x", "±": "+-"}
BY_DEFAULT = ("strict", "surrogateescape", "backslashreplace")
"""Python's own error handlers: the second in the C locale, where it fails as the first does; the third on stderr."""


def replace_unprintable(stream: TextIO) -> None:
    """Make `stream` replace what its encoding lacks, unless the user has chosen an error handler."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors in BY_DEFAULT:
        codecs.register_error(ERRORS, _in_ascii)
        stream.reconfigure(errors=ERRORS)


def _in_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    replaced = (IN_ASCII.get(letter, letter.encode("ascii", "backslashreplace").decode()) for letter in lacking)
    return "".join(replaced), error.end
