"""Report of --dry-run --compile: each phase's step compiled for its real machines, with memory, cost and exposed time.

Of a whole plan it compiles the phases of the main line, of a selection all selected phases. Phases with equal programs
(they differ only in arguments of the program) share one compile.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from marin_dag.cli.session import Session
from marin_dag.errors import UserError
from marin_dag.graph.step import Step
from marin_dag.plan.plan import Plan
from marin_dag.quantities import in_short
from pipelines.compile_cures import cures, options, setting
from pipelines.compile_evaluations import evaluation_lines, evaluation_requests
from pipelines.machines import slice_of_step
from pipelines.output import aligned
from pipelines.phases import fork_names, legs_in, main_line_first, main_line_of, own_steps, phases_in
from runtime.cache_folder import cache_folder
from runtime.cost.chips import GIB, slice_of
from runtime.cost.compiler import COMPILED, NoCompilerError, outcome_of
from runtime.cost.faults import faults
from runtime.cost.request import Compiled, DoesNotFit, Outcome, Request
from runtime.cost.roofline import REACHED_SHARE, exposed_seconds_of, flops_of, roofline_of, wire_bytes
from runtime.evaluation.window_batch import WINDOWS_PER_BATCH, window_batch
from runtime.kernels.kernel_shape import KernelShape
from steps.ema_eval import EmaEvalConfig, ema_eval
from steps.machine_checks import devices_on

DAY_SECONDS = 86_400
ASSUMPTIONS = (
    "Roofline: products at the published peak, recomputation counted; weights and optimiser state through memory;",
    "exposed collectives one after the other, each at the bandwidth of its wires (both directions of a torus's ring).",
    "A collective is exposed for what it takes longer than the products beside it; what activations move is left out.",
    f"Days and chip-hours: at {REACHED_SHARE['tpu']:.0%} of the roofline (GPUs {REACHED_SHARE['gpu']:.0%}), without "
    "evaluations, checkpoints and restarts.",
)


class Programs(NamedTuple):
    """Programs of one phase."""

    train: Request
    evaluation: Request
    """Program of its evaluation step, or of one with the defaults."""
    validation: Request | None
    """Program for held-out text during training; None where the phase measures none."""


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Declare --compile."""
    parser.add_argument(
        "--compile",
        action="store_true",
        help="(--dry-run) compile the steps of the main line, or of the selected phases, for their TPUs or GPUs",
    )


def report(session: Session, plan: Plan) -> None:
    """Compile the phases' programs and print the report; progress goes to the error stream.

    Raises:
        UserError: no phase is selected, or one cannot be compiled.
    """
    if not session.parsed.compile:
        return
    phases = phases_in(step.step for step in plan.steps)
    legs = legs_in(phases)
    forks = fork_names(session)
    is_whole = all(planned.is_selected for planned in plan.steps)
    candidates = main_line_of(legs, forks) if is_whole else main_line_first(legs, forks)
    names = [name for name in candidates if plan[name].is_selected]
    if not names:
        raise UserError(
            "--compile: the selected steps have no phase to compile; select some, or run without a selection."
        )
    every = [planned.step for planned in plan.steps]
    measured = [step for step in every if step.kind is ema_eval and step.background is None]
    evaluations = {step.config.phase.step.name: step for step in measured}
    requests = {
        name: programs_of(phases[name], evaluation=evaluations[name].config if name in evaluations else None)
        for name in names
    }
    wanted = list(dict.fromkeys(request for programs in requests.values() for request in programs if request))
    outcomes: dict[Request, Outcome] = {}
    for index, request in enumerate(wanted):
        outcomes[request] = _with_progress(request, f"{index + 1}/{len(wanted)}")
    lines = ["", f"Compiled for machines that are not here; cached in {cache_folder(COMPILED)}."]
    for request in wanted:
        users = [name for name in names if request in requests[name]]
        outcome = outcomes[request]
        lines += ["", *_program(request, outcome, users)]
        lines += _while_training(request, outcome, requests)
        of_step = {name: of.train if request.step == "train" else of.evaluation for name, of in requests.items()}
        curable = [name for name in users if of_step[name] == request]
        if isinstance(outcome, DoesNotFit) and curable:
            kept = [name for name in names if isinstance(outcomes[of_step[name]], Compiled)]
            lines.append(_cure(request, curable, kept, phases, evaluations))
    scored = evaluation_requests(planned.step for planned in plan.steps if planned.is_selected)
    lines += evaluation_lines(scored, _with_progress)
    lines += ["", *_phases(phases, requests, outcomes), "", *ASSUMPTIONS]
    if is_whole and len(names) < len(phases):
        lines.append("Side branches are compiled where they are selected, for example with --only.")
    print("\n".join(lines))


