"""Assignments: `--set` as a user types it; one that fits no step or field is answered with the nearest that does."""

from collections.abc import Callable, Iterable, Sequence

from marin_dag.errors import UserError, listed
from marin_dag.graph.graph import AnyStep, Graph, GraphError
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
    try:
        with overriding(overrides):
            graph = build()
    except UserError:
        if overrides.missing is None:
            raise
        left, name = overrides.missing
        graph = build()
        if name not in graph:
            raise GraphError(f"{left}: {graph.unknown(name)}") from None
        raise GraphError(f"{left}: the recipe builds {name!r} later; set the field in the recipe.") from None
    # Checked after the build: only now are all names known.
    for text in texts:
        step, field, value = parse_assignment(text, graph)
        takers = overrides.applied.get(Override(text.partition("=")[0], value), set())
        if step not in takers:
            changed(graph.step(step).config, [text_change(field, value, graph.reference_named)], owner=step)
        if takers - {step}:
            others = " and ".join(sorted(takers - {step}))
            raise AssignmentError(f"--set {text!r}: {step} and {others} both have such a field; rename a step.")
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
        raise _no_value(text, left, graph.step(name), field)
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
            _check_is_field(text, field, value if equals else "VALUE", graph, name)
        if not equals:
            raise _no_value(text, field, step, field)
    return {override.left: override.value for override in _overrides(texts)}


def _overrides(texts: Iterable[str]) -> list[Override]:
    """Return each assignment once; raise AssignmentError where a field is set twice, to different values."""
    found: dict[str, str] = {}
    for text in texts:
        left, equals, value = text.partition("=")
        if equals and found.setdefault(left, value) != value:
            raise AssignmentError(f"--set {left}: set twice, to {found[left]} and to {value}; give it once.")
    return [Override(left, value) for left, value in found.items()]


def _form(left: str, value: str) -> str:
    return f"--set {left}={value}"


def _check_is_field(text: str, left: str, value: str, graph: Graph, fork: str) -> None:
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
    head = left.partition(".")[0]
    slashed = left.replace(".", "/")
    having = [step.name for step in graph.steps if head in type(step.config).model_fields]
    if having and slashed not in graph:
        owners = listed(having, MAX_NAMED)
        return f"name the step, too: {_form(f'{having[0]}.{left}', value)}. {head} is a field of {owners}."
    found = f" Did you mean {slashed!r}?" if slashed in graph else nearest(head, graph.names)
    return f"there is no step {head!r}.{found} Write {_form('STEP.FIELD', 'VALUE')}."


def _step_in(left: str, graph: Graph) -> str | None:
    return max((name for name in graph.names if left == name or left.startswith(f"{name}.")), key=len, default=None)


def _no_value(text: str, left: str, step: AnyStep, field: str) -> AssignmentError:
    """Return the error for a `--set` without a value; it names the current value, or the nearest field."""
    try:
        current = current_value(value_at(step.config, field))
    except LookupError:
        current = nearest_field(field, type(step.config))
    return AssignmentError(f"--set {text!r}: no value follows; write {_form(left, 'VALUE')}.{current}")
