"""Declared: the line of a recipe that made a step or gave it its version."""

import os
import sys
from pathlib import Path
from typing import NamedTuple


class Declared(NamedTuple):
    """A line in a source file."""

    file: str
    line: int

    def __str__(self) -> str:
        """Return `file:line`, relative where the file lies below the current folder."""
        file = Path(self.file).absolute()
        return f"{os.path.relpath(file) if file.is_relative_to(Path.cwd()) else file}:{self.line}"


def declared_by_caller() -> Declared:
    frame = sys._getframe(2)
    return Declared(frame.f_code.co_filename, frame.f_lineno)
