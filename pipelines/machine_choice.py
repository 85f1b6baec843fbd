"""Machine choice: remat and micro-batches for a scale's machines, and the time of its training steps.

Of the values of remat, the choice is the one whose steps are planned to be faster, in the fewest micro-batches that
fit. Memory and time are those of compiled programs where a compile of them was kept, else those of
`runtime.cost.expected`. None of it is identity: a length in hours counts on no kept compile.
"""

import dataclasses
import hashlib
import importlib.metadata
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel

from marin_dag.errors import UserError
from marin_dag.graph.resources import Cpu, Gpu, Resources, Tpu, slice_shape
from marin_dag.quantities import LARGEST_COUNT
from pipelines.compile_programs import slice_named, with_kernels
from pipelines.length import PARTS, evaluated_tokens, in_figures, main_line_tokens, tokens_by_part
from pipelines.machines import one_host_of
from pipelines.scales import BatchSize, Scale
from pipelines.sizes import SCALES, scale_at
from runtime.cache_folder import cache_folder, keep
from runtime.cost import expected, roofline
from runtime.cost.chips import GIB, REACHED_SHARE_OF_PEAK, slice_of
from runtime.cost.compiler import sources_digest
from runtime.cost.expected import expected_memory, fits, planned_seconds, seconds_at_share
from runtime.cost.request import Compiled, CompileRequest, to_json
from runtime.cost.roofline import REACHED_SHARE, roofline_of
from steps.machine_checks import devices_on

Remat = Literal["none", "full"]
REMATS: tuple[Remat, ...] = ("none", "full")
Compiles = Literal["none", "largest", "all"]
"""Extent of a compile: no training step of a scale, the largest of each kind, or all."""
CHOICES = "machine-choices"
"""Name of the cache folder for choices from compiled programs."""
COMPILED_WITH = ("jax", "jaxlib")
CHOSEN_BY = tuple(Path(file) for file in (__file__, expected.__file__, roofline.__file__))
"""Sources of the figures in a choice, beside those that make and compile programs."""
TRIED_ABOVE = 1.1
"""Try a compile up to this ratio of expected memory to a chip's, since compilers need less than expected."""
MOST_CORRECTIONS, HOURS_TOLERANCE = 8, 0.01
"""Most corrections of a length in hours, and the relative error at which they end."""


class Program(NamedTuple):
    """A training step of a scale."""

    phases: str
    """The phases that run it, for people."""
    batch: int
    """Index in `Scale.batches`."""
    num_averages: int
    is_float32: bool = False


LARGEST = Program("starling on", 2, 1)
"""The training step with the most sequences; the others of its dtype fit in micro-batches of the same size."""
PROGRAMS = (
    Program("kestrel", 0, 0),
    Program("ocelot to phoenix", 1, 1),
    LARGEST,
    Program("spoonbill_focused_fp32", 1, 1, is_float32=True),
)


class Choice(BaseModel, frozen=True, extra="forbid"):
    """The chosen settings."""

    remat: Remat
    num_microbatches: tuple[int, ...]
    """Micro-batches of each program of `PROGRAMS`; peaks and seconds have the same order."""
    peaks_in_bytes: tuple[int, ...]
    step_seconds: tuple[float, ...]
    """Planned time of one training step."""
    compiles: Compiles
    """Extent of the compile behind the figures; with "largest", other programs of that dtype take them over."""


class Time(NamedTuple):
    """Time of all phases of a scale, with their evaluations on held-out text."""

    hours: float
    basis: str
    """Source of the time, for people."""


def times_of(scale: Scale, num_sources: int) -> list[Time]:
    """Return the time of a scale with so many sources on its machines, and that by its compiled programs if known.

    The first counts on no compile, so that it is the same everywhere. Machines of unknown speed have none.
    """
    kept = choice_for(scale)
    if kept is None:
        return []
    times = [_expected_time(scale, num_sources)]
    if kept.compiles != "none":
        share = REACHED_SHARE[devices_on(scale.main_resources).platform]
        hours = _hours(scale, kept.step_seconds, num_sources)
        times.append(Time(hours, f"at {share:.0%} of the roofline of compiled programs"))
    return times