def programs_of(phase: Step, *, evaluation: EmaEvalConfig | None = None) -> Programs:
    """Return the programs of a phase and its evaluation; the errors are those of `request_of`."""
    return Programs(
        train=request_of(phase, "train"),
        evaluation=request_of(phase, "eval", evaluation=evaluation),
        validation=request_of(phase, "validation") if phase.config.validate_every_steps else None,
    )


def request_of(
    phase: Step, step: Literal["train", "eval", "validation"], *, evaluation: EmaEvalConfig | None = None
) -> Request:
    """Return the program of a phase's train or evaluation step on the phase's machines.

    Without an `evaluation`, the step has the defaults, the phase's dtype and as many copies. A validation is an
    evaluation by the run itself, over its own mesh (steps/phase_validation.py).

    Raises:
        UserError: the phase runs on CPUs, or on accelerators that nothing is known of here.
        ValueError: it asks for a kernel that does not run there.
    """
    from runtime.training.kernel_choice import chosen_kernels

    config, (name, num_slices) = phase.config, slice_of_step(phase)
    # An evaluation splits its batch over all chips, whatever the phase trained on (steps/ema_eval.py).
    model_parallel, context_parallel = (1, 1) if step == "eval" else (config.model_parallel, config.context_parallel)
    devices = devices_on(phase.resources, context_parallel=context_parallel)
    windows = WINDOWS_PER_BATCH if evaluation is None else evaluation.windows_per_batch
    asking = config if step == "train" or evaluation is None else evaluation
    num_parts = devices.num_devices // (model_parallel * context_parallel)
    num_rows = config.global_batch_size if step == "train" else window_batch(windows, num_parts)
    num_microbatches = config.num_microbatches if step == "train" else 1
    kernels = chosen_kernels(
        KernelShape.of(
            devices,
            config.model,
            num_rows=num_rows,
            sequence_length=config.sequence_length,
            compute_dtype=asking.compute_dtype,
            num_microbatches=num_microbatches,
        ),
        attention_kernel=asking.attention_kernel,
        loss_kernel=None if step == "eval" and evaluation is None else asking.loss_kernel,
    )
    return Request(
        step="train" if step == "train" else "eval",
        slice=name,
        num_slices=num_slices,
        model=config.model,
        sequence_length=config.sequence_length,
        global_batch_size=num_rows,
        num_averages=len(config.averages) if step == "train" else 0,
        compute_dtype=asking.compute_dtype,
        reduce_dtype=config.reduce_dtype,
        scatter_kernel=config.scatter_kernel if step == "train" else "xla",
        optimizer=config.optimizer if step == "train" else None,
        skip_window_steps=0 if config.skip is None or step != "train" else config.skip.window_steps,
        attention_kernel=kernels.attention,
        loss_kernel=kernels.loss,
        remat=config.remat if step == "train" else "full",
        num_microbatches=num_microbatches,
        replica_parallel=asking.replica_parallel,
        model_parallel=model_parallel,
        context_parallel=context_parallel,
    )


def _with_progress(request: Request, place: str) -> Outcome:
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


