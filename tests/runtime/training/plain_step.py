"""The train step of the plain kernels, by default in float32, with which tests compare others."""

from typing import Any

from jax.sharding import Mesh

from runtime.model.config import LLAMA3_ROPE, Rope
from runtime.model.llama.config import LlamaConfig
from runtime.platform.remat import Remat
from runtime.training.train_step import ProgramOptions, TrainStep, build_train_step


def plain_step(
    config: LlamaConfig,
    mesh: Mesh,
    *,
    rope: Rope = LLAMA3_ROPE,
    compute_dtype: str = "float32",
    remat: Remat = "full",
    attention_kernel: str = "reference",
    donate: bool = True,
    **others: Any,
) -> TrainStep:
    options = ProgramOptions(
        attention_kernel=attention_kernel, loss_kernel="chunked", compute_dtype=compute_dtype, remat=remat, **others
    )
    return build_train_step(config, rope, mesh, options, donate=donate)
