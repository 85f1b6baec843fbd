"""The whole step as a GPU runs it: it lowers to CUDA on each kind of mesh, and sums as on a CPU. None was there."""

import jax
import numpy as np
import pytest

from runtime.model.config import LLAMA2_ROPE
from runtime.model.llama.config import LlamaConfig
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.platform.platform import PLATFORMS
from runtime.training.state import initial_state
from runtime.training.train_step import Hyperparameters
from tests.runtime.training.plain_step import plain_step

MODEL = LlamaConfig(
    vocab_size=512, hidden_size=512, intermediate_size=1024, num_hidden_layers=2, num_attention_heads=8,
    num_key_value_heads=4, head_dim=64, max_position_embeddings=256,
)  # fmt: skip
SMALL = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=16, max_position_embeddings=64,
)  # fmt: skip


def test_a_step_with_the_embedding_gradient_summed_as_on_a_gpu_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens = np.random.default_rng(0).integers(0, 9, (4, 64), dtype=np.int32)  # each token many times
    mesh = make_mesh(MeshShape(data=2), jax.devices()[:2])

    def updated() -> np.ndarray:
        step = plain_step(SMALL, mesh, rope=LLAMA2_ROPE, remat="none")
        numbers = Hyperparameters(1e-2, 0.0, 0.9, 0.95, 1e-8, 1.0, 0.0)
        state, _ = step(initial_state(SMALL, 0, mesh), tokens, np.zeros_like(tokens), numbers)
        return np.asarray(state.optimizer.mu.embed_tokens)

    scattered = updated()
    # The sums alone: a CPU's collectives need the order that they are given there.
    monkeypatch.setitem(PLATFORMS, "cpu", PLATFORMS["gpu"])
    sorted_by_id = updated()
    assert np.abs(scattered).max() > 0
    np.testing.assert_allclose(sorted_by_id, scattered, rtol=1e-5, atol=1e-9)
    assert not np.array_equal(sorted_by_id, scattered)  # summed in another order
