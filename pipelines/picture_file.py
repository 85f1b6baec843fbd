"""Where a picture is to go: refused before anything is worked out for it."""

import os
from collections.abc import Sequence
from pathlib import Path

from marin_dag.errors import UserError


def refuse_unwritable(option: str, path: str, suffixes: Sequence[str]) -> None:
    """Refuses a file that could not be written, or of a kind that is not drawn.

    Raises:
        UserError: with the option, the file and what to do.
    """
    file = Path(path)
    if file.suffix not in suffixes:
        shown = file.suffix or "no ending"
        raise UserError(f"{option} {path}: {shown} is no kind of picture; end it in {' or '.join(suffixes)}.")
    folder = file.absolute().parent
    if not folder.is_dir():
        raise UserError(f"{option} {path}: there is no folder {folder}; make it, or name another file.")
    if file.is_dir() or not os.access(file if file.exists() else folder, os.W_OK):
        raise UserError(f"{option} {path}: it cannot be written; name another file.")
