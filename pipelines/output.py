"""Output of commands: tables of text, and pages whose path is checked before the work."""

import argparse
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from marin_dag.errors import UserError

SUFFIXES = (".html", ".htm")


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """Return a line for each row; the columns `left` are left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def positive(text: str) -> int:
    """Return a number of at least 1, for argparse."""
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1; use one such as 16")
    return int(text)


def check_writable(option: str, path: str | None) -> None:
    """Raise unless the option is absent or its page can be written; leaves no file behind.

    Raises:
        UserError: names the option, the file and what to do.
    """
    if path is None:
        return
    file = Path(path)
    if "://" in path:
        raise UserError(f"{option} {path}: the file must be local. Name a path without {path.partition('://')[0]}://.")
    if file.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"{option} {path}: cannot draw a file with {file.suffix or 'no ending'}. End the name in .html."
        )
    # Permission bits are not enough: root has all of them, and /sys or a full disk still refuses new files.
    try:
        if file.exists():
            file.open("ab").close()
        else:
            tempfile.TemporaryFile(dir=file.absolute().parent).close()
    except OSError as error:
        raise _refused(option, path, error) from error


def write_page(option: str, path: str, content: str) -> None:
    """Write a page that `check_writable` accepted, and print where it is.

    Raises:
        UserError: the write failed, as on a full disk; a part of the file may exist.
    """
    try:
        Path(path).write_text(content, encoding="utf-8")
    except OSError as error:
        raise _refused(option, path, error) from error
    print(f"drawn: {path}")


def _refused(option: str, path: str, error: OSError) -> UserError:
    return UserError(f"{option} {path}: cannot be written ({error.strerror or error}). Name another file.")
