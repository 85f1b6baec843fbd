"""Mistakes: what a recipe's own line says wrong about a config, in words and with the line."""

import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from marin_dag.changes import nearest_field

VALUE_CHARACTERS = 60
_NOT_THE_RECIPE = ("site-packages", "dist-packages")


def said_of(error: ValidationError) -> str:
    """A line for each field that is wrong: where it was written, what was found there, what the field takes."""
    place = _place(error.__traceback__)
    made = _model_made(error.__traceback__, error.title)
    problems = error.errors(include_url=False)
    tried: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    for problem in filter(_is_of_a_class, problems):
        tried.setdefault(problem["loc"][:-1], []).append(problem)
    lines = [_said(error.title, problem, made) for problem in problems if not _is_of_a_class(problem)]
    lines += [_no_class_fits(error.title, of_one_field) for of_one_field in tried.values()]
    return "\n".join(f"{place}{line}" for line in lines)


def _said(title: str, problem: ErrorDetails, made: type[BaseModel] | None) -> str:
    loc = problem["loc"]
    path = ".".join([title, *(str(part) for part in loc)])
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        meant = "" if made is None or len(loc) > 1 else nearest_field(str(loc[-1]), made)
        return f"{path}: there is no such field.{meant}"
    if problem["type"] == "missing":
        return f"{path}: is not given, and has no default."
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ").rstrip(".")
    # Of a whole config it is not the value that tells what is wrong.
    return f"{path}: {_shown(problem)} is refused: {message}." if loc else f"{path}: {message}."


def _is_of_a_class(problem: ErrorDetails) -> bool:
    """Whether it is of a class tried in vain, where a field takes one of several: pydantic tells of each as a field."""
    name = problem.get("ctx", {}).get("class_name")
    return problem["type"] in ("dataclass_type", "model_type") and problem["loc"][-1:] == (name,)


def _no_class_fits(title: str, problems: Sequence[ErrorDetails]) -> str:
    """One line for all classes that a field takes, instead of one for each."""
    *loc, _ = map(str, problems[0]["loc"])
    names = ", ".join(str(problem["loc"][-1]) for problem in problems)
    return f"{'.'.join([title, *loc])}: {_shown(problems[0])} is refused: it takes one of {names}."


def _shown(problem: ErrorDetails) -> str:
    value = repr(problem["input"])
    return value if len(value) <= VALUE_CHARACTERS else f"{value[:VALUE_CHARACTERS]}..."


def _place(trace: TracebackType | None) -> str:
    """ "FILE:LINE: " of the innermost line that is neither a library's nor the engine's, or nothing."""
    engine = Path(__file__).parents[1]
    for frame in reversed(traceback.extract_tb(trace)):
        path = Path(frame.filename)
        if not path.is_relative_to(engine) and not any(part in _NOT_THE_RECIPE for part in path.parts):
            return f"{frame.filename}:{frame.lineno}: "
    return ""


def _model_made(trace: TracebackType | None, title: str) -> type[BaseModel] | None:
    """The class of what was being made, which the error itself knows by its title alone."""
    while trace is not None:
        made = trace.tb_frame.f_locals.get("self")
        if isinstance(made, BaseModel) and type(made).__name__ == title:
            return type(made)
        trace = trace.tb_next
    return None
