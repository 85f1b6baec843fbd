"""Collectives of a CPU's devices keep one order: by the compiled program, and by updates that are all the same."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runtime.cost.compile_program import compiled_program
from runtime.cost.request import Request
from runtime.model.config import LLAMA2_ROPE, LlamaConfig
from runtime.parallel.collective_order import CollectiveOrder
from runtime.parallel.mesh import MeshShape, make_mesh
from runtime.training.state import initial_state
from runtime.training.train_step import Hyperparameters, build_train_step
from tests.runtime.parallel.program_order import unordered

MODEL = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, max_position_embeddings=32, use_qk_norm=True,
)  # fmt: skip
TIED = dataclasses.replace(MODEL, tie_word_embeddings=True)
REQUEST = Request("train", "none", 1, MODEL, 32, 16, 0, "float32", "chunked", "chunked", remat="none")
BY_DATA = CollectiveOrder(is_of_program=False)
TOKENS = jnp.zeros((2, 4), jnp.int32)


def pairs(shape: MeshShape, request: Request) -> list[tuple[str, str]]:
    mesh = make_mesh(shape, jax.devices()[: int(np.prod(shape))])
    return unordered(compiled_program(request, mesh).as_text())


@pytest.mark.parametrize(
    ("shape", "change"),
    [
        (MeshShape(data=2), {}),
        (MeshShape(data=2), {"model": TIED, "num_microbatches": 2, "remat": "dots"}),
        (MeshShape(replica=2, data=2), {"remat": "full", "num_averages": 1}),
        (MeshShape(context=2), {"model": TIED}),
        (MeshShape(data=2, model=2, context=2), {"num_microbatches": 2, "skip_window_steps": 8}),
        (MeshShape(data=2, model=2, context=2), {}),
        (MeshShape(data=2), {"step": "eval"}),
        (MeshShape(model=2, context=2), {"step": "eval", "model": TIED}),
    ],
)
def test_no_collective_may_run_beside_a_loop_that_holds_others(shape: MeshShape, change: dict) -> None:
    assert pairs(shape, dataclasses.replace(REQUEST, **change)) == []


@pytest.mark.parametrize(("shape", "at_least"), [(MeshShape(data=2), 5), (MeshShape(data=2, model=2, context=2), 10)])
def test_left_to_the_program_they_may(shape: MeshShape, at_least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.training.objective.CollectiveOrder", lambda is_of_program: CollectiveOrder())
    assert len(pairs(shape, REQUEST)) >= at_least


def test_copies_that_share_nothing_but_gradients_need_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> CollectiveOrder:
        raise AssertionError("asked for")

    monkeypatch.setattr("runtime.training.objective.CollectiveOrder", refused)
    assert pairs(MeshShape(replica=2), REQUEST) == []


def test_three_hundred_updates_from_one_state_are_one_update() -> None:
    mesh = make_mesh(MeshShape(data=2), jax.devices()[:2])
    step = build_train_step(
        MODEL, LLAMA2_ROPE, mesh, attention_kernel="reference", loss_kernel="chunked", compute_dtype="float32",
        remat="none", donate=False,
    )  # fmt: skip
    tokens = np.random.default_rng(0).integers(0, 64, (4, 32), dtype=np.int32)
    state, told = initial_state(MODEL, 0, mesh), Hyperparameters(1e-2, 0.0, 0.9, 0.95, 1e-8, 1.0, 0.0)
    results = set()
    for _ in range(300):
        updated, metrics = step(state, tokens, np.zeros_like(tokens), told)
        results.add(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves((updated.mu, metrics))))
    assert len(results) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, 2.5])
def test_waiting_changes_no_value(value: float) -> None:
    waiting = {"real": jnp.full((3, 2), value), "whole": jnp.arange(5), "flag": jnp.array([True, False])}
    earlier = [jnp.full((2,), np.nan), jnp.int32(7), jnp.array(False)]
    after = jax.jit(BY_DATA.after)(waiting, earlier, TOKENS)
    for name, expected in waiting.items():
        assert after[name].dtype == expected.dtype
        np.testing.assert_array_equal(after[name], expected)


def test_gradients_pass_unchanged_through_what_comes_later() -> None:
    def objective(order: CollectiveOrder, value: jax.Array, later: jax.Array) -> jax.Array:
        value, later = order.later(jnp.sin(value), jnp.cos(later), TOKENS)
        return jnp.sum(value @ later)

    arguments = jnp.arange(6.0).reshape(2, 3), jnp.arange(12.0).reshape(3, 4)
    gradients = [jax.grad(objective, argnums=(1, 2))(order, *arguments) for order in (BY_DATA, CollectiveOrder())]
    for by_data, of_program in zip(*gradients, strict=True):
        np.testing.assert_array_equal(by_data, of_program)
