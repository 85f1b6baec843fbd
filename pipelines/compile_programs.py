"""Compile programs: the programs of phases and scores on their machines, and changes to try if one does not fit."""

import dataclasses
import shlex
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from marin_dag.errors import UserError
from marin_dag.graph.resources import Cpu, Gpu, Resources, Tpu
from marin_dag.graph.step import Step
from runtime.cost.chips import slice_of
from runtime.cost.expected import expected_memory
from runtime.cost.request import CompileRequest
from runtime.evaluation.window_batch import WINDOWS_PER_BATCH, window_batch
from runtime.kernels.kernel_shape import KernelShape
from runtime.model.config import ModelConfig
from runtime.same_fields import filled_from
from steps.ema_eval import EmaEvalConfig
from steps.lm_eval import LmEvalConfig, evaluated_bytes, evaluated_model, lm_eval, longest_text, room_for
from steps.machine_checks import devices_on, evaluated_mesh, kernel_shape_of

Kind = Literal["train", "eval", "validation"]
"""A validation is an evaluation that the run itself makes, on its own mesh (steps/phase_validation.py)."""


def programs_of(phase: Step, *, evaluation: EmaEvalConfig | None = None) -> dict[Kind, CompileRequest]:
    """Return the programs of a phase and its evaluation; raise the errors of `request_of`."""
    found: dict[Kind, CompileRequest] = {
        "train": request_of(phase, "train"),
        "eval": request_of(phase, "eval", evaluation=evaluation),
    }
    return found | ({"validation": request_of(phase, "validation")} if phase.config.validate_every_steps else {})


def request_of(phase: Step, kind: Kind, *, evaluation: EmaEvalConfig | None = None) -> CompileRequest:
    """Return one program of a phase on the phase's machines.

    Without an `evaluation`, "eval" has default settings, with the dtype and the replicas of the phase.

    Raises:
        UserError: the phase runs on CPUs, or on unknown accelerators.
        ValueError: the phase sets a kernel that does not run on its machines.
    """
    from runtime.training.kernel_choice import chosen_kernels

    config, (name, num_slices) = phase.config, slice_of_step(phase)
    is_train, is_default = kind == "train", evaluation is None or kind != "eval"
    asking: Any = config if is_default else evaluation
    # An evaluation splits its batch over all chips, whatever the phase trained on (steps/ema_eval.py).
    model_parallel, context_parallel = (1, 1) if kind == "eval" else (config.model_parallel, config.context_parallel)
    devices = devices_on(phase.resources, context_parallel=context_parallel)
    num_parts = devices.num_devices // (model_parallel * context_parallel)
    windows = WINDOWS_PER_BATCH if is_default else asking.windows_per_batch
    num_rows = config.global_batch_size if is_train else window_batch(windows, num_parts)
    own_rows = None if is_train else num_rows
    shape = kernel_shape_of(config, devices, num_rows=own_rows, compute_dtype=asking.compute_dtype)
    loss_kernel = None if kind == "eval" and is_default else asking.loss_kernel
    kernels = chosen_kernels(shape, attention_kernel=asking.attention_kernel, loss_kernel=loss_kernel)
    own = {
        "slice": name,
        "num_slices": num_slices,
        "global_batch_size": num_rows,
        "compute_dtype": asking.compute_dtype,
        "attention_kernel": kernels.attention,
        "loss_kernel": kernels.loss,
        "replica_parallel": asking.replica_parallel,
    }
    if is_train:
        window_steps = 0 if config.skip is None else config.skip.window_steps
        state = {"num_averages": len(config.averages), "skip_window_steps": window_steps}
        return filled_from(config, CompileRequest, step="train", stored_dtype="float32", **own, **state)
    return CompileRequest(
        step="eval",
        **own,
        num_averages=0,
        model=config.model,
        sequence_length=config.sequence_length,
        reduce_dtype=config.reduce_dtype,
        model_parallel=model_parallel,
        context_parallel=context_parallel,
    )


def with_kernels(request: CompileRequest, machines: Resources) -> CompileRequest:
    """Return a request with the kernels that a phase takes by default on its machines; loads JAX."""
    from runtime.training.kernel_choice import chosen_kernels

    model: ModelConfig = request.model
    shape = KernelShape.of(
        devices_on(machines),
        model,
        num_rows=request.global_batch_size,
        sequence_length=request.sequence_length,
        compute_dtype=request.compute_dtype,
        num_microbatches=request.num_microbatches,
    )
    kernels = chosen_kernels(shape)
    return dataclasses.replace(request, attention_kernel=kernels.attention, loss_kernel=kernels.loss)


def kind_of(request: CompileRequest) -> CompileRequest:
    """Return the kind of a program: the request with one batch, one micro-batch and no averages or skip rule."""
    return dataclasses.replace(request, global_batch_size=1, num_microbatches=1, num_averages=0, skip_window_steps=0)


def size_of(request: CompileRequest) -> int:
    """Return a number that grows with memory among programs of one kind."""
    return expected_memory(request) if request.step == "train" else request.global_batch_size


