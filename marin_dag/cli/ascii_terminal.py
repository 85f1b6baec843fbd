"""Terminals without UTF-8: what is printed there ends no command, and reads well in ASCII."""

import codecs
import io
from typing import TextIO

ERRORS = "marin_dag.ascii"
IN_ASCII = {"→": "->", "–": "-", "—": "-", "…": "...", "×": "x", "±": "+-"}
BY_DEFAULT = ("strict", "surrogateescape", "backslashreplace")
"""How Python opens a stream where nobody has chosen: the second in the locale C, and there it refuses what the first
does; the third is standard error's."""


def made_printable(stream: TextIO) -> None:
    """Has `stream` replace what its encoding lacks, unless somebody has chosen already what becomes of it."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors in BY_DEFAULT:
        codecs.register_error(ERRORS, _in_ascii)
        stream.reconfigure(errors=ERRORS)


def _in_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacked = error.object[error.start : error.end]
    written = (IN_ASCII.get(letter, letter.encode("ascii", "backslashreplace").decode()) for letter in lacked)
    return "".join(written), error.end
