"""Pages that commands draw: the path is checked before the work; an error of the write names the file."""

import os
import tempfile
from pathlib import Path

from marin_dag.errors import UserError

SUFFIXES = (".html", ".htm")


def check_writable(option: str, path: str) -> None:
    """Raise unless a page can be written; leaves no file behind.

    Raises:
        UserError: names the option, the file and what to do.
    """
    file = Path(path)
    if "://" in path:
        raise UserError(f"{option} {path}: the file must be local. Name a path without {path.partition('://')[0]}://.")
    if file.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"{option} {path}: cannot draw a file with {file.suffix or 'no ending'}. End the name in .html."
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


def write_page(option: str, path: str, content: str) -> None:
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