def _expected_time(scale: Scale, num_sources: int) -> Time:
    choice = _chosen(scale, "none")
    at_share = _seconds_at_share(scale)
    share = f"at {REACHED_SHARE_OF_PEAK[devices_on(scale.main_resources).platform]:.0%} of the peak"
    is_slower = any(found > least for found, least in zip(choice.step_seconds, at_share, strict=True))
    basis = "at the bandwidth of memory and wires" if is_slower else share
    return Time(_hours(scale, choice.step_seconds, num_sources), basis)


def _seconds_at_share(scale: Scale) -> list[float]:
    return [seconds_at_share(request_for(scale, program, "none", 1)) for program in PROGRAMS]


def _hours(scale: Scale, step_seconds: Sequence[float], num_sources: int) -> float:
    """Return the hours of all phases, whose `PROGRAMS` take these times a step, and of their evaluations."""
    batch = scale.batches[LARGEST.batch].global_batch_size
    of_a_token = step_seconds[PROGRAMS.index(LARGEST)] / (batch * scale.sequence_length)
    # A forward pass has a third of the products of a training step.
    evaluating = evaluated_tokens(scale, num_sources) * of_a_token / 3
    return (_seconds_by(scale, step_seconds) + evaluating) / 3_600


def tokens_for(hours: float, name: str, machines: Resources, *, num_sources: int) -> int:
    """Return the tokens of the main line with which a scale is expected to take these hours on some machines.

    They are an identity, so no kept compile counts. Batches grow with tokens, and the time with both, so the tokens are
    corrected until the hours agree, from the most that the peak allows: batches of fewer might not divide.

    Raises:
        UserError: the speed of the machines is not known, or no length fits them or the hours.
    """
    own = _moved(SCALES[name], machines)
    if not _is_known(own):
        raise UserError(
            f"--hours: the speed of {machines} is not known. Give the length as --tokens, such as --tokens 100M."
        )
    most = main_line_tokens(own) * hours * 3_600 / _seconds_by(own, _seconds_at_share(own))
    if most > LARGEST_COUNT:
        raise UserError(f"--hours {hours:g}: more than {LARGEST_COUNT:.0e} tokens on {machines}. Use fewer hours.")
    tokens = in_figures(most)
    for _ in range(MOST_CORRECTIONS):
        found = _expected_time(_moved(scale_at(name, tokens), machines), num_sources).hours
        if abs(found / hours - 1) < HOURS_TOLERANCE:
            break
        tokens = in_figures(tokens * hours / found)
    return tokens


def placed_on(scale: Scale, machines: Resources, *, compiles: Compiles = "none") -> Scale:
    """Return a scale on some machines, with the choice for them; those of unknown memory keep its settings.

    Raises:
        UserError: a training step does not fit in any way that was tried, or its batch cannot be shared.
    """
    scale = _moved(scale, machines)
    choice = choice_for(scale, compiles=compiles)
    if choice is None:
        return scale
    *sizes, float32 = choice.num_microbatches
    small, large, largest = (
        BatchSize(batch.global_batch_size, number) for batch, number in zip(scale.batches, sizes, strict=True)
    )
    return dataclasses.replace(
        scale, remat=choice.remat, batches=(small, large, largest), float32_num_microbatches=float32
    )


def _moved(scale: Scale, machines: Resources) -> Scale:
    is_v5e = isinstance(machines, Tpu) and slice_shape(machines.slice).generation == "v5litepod"
    return dataclasses.replace(
        scale,
        kestrel_resources=machines,
        # Only v5e gains by another kernel.
        kestrel_scatter_kernel=scale.kestrel_scatter_kernel if is_v5e else "xla",
        main_resources=machines,
        branch_resources=machines,
        scoring_resources=one_host_of(machines),
    )


def _is_known(scale: Scale) -> bool:
    """Return whether peak and memory of a scale's machines are known."""
    try:
        return not isinstance(scale.main_resources, Cpu) and bool(slice_named(scale.main_resources))
    except ValueError:
        return False


