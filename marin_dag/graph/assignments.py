"""Assignments: `--set` as a person types it, and, of one that cannot be meant, the nearest that can."""

from collections.abc import Iterable, Sequence

from marin_dag.errors import UserError, listed
from marin_dag.graph.graph import AnyStep, Graph
from marin_dag.values.changes import nearest, nearest_field, said_now, value_at

MAX_NAMED = 3


class AssignmentError(UserError):
    """A `--set` that says nothing that could be carried out."""


def with_settings(graph: Graph, texts: Sequence[str]) -> Graph:
    """The graph with all assignments, in an order in which each is right; that in which they are said, if it is one.

    A longer phase is right once the one that follows it is longer too, in whatever order a person says so. Where one
    field holds another, what is said later stays later: it is set on what came before.
    """
    said: dict[tuple[str, str], str] = {}
    waiting = texts
    while waiting:
        refused: list[UserError] = []
        later: list[str] = []
        held: list[str] = []
        for text in waiting:
            step, field, value = parse_assignment(text, graph)
            if said.setdefault((step, field), value) != value:
                raise said_twice(f"{step}.{field}", said[step, field], value)
            path = f"{step}.{field}."
            try:
                if not any(path.startswith(other) or other.startswith(path) for other in held):
                    graph = graph.override(step, field, value)
                    continue
            except UserError as error:
                refused.append(error)
            held.append(path)
            later.append(text)
        if len(later) == len(waiting):
            raise refused[0]
        waiting = later
    return graph


def parse_assignment(text: str, graph: Graph) -> tuple[str, str, str]:
    """Splits STEP.FIELD=VALUE; a step's name may hold dots itself, so the longest name that fits is meant."""
    left, equals, value = text.partition("=")
    name = _step_in(left, graph)
    if name is None:
        raise AssignmentError(f"--set {text!r}: {_without_step(left, value if equals else 'VALUE', graph)}")
    field = left[len(name) + 1 :]
    if not field:
        fields = ", ".join(type(graph.step(name).config).model_fields)
        meant = _form(f"{name}.FIELD", value if equals else "VALUE")
        raise AssignmentError(f"--set {text!r}: name a field of {name}: {meant}. Fields: {fields}.")
    if not equals:
        raise AssignmentError(f"--set {text!r}: {_no_value(left, _now(graph.step(name), field))}")
    if field == "resources" and field not in type(graph.step(name).config).model_fields:
        raise AssignmentError(
            f"--set {text!r}: what machines a step runs on is no field of it, and changes nothing that it makes; the "
            f"recipe says it (now {graph.step(name).resources}), by `resources=` of the step or by `step.on(...)`."
        )
    return name, field, value


def parse_fork_settings(texts: Iterable[str], graph: Graph, *, base: str, name: str) -> dict[str, str]:
    """FIELD to VALUE of FIELD=VALUE, for a fork of `base` that is to be called `name`."""
    step = graph.step(base)
    settings: dict[str, str] = {}
    for text in texts:
        field, equals, value = text.partition("=")
        if field.partition(".")[0] not in type(step.config).model_fields:
            _refuse_a_step(text, field, value if equals else "VALUE", graph, name)
        if not equals:
            raise AssignmentError(f"--set {text!r}: {_no_value(field, _now(step, field))}")
        if settings.setdefault(field, value) != value:
            raise said_twice(field, settings[field], value)
    return settings


def said_twice(field: str, first: str, second: str) -> AssignmentError:
    """For two values of one field."""
    return AssignmentError(f"--set {field}: it is said to be {first} and {second}; say it once.")


def _no_value(left: str, now: str) -> str:
    """What is wrong with a `--set` of `left` alone."""
    name, colon, value = left.partition(":")
    if colon and value:
        return f"an equals sign belongs between field and value: {_form(name, value)}."
    return f"no value follows; write field and value as one word: {_form(left, 'VALUE')}.{now}"


def _form(left: str, value: str) -> str:
    return f"--set {left}={value}"


def _refuse_a_step(text: str, left: str, value: str, graph: Graph, fork: str) -> None:
    """A fork is one step, so that the name of one before the field is too much, or means another."""
    named = fork if left.startswith(f"{fork}.") else _step_in(left, graph)
    if named is None:
        return
    field = left[len(named) + 1 :] or "FIELD"
    raise AssignmentError(
        f"--set {text!r}: a fork's settings are fields of the fork itself, without the name of a step: "
        f"{_form(field, value)}."
    )


def _without_step(left: str, value: str, graph: Graph) -> str:
    """What is wrong with an assignment that begins with the name of no step, and what may be meant."""
    head, _, field = left.partition(".")
    slashed = left.replace(".", "/")
    having = [step.name for step in graph.steps if head in type(step.config).model_fields]
    if having and slashed not in graph:
        owners = listed(having, MAX_NAMED)
        return f"say of which step: {_form(f'{having[0]}.{left}', value)}. {head} is a field of {owners}."
    found = f" Did you mean {slashed!r}?" if slashed in graph else nearest(head, graph.names)
    example = "" if field and slashed not in graph else f", such as {_example(graph)}"
    return f"there is no step {head!r}.{found} Write STEP.FIELD=VALUE{example}."


def _example(graph: Graph) -> str:
    """An assignment that can be typed as it stands: of the first number there is."""
    for step in graph.steps:
        for field in type(step.config).model_fields:
            value = getattr(step.config, field)
            if type(value) in (int, float):
                return _form(f"{step.name}.{field}", str(value))
    return _form(f"{graph.names[-1]}.FIELD", "VALUE")


def _step_in(left: str, graph: Graph) -> str | None:
    """The step that `left` begins with, if any."""
    return max((name for name in graph.names if left == name or left.startswith(f"{name}.")), key=len, default=None)


def _now(step: AnyStep, field: str) -> str:
    """What a field is now; of one that there is not, the nearest."""
    try:
        return said_now(value_at(step.config, field))
    except (AttributeError, KeyError, IndexError, ValueError):
        return nearest_field(field, type(step.config))
