"""Declared: where in the source a step was written, down to the call, so that a person is sent to the very line."""

import ast
import os
import sys
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from marin_dag.errors import UserError


class Declared(NamedTuple):
    """One call in some source file. Cheap to take; the position is worked out only when somebody asks."""

    code: CodeType
    instruction: int

    @property
    def file(self) -> Path:
        """The source file."""
        return Path(self.code.co_filename).absolute()

    @property
    def span(self) -> tuple[int, int, int, int]:
        """First line, first column, last line, last column, as `ast` counts them."""
        found = next(islice(self.code.co_positions(), self.instruction // 2, None))
        first_line, last_line, first_column, last_column = found
        if first_line is None or last_line is None or first_column is None or last_column is None:
            raise UserError(f"{self.file}: compiled without positions; run without -X no_debug_ranges.")
        return first_line, first_column, last_line, last_column

    def call(self) -> ast.Call:
        """The call as a syntax tree."""
        span = self.span
        for node in ast.walk(parsed(self.file)):
            if isinstance(node, ast.Call) and span_of(node) == span:
                return node
        raise UserError(f"{self}: the file has changed since it was read; try again.")

    def __str__(self) -> str:
        return place(self.file, self.span[0])


def declared_by_caller() -> Declared:
    """The call that is running in the frame two above: whoever called the function that asks."""
    frame = sys._getframe(2)
    return Declared(frame.f_code, frame.f_lasti)


def parsed(file: Path) -> ast.Module:
    """The syntax of a source file as it is now."""
    try:
        return ast.parse(file.read_bytes(), filename=str(file))
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}; it held the declaration of a step.") from None


def span_of(node: ast.expr) -> tuple[int, int, int, int]:
    """Where a node stands, as `Declared.span` says it."""
    return node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def place(file: Path, line: int) -> str:
    """`file:line`, relative where that is shorter."""
    shown = os.path.relpath(file) if file.is_relative_to(Path.cwd()) else str(file)
    return f"{shown}:{line}"
