"""Config checks: whether configs and names can work, and what they leave open, before a chip is reserved."""

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
    """Configs that their kinds' checks refuse; `names` are those of the steps."""

    def __init__(self, message: str, names: Iterable[str]) -> None:
        super().__init__(message)
        self.names = frozenset(names)


def check_configs(steps: Iterable[Step[Any]]) -> None:
    """Asks each kind whether a config can work, before a chip is reserved; all that is wrong is said at once."""
    names_by_problem: dict[str, list[str]] = defaultdict(list)
    refused = refusals(steps)
    for name, problem in refused.items():
        names_by_problem[problem].append(name)
    if refused:
        lines = (f"{listed(names, MAX_NAMED)}: {text}" for text, names in names_by_problem.items())
        raise RefusedStepsError("\n".join(lines), refused)


def refuse_long_names(steps: Iterable[Step[Any]], store: Store) -> None:
    """Raises RefusedStepsError for names of so many parts that the store would refuse what lies below an output."""
    limit = max_name_length(store)
    names = [step.name for step in steps if len(step.name) > limit]
    if names:
        longest = max(names, key=len)
        those = "step name" if len(names) == 1 else f"{len(names):,} step names are too long, such as"
        raise RefusedStepsError(
            f"{those} …{longest[-MAX_SHOWN:]}: {len(longest):,} characters, where the files of its output leave it "
            f"{max(limit, 0):,} of {store.max_path_in_bytes:,} bytes for a path below {store.prefix}. Give it fewer or "
            "shorter parts, or pass a shorter --prefix.",
            names,
        )


def refusals(steps: Iterable[Step[Any]]) -> dict[str, str]:
    """What is wrong with each step whose config cannot work, and how to mend it."""

    def ask(step: Step[Any]) -> None:
        if step.kind.check is not None:
            step.kind.check(step.config)
        if step.kind.check_on is not None:
            step.kind.check_on(step.config, step.resources)

    return {name: said(name, error) for name, error in _errors(steps, ask).items()}


def undecided(steps: Iterable[Step[Any]]) -> dict[str, ValueError]:
    """What the recipe leaves open of steps, by name."""

    def ask(step: Step[Any]) -> None:
        if step.kind.check_decided is not None:
            step.kind.check_decided(step.config)

    return _errors(steps, ask)


def said(name: str, error: ValueError) -> str:
    """The error of the step `name` for a person, with the settings that mend it, if it has any."""
    options = " --set ".join(shlex.quote(setting) for setting in settings(name, error))
    return f"{error}\nOn the command line: --set {options}" if options else str(error)


def settings(name: str, error: ValueError) -> list[str]:
    """STEP.FIELD=TEXT for each field that mends the error of the step `name`."""
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
