"""The whole step with each fused kernel of a GPU, on each kind of mesh: it lowers to CUDA. None was there to run it."""

import types

import jax
import pytest

from runtime.cost.compile_program import arguments_of
from runtime.cost.request import Request
from runtime.model.config import LlamaConfig
from runtime.parallel.mesh import MeshShape, make_mesh
from runtime.training.train_step import train_program

MODEL = LlamaConfig(
    vocab_size=512, hidden_size=512, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=8,
    num_key_value_heads=4, head_dim=64, max_position_embeddings=256,
)  # fmt: skip
CALLS = {
    "pallas_gpu": ("mha_forward", "mha_backward"),
    "cudnn": ("fmhaScaleBiasSoftmax(", "fmhaScaleBiasSoftmaxBackward("),
}


@pytest.mark.parametrize("shape", [MeshShape(data=4), MeshShape(data=2, model=2), MeshShape(data=2, context=2)])
@pytest.mark.parametrize("kernel", CALLS)
def test_a_train_step_with_a_fused_kernel_lowers_to_cuda(
    kernel: str, shape: MeshShape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.training.train_step.platform", lambda mesh: "gpu")
    # JAX asks for the version of a library that a CPU build has not; nothing of it is called to lower.
    installed = types.SimpleNamespace(cudnn_get_version=lambda: 91_000)
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.cuda_versions", installed)
    mesh = make_mesh(shape, jax.devices()[:4])
    program = train_program(
        MODEL,
        mesh,
        attention_kernel=kernel,
        loss_kernel="chunked_wide",
        compute_dtype="bfloat16",
        remat="full",
        num_microbatches=1,
        reduce_dtype="float32",
        donate=True,
    )
    request = Request("train", "none", 1, MODEL, 256, 8, 0, "bfloat16", kernel, "chunked_wide")
    text = program.trace(*arguments_of(request, mesh)).lower(lowering_platforms=("cuda",)).as_text()
    for call in CALLS[kernel]:
        assert call in text
