"""The train step of the plain kernels, in float32 unless told otherwise, which tests hold others against."""

from typing import Any

from jax.sharding import Mesh

from runtime.model.config import LLAMA3_ROPE, LlamaConfig, Rope
from runtime.training.train_step import TrainStep, build_train_step


def plain_step(
    config: LlamaConfig,
    mesh: Mesh,
    *,
    rope: Rope = LLAMA3_ROPE,
    compute_dtype: str = "float32",
    remat: str = "full",
    attention_kernel: str = "reference",
    **options: Any,
) -> TrainStep:
    return build_train_step(
        config,
        rope,
        mesh,
        attention_kernel=attention_kernel,
        loss_kernel="chunked",
        compute_dtype=compute_dtype,
        remat=remat,
        **options,
    )
