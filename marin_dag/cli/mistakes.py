"""Mistakes: what a recipe's own line says wrong about a config or a value in it, in words and with the line."""

import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, TracebackType

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from marin_dag.values.changes import nearest_field
from marin_dag.values.walk import is_structured

VALUE_CHARACTERS = 60
_ENGINE = Path(__file__).parents[1]
_NOT_THE_RECIPE = ("site-packages", "dist-packages")
NO_SUCH_FIELD = "there is no such field"
NOT_GIVEN = "is not given, and has no default"
# Python's words for a class that was called with other fields than it has.
_MADE_WRONG = re.compile(r"(\w+)\.__init__\(\) (got an unexpected keyword|missing \d+ required)[^']*(.*)")


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


def said_of_call(error: TypeError) -> str:
    """As `said_of`, of a dataclass that the recipe made with a field that it has not, or without one that it needs; of
    any other error nothing."""
    wrong = _MADE_WRONG.search(str(error))
    *_, innermost = traceback.extract_tb(error.__traceback__)
    made = None if wrong is None or not _is_of_the_recipe(innermost) else _dataclass_made(error.__traceback__, wrong[1])
    if wrong is None or made is None:
        return ""
    place = _place(error.__traceback__)
    if wrong[2].startswith("missing"):
        names = re.findall(r"'(\w+)'", wrong[3])
        return "\n".join(f"{place}{made.__name__}.{name}: {NOT_GIVEN}." for name in names)
    name = wrong[3].split("'")[1]  # later versions of Python say behind it what they take it for
    return f"{place}{made.__name__}.{name}: {NO_SUCH_FIELD}.{nearest_field(name, made)}"


def _said(title: str, problem: ErrorDetails, made: type[BaseModel] | None) -> str:
    loc = problem["loc"]
    path = ".".join([title, *(str(part) for part in loc)])
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        meant = "" if made is None or len(loc) > 1 else nearest_field(str(loc[-1]), made)
        return f"{path}: {NO_SUCH_FIELD}.{meant}"
    if problem["type"] == "missing":
        return f"{path}: {NOT_GIVEN}."
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
    for frame in reversed(traceback.extract_tb(trace)):
        if _is_of_the_recipe(frame):
            return f"{frame.filename}:{frame.lineno}: "
    return ""


def _is_of_the_recipe(frame: traceback.FrameSummary) -> bool:
    """Whether it runs neither a library's code nor the engine's."""
    path = Path(frame.filename)
    return not path.is_relative_to(_ENGINE) and not any(part in _NOT_THE_RECIPE for part in path.parts)


def _model_made(trace: TracebackType | None, title: str) -> type[BaseModel] | None:
    """The class of what was being made, which the error itself knows by its title alone."""
    while trace is not None:
        made = trace.tb_frame.f_locals.get("self")
        if isinstance(made, BaseModel) and type(made).__name__ == title:
            return type(made)
        trace = trace.tb_next
    return None


def _dataclass_made(trace: TracebackType | None, name: str) -> type | None:
    """The dataclass of this name that the innermost line sees, itself or in a module."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return None
    seen = [*trace.tb_frame.f_locals.values(), *trace.tb_frame.f_globals.values()]
    inside = [getattr(value, name, None) for value in seen if isinstance(value, ModuleType)]
    return next((value for value in (*seen, *inside) if is_structured(value) and value.__name__ == name), None)
