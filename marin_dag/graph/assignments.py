"""Assignments: `--set` as a user types it, and for one that cannot be meant the nearest that can."""

from collections.abc import Callable, Iterable, Sequence

from marin_dag.errors import listed
from marin_dag.graph.graph import AnyStep, Graph
from marin_dag.graph.overrides import AssignmentError, Override, Overrides, overriding
from marin_dag.values.changes import changed, current_value, nearest, nearest_field, text_change, value_at

MAX_NAMED = 3


def build_graph(build: Callable[[], Graph], texts: Sequence[str]) -> Graph:
    """Return the graph that `build` makes, with assignments STEP.FIELD=VALUE applied to its steps as they are made.

    Raises:
        UserError: an assignment names no step or field, or a value that cannot be.
    """
    if not texts:
        return build()
    overrides = Overrides(_overrides(texts))
    with overriding(overrides):
        graph = build()
    # What is wrong with a text that no step has taken can be told only now that all names are known.
    for text in texts:
        step, field, value = parse_assignment(text, graph)
        takers = overrides.applied.get(Override(text.partition("=")[0], value), set())
        if step not in takers:
            changed(graph.step(step).config, [text_change(field, value, graph.reference_named)], owner=step)
        if takers - {step}:
            others = " and ".join(sorted(takers - {step}))
            raise AssignmentError(f"--set {text!r}: {step} and {others} both have such a field; rename a step.")
    overrides.check()
    return graph


def parse_assignment(text: str, graph: Graph) -> tuple[str, str, str]:
    """Split STEP.FIELD=VALUE; a step's name may hold dots itself, so the longest name that fits is meant."""
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
        raise AssignmentError(f"--set {text!r}: {_no_value(left, _current(graph.step(name), field))}")
    if field == "resources" and field not in type(graph.step(name).config).model_fields:
        raise AssignmentError(
            f"--set {text!r}: the machines of a step are no field of it; the recipe sets them (now "
            f"{graph.step(name).resources}), by `resources=` of the step or by `step.on(...)`."
        )
    return name, field, value


def parse_fork_settings(texts: Iterable[str], graph: Graph, *, base: str, name: str) -> dict[str, str]:
    """Return FIELD to VALUE of FIELD=VALUE, for a fork of `base` that is to be called `name`."""
    step = graph.step(base)
    for text in texts:
        field, equals, value = text.partition("=")
        if field.partition(".")[0] not in type(step.config).model_fields:
            _refuse_a_step(text, field, value if equals else "VALUE", graph, name)
        if not equals:
            raise AssignmentError(f"--set {text!r}: {_no_value(field, _current(step, field))}")
    return {override.left: override.value for override in _overrides(texts)}


def _overrides(texts: Iterable[str]) -> list[Override]:
    """Return each assignment once; raise AssignmentError where a field is set twice, to different values."""
    found: dict[str, str] = {}
    for text in texts:
        left, equals, value = text.partition("=")
        if equals and found.setdefault(left, value) != value:
            raise AssignmentError(f"--set {left}: set twice, to {found[left]} and to {value}; give it once.")
    return [Override(left, value) for left, value in found.items()]


def _no_value(left: str, current: str) -> str:
    """Return what is wrong with a `--set` of `left` alone."""
    name, colon, value = left.partition(":")
    if colon and value:
        return f"an equals sign belongs between field and value: {_form(name, value)}."
    return f"no value follows; write field and value as one word: {_form(left, 'VALUE')}.{current}"


def _form(left: str, value: str) -> str:
    return f"--set {left}={value}"


def _refuse_a_step(text: str, left: str, value: str, graph: Graph, fork: str) -> None:
    """Raise AssignmentError if the name of a step stands before the field: a fork is one step."""
    named = fork if left.startswith(f"{fork}.") else _step_in(left, graph)
    if named is None:
        return
    field = left[len(named) + 1 :] or "FIELD"
    raise AssignmentError(
        f"--set {text!r}: a fork's settings are fields of the fork itself, without the name of a step: "
        f"{_form(field, value)}."
    )


def _without_step(left: str, value: str, graph: Graph) -> str:
    """Return what is wrong with an assignment that begins with the name of no step, and what may be meant."""
    head, _, field = left.partition(".")
    slashed = left.replace(".", "/")
    having = [step.name for step in graph.steps if head in type(step.config).model_fields]
    if having and slashed not in graph:
        owners = listed(having, MAX_NAMED)
        return f"name the step, too: {_form(f'{having[0]}.{left}', value)}. {head} is a field of {owners}."
    found = f" Did you mean {slashed!r}?" if slashed in graph else nearest(head, graph.names)
    example = "" if field and slashed not in graph else f", such as {_example(graph)}"
    return f"there is no step {head!r}.{found} Write STEP.FIELD=VALUE{example}."


def _example(graph: Graph) -> str:
    """Return an assignment that can be typed as it stands: of the first number there is."""
    for step in graph.steps:
        for field in type(step.config).model_fields:
            value = getattr(step.config, field)
            if type(value) in (int, float):
                return _form(f"{step.name}.{field}", str(value))
    return _form(f"{graph.names[-1]}.FIELD", "VALUE")


def _step_in(left: str, graph: Graph) -> str | None:
    """Return the step that `left` begins with, if any."""
    return max((name for name in graph.names if left == name or left.startswith(f"{name}.")), key=len, default=None)


def _current(step: AnyStep, field: str) -> str:
    """Return the value of a field, or the nearest field of one that there is not."""
    try:
        return current_value(value_at(step.config, field))
    except LookupError:
        return nearest_field(field, type(step.config))
