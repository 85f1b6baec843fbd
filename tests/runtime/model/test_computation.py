"""The forms of each platform: the same model, loop or no loop; and a loop where layers hold collectives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runtime.model.computation import whole
from runtime.model.config import LLAMA2_ROPE
from runtime.model.llama.config import LlamaConfig
from runtime.model.llama.model import Llama, LlamaParams
from runtime.model.rotary import inverse_frequencies
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.platform.platform import PLAIN, PLATFORMS, Platform
from runtime.platform.remat import Remat
from runtime.training.objective import computation_on

CONFIG = LlamaConfig(
    vocab_size=50,
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    max_position_embeddings=32,
)
TOKENS = np.random.default_rng(0).integers(0, CONFIG.vocab_size, (2, 16), dtype=np.int32)
SEGMENT_IDS = np.repeat([[0, 1, 2], [0, 1, 2]], [5, 4, 7], axis=1).astype(np.int32)


def gradient(forms: Platform, attention_kernel: str, remat: Remat = "none") -> jax.stages.Lowered:
    """Return the gradient of a sum over the final hidden states, as a program of the parameters."""
    computation = whole("float32", attention_kernel, remat)._replace(platform=forms)
    frequencies = inverse_frequencies(LLAMA2_ROPE, CONFIG.head_dim)

    def total(params: LlamaParams) -> jax.Array:
        states = Llama(CONFIG).states(
            params, jnp.asarray(TOKENS), jnp.asarray(SEGMENT_IDS), frequencies, computation=computation
        )
        return jnp.sum(jnp.sin(states.hidden))

    return jax.jit(jax.grad(total)).lower(params())


@functools.cache
def params() -> LlamaParams:
    noise = np.random.default_rng(1)
    return jax.tree.map(
        lambda leaf: leaf + np.float32(0.1) * noise.normal(size=leaf.shape).astype(np.float32),
        Llama(CONFIG).init(jax.random.key(0)),
    )


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_forms_of_a_platform_change_no_gradient_beyond_rounding(platform: str) -> None:
    got = gradient(PLATFORMS[platform], "chunked").compile()(params())
    expected = gradient(PLAIN, "reference").compile()(params())
    for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("most_unrolled_layers", "num_loops"), [(2, 2), (3, 0)])
def test_only_a_model_of_few_layers_is_written_out(most_unrolled_layers: int, num_loops: int) -> None:
    program = gradient(Platform(most_unrolled_layers=most_unrolled_layers), "reference").as_text()
    assert program.count("stablehlo.while") == num_loops  # forwards and backwards


@pytest.mark.parametrize("platform", PLATFORMS)
def test_rematerialisation_saves_memory_on_each_platform(platform: str) -> None:
    memory = [
        gradient(PLATFORMS[platform], "reference", remat).compile().memory_analysis().temp_size_in_bytes
        for remat in ("full", "dots", "none")
    ]
    assert memory[0] < memory[1] < memory[2]


@pytest.mark.parametrize(("shape", "num_unrolled"), [(MeshShape(replica=2), 3), (MeshShape(data=2), 1)])
def test_layers_that_hold_collectives_are_in_a_loop(shape: MeshShape, num_unrolled: int) -> None:
    mesh = make_mesh(shape, jax.devices()[:2])
    computation = computation_on(
        mesh, CONFIG, attention_kernel="chunked", compute_dtype="float32", remat="none", reduce_dtype="float32"
    )
    assert computation.unrolled_layers(CONFIG.num_hidden_layers) == num_unrolled