def choice_for(scale: Scale, *, compiles: Compiles = "none") -> Choice | None:
    """Return the choice for a scale's machines: the cached one, or a new one by `compiles`; None for CPUs.

    Machines of unknown memory have none. A choice from compiled programs is kept.
    """
    if not _is_known(scale):
        return None
    place = cache_folder(CHOICES) / f"{_key(scale)}.json"
    if place.exists():
        kept = Choice.model_validate_json(place.read_bytes())
        if compiles != "all" or kept.compiles == "all":
            return kept
    choice = _chosen(scale, compiles)
    if compiles != "none":
        keep(place, choice.model_dump_json())
    return choice


def choice_line(scale: Scale) -> str:
    """Return a line on the choice for a scale's machines, with the source of its memory figures."""
    choice = choice_for(scale)
    if choice is None:
        return f"the memory of {scale.main_resources} is not known, so remat and micro-batches are the scale's own"
    numbers = ", ".join(
        f"{number} ({program.phases})" for program, number in zip(PROGRAMS, choice.num_microbatches, strict=True)
    )
    limit = slice_of(slice_named(_accelerators(scale))[0]).generation.hbm_in_bytes
    memory = f"at most {max(choice.peaks_in_bytes) / GIB:.1f} of {limit / GIB:.1f} GiB of a chip"
    source = {
        "none": "expected, not compiled; --compile verifies it",
        "largest": f"compiled: {LARGEST.phases}; expected: {PROGRAMS[-1].phases}, which --compile-all verifies",
        "all": "compiled",
    }[choice.compiles]
    return f"remat {choice.remat}; micro-batches {numbers}; {memory} ({source})"


def request_for(scale: Scale, program: Program, remat: Remat, num_microbatches: int) -> CompileRequest:
    """Return a training step of a scale on its machines, without the names of its kernels."""
    name, num_slices = slice_named(_accelerators(scale))
    return CompileRequest(
        step="train",
        slice=name,
        num_slices=num_slices,
        model=scale.model,
        sequence_length=scale.sequence_length,
        global_batch_size=scale.batches[program.batch].global_batch_size,
        num_averages=program.num_averages,
        compute_dtype="float32" if program.is_float32 else scale.compute_dtype,
        attention_kernel="",
        loss_kernel="",
        remat=remat,
        num_microbatches=num_microbatches,
        reduce_dtype="float32" if program.is_float32 else scale.reduce_dtype,
        scatter_kernel=scale.kestrel_scatter_kernel if program.batch == 0 else "xla",
    )


class Fit(NamedTuple):
    """A training step that fits."""

    num_microbatches: int
    peak_in_bytes: int
    step_seconds: float


Try = Callable[[CompileRequest, Resources], Fit | None]
"""Returns None for a training step that does not fit."""


def _expected_fit(request: CompileRequest, _: Resources) -> Fit | None:
    peak = expected_memory(request)
    return Fit(request.num_microbatches, peak, planned_seconds(request)) if fits(request, peak) else None


def _compiled_fit(request: CompileRequest, machines: Resources) -> Fit | None:
    if not fits(request, round(expected_memory(request) / TRIED_ABOVE)):
        return None
    from pipelines.compile_report import outcome_with_progress

    compiled = with_kernels(request, machines)
    outcome = outcome_with_progress(compiled, f"remat {request.remat}, micro-batches: {request.num_microbatches}")
    if not isinstance(outcome, Compiled):
        return None
    reached = REACHED_SHARE[slice_of(request.slice).generation.platform]
    seconds = roofline_of(compiled, outcome).step_seconds / reached
    return Fit(request.num_microbatches, outcome.peak_memory_in_bytes, seconds)


def _chosen(scale: Scale, compiles: Compiles) -> Choice:
    """Return the choice with the fastest remat, by planned seconds, in which every program fits."""
    for remat in sorted(REMATS, key=lambda remat: _planned_seconds(scale, remat)):
        if fitting := _fits(scale, remat, compiles):
            numbers, peaks, seconds = zip(*fitting, strict=True)
            return Choice(
                remat=remat, num_microbatches=numbers, peaks_in_bytes=peaks, step_seconds=seconds, compiles=compiles
            )
    largest = max(
        (request_for(scale, program, "full", _numbers_of_microbatches(scale, program)[-1]) for program in PROGRAMS),
        key=expected_memory,
    )
    raise UserError(
        f"--on: a training step of {scale.name} takes about {expected_memory(largest) / GIB:.1f} GiB of each chip of "
        f"{scale.main_resources}, even with full remat and one sequence at a time; a chip has "
        f"{slice_of(largest.slice).generation.hbm_in_bytes / GIB:.1f} GiB. Use more chips, or a smaller --scale."
    )


