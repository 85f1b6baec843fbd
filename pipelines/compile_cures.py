"""Compile cures: changes to try for a step that does not fit, and the options to type for them."""

import dataclasses
import shlex
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from marin_dag.graph.step import Step
from runtime.cost.request import Request


class Cure(NamedTuple):
    """A field of the compiled step, and the request with its new value."""

    field: str
    value: object
    request: Request


def cures(request: Request) -> Iterable[Cure]:
    """Yield the changes to try, in order."""
    if request.step == "eval":
        yield from _fewer_copies(request)
        # An evaluation's kernels and other axes are the platform's own; its batch is a setting.
        for factor in _factors(request):
            size = request.global_batch_size // factor
            yield Cure("windows_per_batch", size, dataclasses.replace(request, global_batch_size=size))
        return
    if request.remat != "full":
        yield Cure("remat", "full", dataclasses.replace(request, remat="full"))
    yield from _fewer_copies(request)
    for factor in _factors(request):
        number = request.num_microbatches * factor
        yield Cure("num_microbatches", number, dataclasses.replace(request, num_microbatches=number))
    by_two = dataclasses.replace(request, model_parallel=2)
    if request.parallel == 1 and _can_be_laid(by_two):
        yield Cure("model_parallel", 2, by_two)


def _fewer_copies(request: Request) -> Iterable[Cure]:
    """Yield the largest smaller number of copies that fits the machines: each device then has less of a copy."""
    for number in range(request.replica_parallel - 1, 0, -1):
        fewer = dataclasses.replace(request, replica_parallel=number)
        if _can_be_laid(fewer):
            yield Cure("replica_parallel", number, fewer)
            return


def _can_be_laid(request: Request) -> bool:
    try:
        request.model.check_divides(copy_size=request.layout.shape.copy_size, model_axis=request.model_parallel)
    except ValueError:
        return False
    return True


def _factors(request: Request) -> list[int]:
    """Return the two smallest numbers of parts that a chip's sequences can be cut into."""
    sequences = request.global_batch_size // request.layout.shape.batch_parts // request.num_microbatches
    return [part for part in range(2, sequences + 1) if sequences % part == 0][:2]


def options(cure: Cure, users: Collection[str], kept: Collection[str], phases: Mapping[str, Step[Any]]) -> str:
    """Return the `--set` options that give the field to the phases in `users` and to phases that inherit it.

    A phase in `kept`, which fits as it is, gets its own value back.
    """
    typed = []
    for name, step in phases.items():
        inherits = step.base is not None and step.base.name in users and cure.field not in step.changes
        if name in users and not inherits:
            typed.append(setting(name, cure.field, cure.value))
        elif inherits and name in kept:
            typed.append(setting(name, cure.field, getattr(step.config, cure.field)))
    return " ".join(typed)


def setting(step: str, field: str, value: object) -> str:
    """Return `--set STEP.FIELD=VALUE`, quoted for a shell."""
    text = "null" if value is None else value
    return f"--set {shlex.quote(f'{step}.{field}={text}')}"
