"""Held-out text of token caches, opened for the steps that score weights on it."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from marin_dag.graph.inputs import Input
from marin_dag.graph.step import StepContext
from marin_dag.quantities import counted
from steps.tokenize import TokenizeResult

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from runtime.evaluation.held_out import HeldOut
    from runtime.evaluation.token_predictions import Predictor
    from runtime.model.config import ModelConfig, Rope
    from runtime.training.kernel_choice import KernelChoice


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationProgram:
    """The program that scores weights."""

    model: "ModelConfig"
    rope: "Rope"
    sequence_length: int
    windows_per_batch: int
    """Fewest windows of a batch; with more devices, one for each."""
    compute_dtype: str
    attention_kernel: str | None
    loss_kernel: str | None


class OpenedText(NamedTuple):
    """This host's windows of text and answers, the kernels of the program that scores them, the heat map's sample."""

    texts: "HeldOut"
    answers: "HeldOut | None"
    kernels: "KernelChoice"
    predictor: "Predictor | None"


def open_held_out(
    caches: Mapping[str, Input[TokenizeResult]],
    context: StepContext,
    mesh: "Mesh",
    program: EvaluationProgram,
    *,
    max_tokens_per_domain: int,
    sampled_windows_per_domain: int,
    answers: Mapping[str, str] | None = None,
) -> OpenedText:
    """Open the windows of this host with the compiled program, and log its kernels.

    Args:
        caches: domain -> tokenized source, none of them still growing.
        answers: task -> file of its right answers.
        sampled_windows_per_domain: windows whose tokens' predictions are kept; with 0 there is no predictor.

    Raises:
        BitsPerByteError: a domain has no held-out text.
        RuntimeError: the loss kernel gives wrong numbers on the devices of `mesh`.
    """
    from runtime.evaluation.gold_answers import answer_source
    from runtime.evaluation.held_out import HeldOut
    from runtime.evaluation.window_batch import window_batch
    from runtime.evaluation.windows import text_source
    from runtime.parallel.hosts import host_rows
    from runtime.parallel.mesh import num_batch_parts
    from runtime.training.eval_step import build_eval_step

    num_windows = window_batch(program.windows_per_batch, num_batch_parts(mesh))
    kernels = _take_kernels(program, context, mesh, num_windows)
    eval_step = build_eval_step(
        program.model,
        program.rope,
        mesh,
        attention_kernel=kernels.attention,
        loss_kernel=kernels.loss,
        compute_dtype=program.compute_dtype,
    )
    paths = {domain: cache.join(cache.result.validation) for domain, cache in caches.items()}
    rows = None if context.host.num_hosts == 1 else host_rows(mesh, num_windows)
    length = program.sequence_length
    open_windows = functools.partial(
        HeldOut.open, eval_step=eval_step, sequence_length=length, windows_per_batch=num_windows, rows=rows
    )
    open_text = functools.partial(text_source, sequence_length=length, max_tokens=max_tokens_per_domain)
    texts = open_windows({domain: open_text(path) for domain, path in paths.items()})
    of_answers = {task: answer_source(path, sequence_length=length) for task, path in (answers or {}).items()}
    predictor = None
    if sampled_windows_per_domain:
        predictor = _predictor(
            program, mesh, kernels, paths, sampled_windows_per_domain, windows_per_batch=num_windows, rows=rows
        )
    context.log.info(
        "held-out text: %s of %s, batches for each set of weights: %d",
        *(counted(texts.num_windows, "window"), counted(len(caches), "domain"), texts.num_batches),
    )
    return OpenedText(texts, open_windows(of_answers) if of_answers else None, kernels, predictor)


def _predictor(
    program: EvaluationProgram,
    mesh: "Mesh",
    kernels: "KernelChoice",
    paths: Mapping[str, str],
    windows_per_domain: int,
    **batches: Any,
) -> "Predictor":
    from runtime.evaluation.token_predictions import Predictor, build_prediction_step, sample_windows

    predict = build_prediction_step(
        program.model, program.rope, mesh, attention_kernel=kernels.attention, compute_dtype=program.compute_dtype
    )
    sample = sample_windows(paths, sequence_length=program.sequence_length, windows_per_domain=windows_per_domain)
    return Predictor(sample=sample, step=predict, **batches)


def _take_kernels(program: EvaluationProgram, context: StepContext, mesh: "Mesh", num_windows: int) -> "KernelChoice":
    from runtime.kernels.kernel_shape import KernelShape
    from runtime.parallel.mesh import devices_of
    from runtime.training.kernel_checks import check_loss_kernel
    from runtime.training.kernel_choice import take_kernels

    shape = KernelShape.of(
        devices_of(mesh),
        program.model,
        num_rows=num_windows,
        sequence_length=program.sequence_length,
        compute_dtype=program.compute_dtype,
    )
    kernels = take_kernels(shape, attention_kernel=program.attention_kernel, loss_kernel=program.loss_kernel)
    context.log.info(
        "held-out text: %d windows per batch on %d devices; attention %s: %s; loss %s: %s; %s",
        *(num_windows, mesh.size, kernels.attention, kernels.blocks["attention"], kernels.loss, kernels.blocks["loss"]),
        kernels.reason,
    )
    check_loss_kernel(kernels.loss, mesh)
    return kernels