def _fits(scale: Scale, remat: Remat, compiles: Compiles) -> list[Fit]:
    """Return the fit of each program; [] if one does not fit."""
    if compiles != "largest":
        try_ = _compiled_fit if compiles == "all" else _expected_fit
        found = [_fewest_microbatches(scale, program, remat, try_) for program in PROGRAMS]
    else:
        largest = _fewest_microbatches(scale, LARGEST, remat, _compiled_fit)
        found = [
            _fewest_microbatches(scale, program, remat, _expected_fit)
            if program.is_float32
            else largest and _in_microbatches_of(largest, scale, program)
            for program in PROGRAMS
        ]
    fitting = [fit for fit in found if fit is not None]
    return fitting if len(fitting) == len(PROGRAMS) else []


def _in_microbatches_of(largest: Fit, scale: Scale, program: Program) -> Fit:
    """Return the fit of a program whose micro-batches have at most as many sequences as those of the largest."""
    sequences, most = (scale.batches[each.batch].global_batch_size for each in (program, LARGEST))
    numbers = _numbers_of_microbatches(scale, program)
    number = next(number for number in numbers if sequences * largest.num_microbatches <= most * number)
    return Fit(number, largest.peak_in_bytes, largest.step_seconds * sequences / most)


def _planned_seconds(scale: Scale, remat: Remat) -> float:
    """Return the expected time of the programs for their tokens; infinite if one does not fit."""
    fitting = _fits(scale, remat, "none")
    return _seconds_by(scale, [fit.step_seconds for fit in fitting]) if fitting else math.inf


def _seconds_by(scale: Scale, step_seconds: Sequence[float]) -> float:
    """Return the time of all phases of a scale, whose `PROGRAMS` take these times a step."""
    total = 0.0
    for program, seconds in zip(PROGRAMS, step_seconds, strict=True):
        tokens = sum(
            of_part * (part.float32_times if program.is_float32 else part.times)
            for of_part, part in zip(tokens_by_part(scale).values(), PARTS.values(), strict=True)
            if part.batch == program.batch
        )
        total += seconds * tokens / (scale.batches[program.batch].global_batch_size * scale.sequence_length)
    return total


def _fewest_microbatches(scale: Scale, program: Program, remat: Remat, try_: Try) -> Fit | None:
    """Return the fit of a program in the fewest micro-batches; None where it does not fit."""
    tried = (
        try_(request_for(scale, program, remat, number), scale.main_resources)
        for number in _numbers_of_microbatches(scale, program)
    )
    return next((fit for fit in tried if fit is not None), None)


def _numbers_of_microbatches(scale: Scale, program: Program) -> list[int]:
    """Return the numbers into which a chip's sequences can be split, 1 first."""
    request = request_for(scale, program, "full", 1)
    shape = request.layout.shape
    try:
        scale.model.check_divides(copy_size=shape.copy_size, model_axis=1)
        shape.check_batch(request.global_batch_size, request.sequence_length)
    except ValueError as error:
        raise UserError(
            f"--on: {scale.name} on {scale.main_resources}: {error} Batches grow with --tokens; or use fewer machines."
        ) from None
    sequences = request.global_batch_size // shape.batch_parts
    return [number for number in range(1, sequences + 1) if sequences % number == 0]


def _accelerators(scale: Scale) -> Gpu | Tpu:
    assert not isinstance(scale.main_resources, Cpu)
    return scale.main_resources


def _key(scale: Scale) -> str:
    """Return the name of a choice: a hash over its programs, the compiler's versions, and the code behind both."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in COMPILED_WITH]
    programs = [to_json(request_for(scale, program, "none", 1)) for program in PROGRAMS]
    digest = hashlib.sha256(json.dumps([versions, programs, list(Choice.model_fields)]).encode())
    digest.update(sources_digest())
    for path in CHOSEN_BY:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:32]
