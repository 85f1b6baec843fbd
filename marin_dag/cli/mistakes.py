"""Mistakes in a recipe: what is wrong with a config that it makes, with the line that makes it."""

import traceback
from pathlib import Path
from types import TracebackType

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from marin_dag.values.changes import nearest_field

VALUE_CHARACTERS = 60
HELPERS = "MAKES_STEPS_FOR_RECIPES"
"""Name of a module's variable: true where the module only makes steps for recipes, whose line the user can change."""
_ENGINE = Path(__file__).parents[1]
_LIBRARIES = ("site-packages", "dist-packages")


def config_mistakes(error: ValidationError) -> str:
    """Return a line for each wrong field: where the recipe sets it, the value, and what the field takes."""
    place = _place(error.__traceback__)
    owner = _model(error.__traceback__, error.title)
    problems = error.errors(include_url=False)
    # Where a field takes one of several classes, pydantic reports each of them as a field.
    classes = [problem for problem in problems if _is_class(problem)]
    lines = [_line(error.title, problem, owner) for problem in problems if not _is_class(problem)]
    for path in dict.fromkeys(problem["loc"][:-1] for problem in classes):
        tried = [problem for problem in classes if problem["loc"][:-1] == path]
        names = ", ".join(str(problem["loc"][-1]) for problem in tried)
        field = ".".join([error.title, *map(str, path)])
        lines.append(f"{field}: {_value(tried[0])} is refused: it takes one of {names}.")
    return "\n".join(f"{place}{line}" for line in lines)


def _line(title: str, problem: ErrorDetails, owner: type[BaseModel] | None) -> str:
    loc = problem["loc"]
    field = ".".join([title, *map(str, loc)])
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{field}: no such field.{nearest_field(str(loc[-1]), owner) if owner and len(loc) == 1 else ''}"
    if problem["type"] == "missing":
        return f"{field}: not given, and it has no default."
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ").rstrip(".")
    return f"{field}: {_value(problem)} is refused: {message}." if loc else f"{field}: {message}."


def _is_class(problem: ErrorDetails) -> bool:
    name = problem.get("ctx", {}).get("class_name")
    return problem["type"] in ("dataclass_type", "model_type") and problem["loc"][-1:] == (name,)


def _value(problem: ErrorDetails) -> str:
    value = repr(problem["input"])
    return value if len(value) <= VALUE_CHARACTERS else f"{value[:VALUE_CHARACTERS]}..."


def _place(trace: TracebackType | None) -> str:
    """Return "FILE:LINE: " of the innermost line of the recipe, followed by the step that a helper makes; or ""."""
    step = ""
    for frame, line in reversed(list(traceback.walk_tb(trace))):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_ENGINE) or any(part in _LIBRARIES for part in path.parts):
            continue
        if not frame.f_globals.get(HELPERS):
            return f"{path}:{line}: {step}"
        if isinstance(name := frame.f_locals.get("name"), str):
            step = f"{name}: "
    return ""


def _model(trace: TracebackType | None, title: str) -> type[BaseModel] | None:
    """Return the class of the config that was being made; the error itself has only its title."""
    while trace is not None:
        made = trace.tb_frame.f_locals.get("self")
        if isinstance(made, BaseModel) and type(made).__name__ == title:
            return type(made)
        trace = trace.tb_next
    return None