def _program(request: Request, outcome: Outcome, users: Sequence[str]) -> list[str]:
    axes = {"replica": request.replica_parallel, "model": request.model_parallel, "context": request.context_parallel}
    spread = "".join(f", {name} {size}" for name, size in axes.items() if size > 1)
    size = f"{request.global_batch_size:,} x {request.sequence_length:,} tokens"
    title = f"{request.step} step, {size}, {_slices(request)}{spread}"
    lines = [f"{title}: {', '.join(users)}"]
    if isinstance(outcome, DoesNotFit):
        return [*lines, _kernels(request), f"  does not fit    {outcome.message}"]
    lines.append(_kernels(request))
    chip = slice_of(request.slice).generation
    roofline = roofline_of(request, outcome)
    flops = flops_of(request)
    num_chips = slice_of(request.slice).num_chips * request.num_slices
    peak = num_chips * chip.peak_flops(request.compute_dtype) * roofline.step_seconds
    peak_gib, limit_gib = outcome.peak_memory_in_bytes / GIB, chip.hbm_in_bytes / GIB
    here = (
        f"compiled in {outcome.compile_seconds:.0f} s with {outcome.host_memory_in_bytes / GIB:.1f} GiB of this machine"
    )
    lines.append(
        f"  memory a chip   {peak_gib:.2f} GiB at its peak, of {limit_gib:.2f} ({peak_gib / limit_gib:.0%}); {here}"
    )
    if request.step == "train":
        parameters, rest = _state(request)
        sizes = f"parameters {parameters / 2**20:,.0f} MiB, {_rest_of_state(request)} {rest / 2**20:,.0f} MiB"
        lines.append(f"  of it           {sizes}")
    counts = f"{flops.causal:.4g} (causal), {flops.full:.4g} (full attention), {flops.executed:.4g} executed"
    lines.append(f"  FLOPs a step    {counts}, of which the program holds {roofline.found_share:.1%}")
    lines += _collectives(request, outcome)
    lines += [f"  fault           {fault}" for fault in faults(request, outcome)]
    lines.append(
        f"  roofline        {roofline.step_seconds:.3f} s a step: products {roofline.products_seconds:.3f}, weights "
        f"{roofline.weights_seconds:.3f} beside them, optimiser {roofline.optimizer_seconds:.3f}, exposed collectives "
        f"{roofline.exposed_seconds:.3f} ({roofline.exposed_share:.1%})"
    )
    speed = f"{roofline.tokens_per_second:,.0f} tokens/s"
    if request.step == "train":
        speed += f", at most {flops.causal / peak:.1%} MFU (causal), {flops.full / peak:.1%} (full)"
    lines.append(f"{'':<18}{speed}")
    return lines


def _state(train: Request) -> tuple[float, float]:
    """Return bytes a chip of the parameters, and of the rest of the state."""
    copy_size = train.layout.shape.copy_size
    return 4 * train.model.num_parameters / copy_size, 4 * train.state_size / copy_size


def _rest_of_state(train: Request) -> str:
    number = train.num_averages
    return "moments" + ("" if not number else " and average" if number == 1 else f" and {number} averages")


def _while_training(request: Request, outcome: Outcome, requests: Mapping[str, Programs]) -> Iterator[str]:
    """Yield the memory of an evaluation step beside the rest of the state of the phases that run it in training."""
    limit = slice_of(request.slice).generation.hbm_in_bytes
    phases: dict[Request, list[str]] = {}
    for name, programs in requests.items():
        if programs.validation == request:
            phases.setdefault(programs.train, []).append(name)
    for train, names in phases.items():
        fits = isinstance(outcome, Compiled)
        if isinstance(outcome, Compiled):
            total = outcome.peak_memory_in_bytes + _state(train)[1]
            fits = total <= limit
            memory = f"{total / GIB:.2f} GiB with {_rest_of_state(train)}, of {limit / GIB:.2f} ({total / limit:.0%})"
            yield f"  while it trains {memory}: {', '.join(names)}"
        if not fits:
            typed = " ".join(setting(name, "validate_every_steps", 0) for name in names)
            yield f"  while it trains it does not fit; {typed} measures held-out text in steps of their own"


