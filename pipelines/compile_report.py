"""Compile report: what `--dry-run --compile` prints of programs compiled for each phase's own machines.

The phases are those of the main line, or of a selection. Phases with equal programs (they differ only in arguments of
the program) share one compile. Of programs that differ in batch, micro-batches or state, a larger one that fits stands
for smaller ones, unless all are asked for.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from marin_dag.cli.session import Session
from marin_dag.errors import UserError
from marin_dag.graph.step import Step
from marin_dag.plan.plan import Plan
from marin_dag.quantities import in_short
from pipelines.compile_programs import (
    Kind,
    cures,
    kind_of,
    programs_of,
    scoring_programs,
    settings,
    size_of,
    stands_for,
)
from pipelines.output import aligned
from pipelines.phases import fork_names, main_line_first, main_line_of, own_steps, phases_in, run_phases_in
from runtime.cache_folder import cache_folder
from runtime.cost.chips import GIB, slice_of
from runtime.cost.compiler import COMPILED, NoCompilerError, outcome_of
from runtime.cost.faults import faults
from runtime.cost.request import SCORING_STEPS, Compiled, CompileRequest, DoesNotFit, Outcome
from runtime.cost.roofline import REACHED_SHARE, exposed_seconds_of, flops_of, roofline_of, wire_bytes
from steps.ema_eval import ema_eval

ASSUMPTIONS = (
    "Roofline: products at the published peak, recomputation counted; weights and optimizer state through memory;",
    "exposed collectives one after the other, each at the bandwidth of its wires (both directions of a torus's ring).",
    "A collective is exposed for the time by which it outlasts the products beside it. Activations are not counted.",
    f"Hours and chip-hours: at {REACHED_SHARE['tpu']:.0%} of the roofline (GPUs {REACHED_SHARE['gpu']:.0%}), without "
    "evaluations, checkpoints and restarts.",
)


OPTIONS = ("--compile", "--compile-all")


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Add `OPTIONS` to a parser."""
    parser.add_argument(
        "--compile",
        action="store_true",
        help="(--dry-run) compile the largest steps of the main line, or of the selected phases, for TPUs or GPUs",
    )
    parser.add_argument(
        "--compile-all", action="store_true", help="(--dry-run) compile the smaller ones and scores too"
    )


def check_arguments(parsed: argparse.Namespace) -> None:
    """Raise UserError if `--compile` and `--json` are given together."""
    if parsed.json and (parsed.compile or parsed.compile_all):
        raise UserError("--compile and --json: --compile prints a page for people. Remove one of the two options.")


def report(session: Session, plan: Plan) -> None:
    """Compile the phases' programs and print the report; progress goes to the error stream.

    Raises:
        UserError: no phase is selected, or one cannot be compiled.
    """
    whole = session.parsed.compile_all
    if not (session.parsed.compile or whole):
        return
    phases = phases_in(step.step for step in plan.steps)
    run_phases, forks = run_phases_in(phases), fork_names(session)
    is_whole = all(planned.is_selected for planned in plan.steps)
    candidates = main_line_of(run_phases, forks) if is_whole else main_line_first(run_phases, forks)
    names = [name for name in candidates if plan[name].is_selected]
    if not names:
        raise UserError(
            "--compile: the selected steps have no phase to compile; select some, or run without a selection."
        )
    every = [planned.step for planned in plan.steps]
    evaluations = {
        step.config.phase.step.name: step.config for step in every if step.kind is ema_eval and step.background is None
    }
    programs = {name: programs_of(phases[name], evaluation=evaluations.get(name)) for name in names}
    users = _users(programs, [step for step in every if whole and plan[step.name].is_selected])
    validations = {its["validation"] for its in programs.values() if "validation" in its}
    outcomes = _outcomes(users, exact=set(users) if whole else validations)
    fitting = [name for name, its in programs.items() if isinstance(_of_kind(its["train"], outcomes)[1], Compiled)]
    lines = ["", f"Compiled for machines that are not here; cached in {cache_folder(COMPILED)}."]
    for request, outcome in outcomes.items():
        lines += ["", *_program(request, outcome, users[request])]
        lines += _while_training(request, outcome, programs)
        if isinstance(outcome, DoesNotFit):
            lines.append(f"  fits with       {_cure(request, users[request], fitting, phases)}")
    lines += ["", *_phases(phases, programs, outcomes), "", *ASSUMPTIONS]
    if is_whole and len(names) < len(phases):
        lines.append("Side branches are compiled where they are selected, for example with --only.")
    print("\n".join(lines))


