"""Compile cures: what is tried for a step that does not fit, and the options that a person types to have it."""

import dataclasses
import shlex
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from marin_dag.graph.step import Milestone, Step
from runtime.cost.chips import slice_of
from runtime.cost.request import Request
from steps.machine_checks import check_resources


class Cure(NamedTuple):
    """One field of the step that was compiled, and what its program would be with it."""

    field: str
    value: object
    request: Request


def cures(request: Request) -> Iterable[Cure]:
    """What is tried, in this order."""
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
    if request.loss_kernel != "pallas_tpu" and slice_of(request.slice).generation.platform == "tpu":
        yield Cure("loss_kernel", "pallas_tpu", dataclasses.replace(request, loss_kernel="pallas_tpu"))
    by_two = dataclasses.replace(request, model_parallel=2)
    if request.parallel == 1 and _can_be_laid(by_two):
        yield Cure("model_parallel", 2, by_two)


def _fewer_copies(request: Request) -> Iterable[Cure]:
    """The largest smaller number of copies that the machines can hold: each device then holds less of one."""
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
    """The two smallest numbers of parts that the sequences of a chip, at one time, can be cut into."""
    sequences = request.global_batch_size // request.layout.shape.batch_parts // request.num_microbatches
    return [part for part in range(2, sequences + 1) if sequences % part == 0][:2]


def options(
    cure: Cure,
    users: Collection[str],
    kept: Collection[str],
    phases: Mapping[str, Step[Any]],
    others: Collection[str] = (),
) -> str:
    """The `--set` options that give the field to the phases in `users` and to what inherits it from them.

    A phase in `kept`, which fits as it is, or one that could not run with it, is given back its own value. Of those in
    `others`, which do not fit either, nothing is said: they have a cure of their own.
    """
    wanted: dict[str, object] = {}
    said: list[str] = []

    def value_of(name: str) -> object:
        if name in wanted:
            return wanted[name]
        step = phases[name]
        own = getattr(step.config, cure.field)
        base = step.base.step if isinstance(step.base, Milestone) else step.base
        inherits = base is not None and base.name in phases and cure.field not in step.changes
        inherited = value_of(base.name) if base is not None and inherits else own
        if name in users:
            value = cure.value
        elif name in kept or not _can_run(step, cure.field, inherited):
            value = own
        else:
            value = inherited
        if value != inherited and name not in others:
            said.append(setting(name, cure.field, value))
        wanted[name] = value
        return value

    for name in phases:
        value_of(name)
    return " ".join(said)


def setting(step: str, field: str, value: object) -> str:
    """`--set STEP.FIELD=VALUE`, as a shell takes it."""
    text = "null" if value is None else value
    return f"--set {shlex.quote(f'{step}.{field}={text}')}"


def _can_run(step: Step[Any], field: str, value: object) -> bool:
    try:
        check_resources(step.config.model_copy(update={field: value}), step.resources)
    except ValueError:
        return False
    return True
