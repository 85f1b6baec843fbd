"""Config checks: configs and names that cannot work, and settings that a recipe leaves open, before anything starts."""

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from marin_dag.errors import RefusedConfigError, UserError, listed
from marin_dag.graph.step import MAX_SHOWN, Step
from marin_dag.ledger.records import max_name_length
from marin_dag.store.store import Store

MAX_NAMED = 3


class RefusedStepsError(UserError):
    """Steps whose configs or names cannot work; `names` are theirs."""

    def __init__(self, message: str, names: Iterable[str]) -> None:
        super().__init__(message)
        self.names = frozenset(names)


def check_configs(steps: Iterable[Step[Any]]) -> None:
    """Raise RefusedStepsError with every config that its kind's checks refuse."""
    names_by_problem: dict[str, list[str]] = defaultdict(list)
    refused = refusals(steps)
    for name, problem in refused.items():
        names_by_problem[problem].append(name)
    if refused:
        lines = (f"{listed(names, MAX_NAMED)}: {text}" for text, names in names_by_problem.items())
        raise RefusedStepsError("\n".join(lines), refused)


def check_name_lengths(steps: Iterable[Step[Any]], store: Store) -> None:
    """Raise RefusedStepsError for names that leave no room in the store's paths for the files of an output."""
    limit = max_name_length(store)
    names = [step.name for step in steps if len(step.name) > limit]
    if names:
        longest = max(names, key=len)
        what = "step name" if len(names) == 1 else f"{len(names):,} step names are too long, such as"
        raise RefusedStepsError(
            f"{what} …{longest[-MAX_SHOWN:]}: {len(longest):,} characters, but at most {max(limit, 0):,} fit: a path "
            f"below {store.prefix} has at most {store.max_path_in_bytes:,} bytes, and the files of the output need the "
            "rest. Use fewer or shorter parts, or a shorter --prefix.",
            names,
        )


def refusals(steps: Iterable[Step[Any]]) -> dict[str, str]:
    """Return the problem and its fix for each step whose config cannot work, by name."""

    def ask(step: Step[Any]) -> None:
        if step.kind.check is not None:
            step.kind.check(step.config)
        if step.kind.check_on is not None:
            step.kind.check_on(step.config, step.resources)

    return {name: with_fix(name, error) for name, error in _errors(steps, ask).items()}


def undecided(steps: Iterable[Step[Any]]) -> dict[str, ValueError]:
    """Return the settings that a recipe leaves open, as errors by the name of the step."""

    def ask(step: Step[Any]) -> None:
        if step.kind.check_decided is not None:
            step.kind.check_decided(step.config)

    return _errors(steps, ask)


def with_fix(name: str, error: ValueError) -> str:
    """Return the message of an error of the step `name`, with the --set options that fix it."""
    options = " --set ".join(shlex.quote(setting) for setting in settings_to_fix(name, error))
    return f"{error}\nOn the command line: --set {options}" if options else str(error)


def settings_to_fix(name: str, error: ValueError) -> list[str]:
    """Return STEP.FIELD=TEXT for each field that fixes an error of the step `name`."""
    cure = error.cure if isinstance(error, RefusedConfigError) else {}
    return [f"{name}.{field}={text}" for field, text in cure.items()]


def _errors(steps: Iterable[Step[Any]], ask: Callable[[Step[Any]], None]) -> dict[str, ValueError]:
    errors = {}
    for step in steps:
        try:
            ask(step)
        except ValueError as error:
            errors[step.name] = error
    return errors