Programs = Mapping[str, Mapping[Kind, CompileRequest]]
"""Programs by name of the phase."""


def _users(programs: Programs, selected: Sequence[Step[Any]]) -> dict[CompileRequest, list[str]]:
    """Return the names of the steps that need each program."""
    found: dict[CompileRequest, list[str]] = {}
    needed = [(name, request) for name, its in programs.items() for request in dict.fromkeys(its.values())]
    needed += [(step.name, request) for step in selected for request in scoring_programs(step)]
    for name, request in needed:
        found.setdefault(request, []).append(name)
    return found


def _outcomes(requests: Iterable[CompileRequest], *, exact: Set[CompileRequest]) -> dict[CompileRequest, Outcome]:
    """Return the outcomes of the programs for which no other one that fits stands, and of those in `exact`."""
    kinds: dict[CompileRequest, list[CompileRequest]] = {}
    for request in requests:
        kinds.setdefault(kind_of(request), []).append(request)
    waiting = [request for of_kind in kinds.values() for request in sorted(of_kind, key=_size_and_batch, reverse=True)]
    found: dict[CompileRequest, Outcome] = {}
    while waiting:
        left = [each for number, each in enumerate(waiting) if each in exact or not _is_covered(each, waiting[:number])]
        request = waiting.pop(0)
        found[request] = outcome_with_progress(request, f"{len(found) + 1} of {len(found) + len(left)} programs")
        fitting = [each for each, outcome in found.items() if isinstance(outcome, Compiled)]
        waiting = [each for each in waiting if each in exact or not _is_covered(each, fitting)]
    return found


def _size_and_batch(request: CompileRequest) -> tuple[int, int]:
    return size_of(request), request.global_batch_size


def _is_covered(request: CompileRequest, others: Iterable[CompileRequest]) -> bool:
    return any(stands_for(other, request) for other in others)


def _of_kind(request: CompileRequest, outcomes: Mapping[CompileRequest, Outcome]) -> tuple[CompileRequest, Outcome]:
    """Return a program with its outcome, or else the compiled program of its kind."""
    if request in outcomes:
        return request, outcomes[request]
    return next(
        (other, outcome)
        for other, outcome in outcomes.items()
        if isinstance(outcome, Compiled) and stands_for(other, request)
    )


def outcome_with_progress(request: CompileRequest, place: str) -> Outcome:
    """Return the outcome of a compile; print progress to the error stream."""
    what = f"{request.step} step, {request.global_batch_size:,} sequences, {_slices(request)}"
    usually = " (minutes)" if slice_of(request.slice).generation.platform == "tpu" else ""
    print(f"[{place}] compiling the {what}{usually} ...", file=sys.stderr, flush=True)
    try:
        outcome, was_known = outcome_of(request)
    except NoCompilerError as error:
        raise UserError(str(error)) from error
    except RuntimeError as error:
        cure = "; take attention_kernel=chunked" if "Shared memory size limit exceeded" in str(error) else ""
        # The last error of a traceback, without JAX's notes around it.
        raised = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception): .*$", str(error), flags=re.MULTILINE)
        raise UserError(f"compiling the {what} failed: {(raised or [error])[-1]}{cure}") from error
    took = "does not fit" if isinstance(outcome, DoesNotFit) else f"{outcome.compile_seconds:.0f} s"
    print(f"[{place}] {'known already' if was_known else took}", file=sys.stderr, flush=True)
    return outcome


