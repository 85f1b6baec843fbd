"""Output files of commands that draw: checked before the work, written with an error that names the file."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from marin_dag.errors import UserError

PAGE, DRAWING = ".html", ".svg"


def kind_of(path: str) -> str:
    """Return the ending of a file in lower case; `.htm` counts as `.html`."""
    suffix = Path(path).suffix.lower()
    return PAGE if suffix == ".htm" else suffix


def check_writable(option: str, path: str, kinds: Sequence[str]) -> None:
    """Raise unless a file can be written and its ending is one of `kinds`; leaves no file behind.

    Raises:
        UserError: names the option, the file and what to do.
    """
    file = Path(path)
    if "://" in path:
        raise UserError(f"{option} {path}: the file must be local. Name a path without {path.partition('://')[0]}://.")
    if kind_of(path) not in kinds:
        shown = file.suffix or "no ending"
        raise UserError(
            f"{option} {path}: cannot draw a file with {shown}. Use a name that ends in {' or '.join(kinds)}."
        )
    folder = file.absolute().parent
    if not folder.is_dir():
        raise UserError(f"{option} {path}: folder {folder} does not exist. Create it, or name another file.")
    if file.is_dir() or not os.access(file if file.exists() else folder, os.W_OK):
        raise UserError(f"{option} {path}: no permission to write. Name another file.")
    if not file.exists():
        # Permission bits are not enough: root has all of them, and /sys or a full disk still refuses new files.
        try:
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise _refused(option, path, error) from error


def write_picture(option: str, path: str, content: str) -> None:
    """Write a file that `check_writable` accepted.

    Raises:
        UserError: the write failed, as on a full disk; a part of the file may exist.
    """
    try:
        Path(path).write_text(content, encoding="utf-8")
    except OSError as error:
        raise _refused(option, path, error) from error


def _refused(option: str, path: str, error: OSError) -> UserError:
    return UserError(f"{option} {path}: write failed ({error.strerror or error}). Name another file.")