def stands_for(larger: CompileRequest, smaller: CompileRequest) -> bool:
    """Return whether a program takes at least the memory of another one of its kind, and about its time a token.

    The time is that of its micro-batches: it has at least as many, of at least as many sequences.
    """
    return (
        kind_of(larger) == kind_of(smaller)
        and larger.num_microbatches >= smaller.num_microbatches
        and larger.global_batch_size * smaller.num_microbatches >= smaller.global_batch_size * larger.num_microbatches
        and size_of(larger) >= size_of(smaller)
    )


def slice_of_step(step: Step[Any]) -> tuple[str, int]:
    """Return the name of a step's slice or GPUs, and the number of slices."""
    resources = step.resources
    if isinstance(resources, Cpu):
        raise UserError(
            f"--compile: {step.name} runs on {resources}, and only programs for TPUs and GPUs are compiled ahead of "
            "time; give it resources=Tpu(...) or Gpu(...) (the flagship: --on H100:1)."
        )
    try:
        return slice_named(resources)
    except ValueError as error:
        raise UserError(f"--compile: {step.name} runs on {resources}: {error}") from error


def slice_named(resources: Gpu | Tpu) -> tuple[str, int]:
    """Return the name of a slice or of GPUs, and the number of slices; raise ValueError for unknown accelerators."""
    name, num_slices = (str(resources), 1) if isinstance(resources, Gpu) else (resources.slice, resources.num_slices)
    slice_of(name)
    return name, num_slices


def scoring_programs(step: Step[Any]) -> Iterator[CompileRequest]:
    """Yield the largest programs of an lm_eval step on accelerators; none if its model is unknown.

    The step itself refuses prompts that are too long for a device.
    """
    if step.kind is not lm_eval or isinstance(step.resources, Cpu) or evaluated_model(step.config) is None:
        return
    from runtime.evaluation.generation import MOST_SLOTS, slots_and_capacity
    from runtime.evaluation.packing import LEAST_ROW, row_length
    from runtime.kernels.attention_paged import cache_kernel_of

    config: LmEvalConfig = step.config
    model: Any = evaluated_model(config)
    devices, (name, num_slices) = devices_on(step.resources), slice_of_step(step)
    num_bytes, longest = evaluated_bytes(config, model), model.max_position_embeddings
    room = room_for(config, step.resources, model, num_bytes)
    length = row_length(longest)
    while room.row_tokens is not None and length > max(room.row_tokens, LEAST_ROW):
        length //= 2
    score = CompileRequest(
        step="score",
        slice=name,
        num_slices=num_slices,
        model=model,
        sequence_length=length,
        global_batch_size=max(1, config.tokens_per_batch // length) * devices.num_devices,
        num_averages=0,
        compute_dtype=config.compute_dtype,
        attention_kernel="chunked",
        loss_kernel="none",
        remat="none",
        replica_parallel=evaluated_mesh(step.resources, model, num_bytes).replica // num_slices,
        stored_dtype="bfloat16" if num_bytes == 2 * model.num_parameters else "float32",
    )
    yield score
    if longest_text(config):
        longest = min(longest, longest if room.longest_text is None else room.longest_text)
        slots, capacity = slots_and_capacity(longest, MOST_SLOTS, MOST_SLOTS, room.cached_tokens)
        kernel, _ = cache_kernel_of(devices.platform, head_dim=model.head_dim, compute_dtype=config.compute_dtype)
        size = slots * devices.num_devices
        yield dataclasses.replace(score, step="prefill", sequence_length=capacity, global_batch_size=size)
        yield dataclasses.replace(
            score, step="decode", sequence_length=capacity, global_batch_size=size, attention_kernel=kernel
        )


def cures(train: CompileRequest) -> Iterator[tuple[str, CompileRequest]]:
    """Yield the changes to try, in order, if a training step does not fit: the field and the changed request."""
    if train.remat != "full":
        yield "remat", dataclasses.replace(train, remat="full")
    fewer = (dataclasses.replace(train, replica_parallel=number) for number in range(train.replica_parallel - 1, 0, -1))
    if laid := next(filter(_can_be_laid, fewer), None):
        yield "replica_parallel", laid
    sequences = train.global_batch_size // train.layout.shape.batch_parts // train.num_microbatches
    for factor in [part for part in range(2, sequences + 1) if sequences % part == 0][:2]:
        yield "num_microbatches", dataclasses.replace(train, num_microbatches=train.num_microbatches * factor)
    by_two = dataclasses.replace(train, model_parallel=2)
    if train.parallel == 1 and _can_be_laid(by_two):
        yield "model_parallel", by_two


def _can_be_laid(request: CompileRequest) -> bool:
    try:
        request.model.check_divides(copy_size=request.layout.shape.copy_size, model_axis=request.model_parallel)
    except ValueError:
        return False
    return True


def settings(field: str, values: Iterable[tuple[str, object]]) -> str:
    """Return `--set STEP.FIELD=VALUE` for each step, quoted for a shell."""
    texts = [f"{step}.{field}={'null' if value is None else value}" for step, value in values]
    return " ".join(f"--set {shlex.quote(text)}" for text in texts)