def _program(request: CompileRequest, outcome: Outcome, users: Sequence[str]) -> list[str]:
    axes = {"replica": request.replica_parallel, "model": request.model_parallel, "context": request.context_parallel}
    spread = "".join(f", {name} {size}" for name, size in axes.items() if size > 1)
    size = f"{request.global_batch_size:,} x {request.sequence_length:,} tokens"
    lines = [f"{request.step} step, {size}, {_slices(request)}{spread}: {', '.join(users)}", _kernels(request)]
    if isinstance(outcome, DoesNotFit):
        return [*lines, f"  does not fit    {outcome.message}"]
    peak, limit = outcome.peak_memory_in_bytes / GIB, slice_of(request.slice).generation.hbm_in_bytes / GIB
    lines.append(
        f"  memory per chip {peak:.2f} GiB at its peak, of {limit:.2f} ({peak / limit:.0%}); compiled in "
        f"{outcome.compile_seconds:.0f} s with {outcome.host_memory_in_bytes / GIB:.1f} GiB of this machine"
    )
    if request.step == "train":
        parameters, rest = _state(request)
        sizes = f"parameters {parameters / 2**20:,.0f} MiB, {_rest_of_state(request)} {rest / 2**20:,.0f} MiB"
        lines.append(f"  of it           {sizes}")
    return lines if request.step in SCORING_STEPS else [*lines, *_speed(request, outcome)]


def _speed(request: CompileRequest, outcome: Compiled) -> Iterator[str]:
    one, roofline, flops = slice_of(request.slice), roofline_of(request, outcome), flops_of(request)
    counts = f"{flops.causal:.4g} (causal), {flops.full:.4g} (full attention), {flops.executed:.4g} executed"
    yield f"  FLOPs per step  {counts}, of which the program holds {roofline.found_share:.1%}"
    yield from _collectives(request, outcome)
    yield from (f"  fault           {fault}" for fault in faults(request, outcome))
    yield (
        f"  roofline        {roofline.step_seconds:.3f} s per step: products {roofline.products_seconds:.3f}, weights "
        f"{roofline.weights_seconds:.3f} beside them, optimizer {roofline.optimizer_seconds:.3f}, exposed collectives "
        f"{roofline.exposed_seconds:.3f} ({roofline.exposed_share:.1%})"
    )
    speed = f"{roofline.tokens_per_second:,.0f} tokens/s"
    if request.step == "train":
        num_chips = one.num_chips * request.num_slices
        peak = num_chips * one.generation.peak_flops(request.compute_dtype) * roofline.step_seconds
        speed += f", at most {flops.causal / peak:.1%} MFU (causal), {flops.full / peak:.1%} (full)"
    yield f"{'':<18}{speed}"


def _state(train: CompileRequest) -> tuple[float, float]:
    """Return the bytes on each chip of the parameters, and of the rest of the state."""
    copy_size = train.layout.shape.copy_size
    return 4 * train.model.num_parameters / copy_size, 4 * train.state_size / copy_size


def _rest_of_state(train: CompileRequest) -> str:
    number = train.num_averages
    return "moments" + ("" if not number else " and average" if number == 1 else f" and {number} averages")


def _while_training(request: CompileRequest, outcome: Outcome, programs: Programs) -> Iterator[str]:
    """Yield the memory of a validation while a phase trains, when the rest of its state stays on the chips."""
    limit = slice_of(request.slice).generation.hbm_in_bytes
    phases: dict[CompileRequest, list[str]] = {}
    for name, its in programs.items():
        if its.get("validation") == request:
            phases.setdefault(its["train"], []).append(name)
    for train, names in phases.items():
        total = None if isinstance(outcome, DoesNotFit) else outcome.peak_memory_in_bytes + _state(train)[1]
        if total is not None:
            memory = f"{total / GIB:.2f} GiB with {_rest_of_state(train)}, of {limit / GIB:.2f} ({total / limit:.0%})"
            yield f"  while it trains {memory}: {', '.join(names)}"
        if total is None or total > limit:
            typed = settings("validate_every_steps", [(name, 0) for name in names])
            yield f"  while it trains it does not fit; {typed} measures held-out text in steps of their own"


def _collectives(request: CompileRequest, compiled: Compiled) -> Iterator[str]:
    groups: dict[tuple[str, str, str], list] = {}
    for item in compiled.collectives:
        groups.setdefault((item.kind, item.dtype, "+".join(item.axes) or "none"), []).append(item)
    title = "collectives"
    for (kind, dtype, axes), items in sorted(groups.items(), key=lambda pair: -wire_bytes(pair[1])):
        total, hidden = wire_bytes(items), [item for item in items if item.is_hidden]
        if total < 2**20:
            continue
        exposed = sum(exposed_seconds_of(item, request) for item in items)
        yield (
            f"  {title:<15} {kind:<18} {dtype:<5} {axes:<8} {total / 2**20:>9,.0f} MiB in "
            f"{sum(item.times for item in items):>5,}, hidden {sum(item.times for item in hidden):>5,} "
            f"({wire_bytes(hidden) / total:.0%} of the bytes), exposed {exposed:.3f} s"
        )
        title = ""