def _collectives(request: Request, compiled: Compiled) -> list[str]:
    groups: dict[tuple[str, str, str], list] = {}
    for item in compiled.collectives:
        groups.setdefault((item.kind, item.dtype, "+".join(item.axes) or "none"), []).append(item)
    ordered = sorted(groups.items(), key=lambda pair: -wire_bytes(pair[1]))
    lines: list[str] = []
    for (kind, dtype, axes), items in ordered:
        if wire_bytes(items) < 2**20:
            continue
        counts = Counter(hidden for item in items for hidden in [item.is_hidden] * item.times)
        hidden = wire_bytes(item for item in items if item.is_hidden)
        total = wire_bytes(items)
        exposed = sum(exposed_seconds_of(item, request) for item in items)
        lines.append(
            f"  {'' if lines else 'collectives':<15} {kind:<18} {dtype:<5} {axes:<8} {total / 2**20:>9,.0f} MiB in "
            f"{sum(counts.values()):>5,}, hidden {counts[True]:>5,} ({hidden / total:.0%} of the bytes), "
            f"exposed {exposed:.3f} s"
        )
    return lines


def _kernels(request: Request) -> str:
    text = f"attention {request.attention_kernel}, loss {request.loss_kernel}"
    if request.step == "train":
        parts = request.num_microbatches
        text += "" if request.scatter_kernel == "xla" else f", scatter {request.scatter_kernel}"
        text += f"; remat {request.remat}; {parts} micro-batch{'es' if parts > 1 else ''}"
    return f"  kernels         {text}"


def _cure(
    request: Request,
    users: Sequence[str],
    kept: Sequence[str],
    phases: Mapping[str, Step],
    evaluations: Mapping[str, Step],
) -> str:
    """Try one change after the other to make it fit; return a line with the options to type."""
    can_be_typed = request.step == "train" or all(name in evaluations for name in users)
    for cure in cures(request) if can_be_typed else ():
        outcome = _with_progress(cure.request, f"with {cure.field}={cure.value}")
        if isinstance(outcome, Compiled):
            if request.step == "train":
                typed = options(cure, users, kept, phases)
            else:
                typed = " ".join(setting(evaluations[name].name, cure.field, cure.value) for name in users)
            return f"  fits with       {typed}: {outcome.peak_memory_in_bytes / GIB:.2f} GiB"
    return "  fits with       no change that was tried; use more chips"


def _phases(
    phases: Mapping[str, Step], requests: Mapping[str, Programs], outcomes: Mapping[Request, Outcome]
) -> list[str]:
    rows = [["phase", "chips", "tokens", "memory", "s/step", "tokens/s", "exposed", "days", "chip-hours"]]
    legs, own = legs_in(phases), own_steps(phases, requests)
    total_days, total_hours, whose = 0.0, 0.0, "all"
    for name, programs in requests.items():
        leg, request, outcome = legs[name], programs.train, outcomes[programs.train]
        chips = slice_of(request.slice).num_chips * request.num_slices
        size = [name, f"{chips:,}", in_short(leg.end_tokens - leg.begin_tokens)]
        if isinstance(outcome, DoesNotFit):
            rows.append([*size, "too large", *[""] * 5])
            whose = "all that fit"
            continue
        roofline = roofline_of(request, outcome)
        step_days = roofline.step_seconds / REACHED_SHARE[slice_of(request.slice).generation.platform] / DAY_SECONDS
        total_days += own[name] * step_days
        total_hours += own[name] * step_days * 24 * chips
        speed = [f"{roofline.step_seconds:.3f}", f"{roofline.tokens_per_second:,.0f}", f"{roofline.exposed_share:.1%}"]
        time = [f"{leg.steps * step_days:.1f}", f"{leg.steps * step_days * 24 * chips:,.0f}"]
        rows.append([*size, f"{outcome.peak_memory_in_bytes / GIB:.2f} GiB", *speed, *time])
    rows.append([whose, *[""] * 6, f"{total_days:.1f}", f"{total_hours:,.0f}"])
    shared = "Updates that several names share, as stops of one run, count once in the last line."
    return [*aligned(rows), *([shared] if any(own[name] < legs[name].steps for name in requests) else [])]


def _slices(request: Request) -> str:
    one = slice_of(request.slice)
    if one.generation.platform == "gpu":
        return request.slice
    many = "" if request.num_slices == 1 else f"{request.num_slices} x "
    return f"{many}{request.slice} ({one.topology})"
