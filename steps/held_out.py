"""Held out: the held-out documents of token caches, opened for the steps that score weights on them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from marin_dag.graph.inputs import Input
from marin_dag.graph.step import StepContext
from marin_dag.quantities import counted
from steps.taken_kernels import TakenKernels, refuse_wrong_kernels, take_kernels
from steps.tokenize import TokenizeResult

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from runtime.evaluation.held_out import HeldOut
    from runtime.model.config import ModelConfig, Rope


class OpenedText(NamedTuple):
    """What this host reads of it, and the kernels of the program that scores it."""

    texts: "HeldOut"
    kernels: TakenKernels


def held_out(
    caches: Mapping[str, Input[TokenizeResult]],
    context: StepContext,
    mesh: "Mesh",
    model: "ModelConfig",
    rope: "Rope",
    *,
    sequence_length: int,
    max_tokens_per_domain: int,
    windows_per_batch: int,
    compute_dtype: str,
    attention_kernel: str | None,
    loss_kernel: str | None,
) -> OpenedText:
    """What this host reads of it, with the compiled program that scores it; tells which kernels that takes, and why.

    Args:
        caches: domain -> tokenized source; none that is still growing.
        windows_per_batch: at least so many; as many as there are devices where that is more.

    Raises:
        BitsPerByteError: a domain holds nothing out.
        RuntimeError: the loss kernel gives wrong numbers on the devices of `mesh`.
    """
    from runtime.evaluation.held_out import HeldOut
    from runtime.evaluation.window_batch import window_batch
    from runtime.kernels.kernel_shape import KernelShape
    from runtime.parallel.host_rows import host_rows
    from runtime.parallel.mesh import devices_of, num_batch_parts
    from runtime.training.eval_step import build_eval_step

    num_windows = window_batch(windows_per_batch, num_batch_parts(mesh))
    shape = KernelShape.of(
        devices_of(mesh), model, num_rows=num_windows, sequence_length=sequence_length, compute_dtype=compute_dtype
    )
    kernels = take_kernels(shape, attention_kernel=attention_kernel, loss_kernel=loss_kernel)
    context.log.info(
        "held-out text: %d windows a batch on %d devices; attention %s: %s; loss %s: %s; %s",
        *(num_windows, mesh.size, kernels.attention, kernels.blocks["attention"], kernels.loss, kernels.blocks["loss"]),
        kernels.reason,
    )
    refuse_wrong_kernels(kernels, mesh)
    eval_step = build_eval_step(
        model,
        rope,
        mesh,
        attention_kernel=kernels.attention,
        loss_kernel=kernels.loss,
        compute_dtype=compute_dtype,
    )
    texts = HeldOut.open(
        {domain: cache.join(cache.result.validation) for domain, cache in caches.items()},
        eval_step,
        sequence_length=sequence_length,
        max_tokens_per_domain=max_tokens_per_domain,
        windows_per_batch=num_windows,
        rows=None if context.host.num_hosts == 1 else host_rows(mesh, num_windows),
    )
    context.log.info(
        "held-out text: %s of %s, batches for each set of weights: %d",
        *(counted(texts.num_windows, "window"), counted(len(caches), "domain"), texts.num_batches),
    )
    return OpenedText(texts, kernels)