def _kernels(request: CompileRequest) -> str:
    text = f"attention {request.attention_kernel}"
    if request.step in ("train", "eval"):
        text += f", loss {request.loss_kernel}"
    if request.step == "train":
        text += "" if request.scatter_kernel == "xla" else f", scatter {request.scatter_kernel}"
        text += f"; remat {request.remat}; micro-batches: {request.num_microbatches}"
    return f"  kernels         {text}"


def _cure(request: CompileRequest, users: Sequence[str], fitting: Sequence[str], phases: Mapping[str, Step]) -> str:
    """Try changes in order until a training step fits; return the options to type.

    Phases inherit a changed field from their base, so those in `fitting` get an option that restores their value.
    """
    if request.step != "train":
        own = ", or a smaller windows_per_batch or replica_parallel of an ema_eval" if request.step == "eval" else ""
        return f"no change was tried; use more chips{own}"
    for field, changed in cures(request):
        value = getattr(changed, field)
        outcome = outcome_with_progress(changed, f"with {field}={value}")
        if isinstance(outcome, Compiled):
            inherit = [
                name
                for name, step in phases.items()
                if step.base is not None and step.base.name in users and field not in step.changes
            ]
            changed_phases = [(name, value) for name in users if name not in inherit]
            kept = [(name, getattr(phases[name].config, field)) for name in inherit if name in fitting]
            typed = settings(field, [*changed_phases, *kept])
            return f"{typed}: {outcome.peak_memory_in_bytes / GIB:.2f} GiB"
    return "no change that was tried; use more chips"


def _phases(phases: Mapping[str, Step], programs: Programs, outcomes: Mapping[CompileRequest, Outcome]) -> list[str]:
    rows = [["phase", "chips", "tokens", "memory", "s/step", "tokens/s", "exposed", "hours", "chip-hours"]]
    run_phases, own = run_phases_in(phases), own_steps(phases, programs)
    total_hours, total_chip_hours, whose = 0.0, 0.0, "all"
    for name, its in programs.items():
        run_phase, (request, outcome) = run_phases[name], _of_kind(its["train"], outcomes)
        chips = slice_of(request.slice).num_chips * request.num_slices
        size = [name, f"{chips:,}", in_short(run_phase.end_tokens - run_phase.begin_tokens)]
        if isinstance(outcome, DoesNotFit):
            rows.append([*size, "too large", *[""] * 5])
            whose = "all that fit"
            continue
        roofline = roofline_of(request, outcome)
        seconds = roofline.step_seconds * its["train"].global_batch_size / request.global_batch_size
        step_hours = seconds / REACHED_SHARE[slice_of(request.slice).generation.platform] / 3_600
        total_hours += own[name] * step_hours
        total_chip_hours += own[name] * step_hours * chips
        memory = f"{'' if request == its['train'] else '< '}{outcome.peak_memory_in_bytes / GIB:.2f} GiB"
        speed = [f"{seconds:.3f}", f"{roofline.tokens_per_second:,.0f}", f"{roofline.exposed_share:.1%}"]
        hours = run_phase.steps * step_hours
        rows.append([*size, memory, *speed, _hours(hours), _hours(hours * chips)])
    rows.append([whose, *[""] * 6, _hours(total_hours), _hours(total_chip_hours)])
    notes = []
    if any(own[name] < run_phases[name].steps for name in programs):
        notes.append("The last line counts training steps that several phases share once.")
    if any(its["train"] not in outcomes for its in programs.values()):
        notes.append(
            '"<": a smaller step, with the speed of the larger one that was compiled; --compile-all compiles it.'
        )
    return [*aligned(rows), *notes]


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.2f}"


def _slices(request: CompileRequest) -> str:
    one = slice_of(request.slice)
    if one.generation.platform == "gpu":
        return request.slice
    many = "" if request.num_slices == 1 else f"{request.num_slices} x "
    return f"{many}{request.slice} ({one.topology})"
