"""Where a picture is to go: refused before anything is worked out for it, and written with an error that says where."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from marin_dag.errors import UserError

PAGE, DRAWING = ".html", ".svg"


def kind_of(path: str) -> str:
    """The ending of a file as it is written here: `.htm` and `.HTML` are `.html`."""
    suffix = Path(path).suffix.lower()
    return PAGE if suffix == ".htm" else suffix


def refuse_unwritable(option: str, path: str, kinds: Sequence[str]) -> None:
    """Refuses a file that could not be written, or of a kind that is not drawn; leaves nothing behind.

    Raises:
        UserError: with the option, the file and what to do.
    """
    file = Path(path)
    if "://" in path:
        raise UserError(f"{option} {path}: it is written on this machine; name a local file.")
    if kind_of(path) not in kinds:
        shown = file.suffix or "no ending"
        raise UserError(f"{option} {path}: {shown} is no kind of picture; end it in {' or '.join(kinds)}.")
    folder = file.absolute().parent
    if not folder.is_dir():
        raise UserError(f"{option} {path}: there is no folder {folder}; make it, or name another file.")
    if file.is_dir() or not os.access(file if file.exists() else folder, os.W_OK):
        raise UserError(f"{option} {path}: it cannot be written; name another file.")
    if not file.exists():
        # Permission bits do not tell: root has all of them, and nothing is made in /sys, or on a disk without inodes.
        try:
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise _refused(option, path, error) from error


def write_picture(option: str, path: str, content: str) -> None:
    """Writes what `refuse_unwritable` let pass.

    Raises:
        UserError: it could not be written after all, as on a full disk; a part of it may be there.
    """
    try:
        Path(path).write_text(content, encoding="utf-8")
    except OSError as error:
        raise _refused(option, path, error) from error


def _refused(option: str, path: str, error: OSError) -> UserError:
    return UserError(f"{option} {path}: it could not be written ({error.strerror or error}); name another file.")
