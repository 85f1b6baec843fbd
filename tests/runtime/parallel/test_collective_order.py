"""Collectives of a CPU's devices keep one order: no compiled program leaves one free to run beside a loop of others."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from runtime.cost.compile_program import compiled_program
from runtime.cost.request import CompileRequest
from runtime.model.llama.config import LlamaConfig
from runtime.optim.optimizer import Muon
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.platform.collective_order import CollectiveOrder
from runtime.platform.platform import PLATFORMS
from tests.catalogue import expect_error
from tests.runtime.parallel.program_order import unordered

MODEL = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8, max_position_embeddings=32, use_qk_norm=True,
)  # fmt: skip
TIED = dataclasses.replace(MODEL, tie_word_embeddings=True)
ODD = dataclasses.replace(MODEL, num_hidden_layers=3)
"""Muon gathers the layers of this one inside a loop, since no axis divides them."""
REQUEST = CompileRequest("train", "none", 1, MODEL, 32, 16, 0, "float32", "chunked", "chunked", remat="none")
BY_DATA, OF_PROGRAM = CollectiveOrder(by_data=True), CollectiveOrder(by_data=False)
TOKENS = jnp.zeros((2, 4), jnp.int32)


def pairs(shape: MeshShape, request: CompileRequest) -> list[tuple[str, str]]:
    mesh = make_mesh(shape, jax.devices()[: int(np.prod(shape))])
    return unordered(compiled_program(request, mesh).as_text())


@pytest.mark.parametrize(
    ("shape", "change"),
    [
        (MeshShape(data=2), {"model": TIED, "num_microbatches": 2, "remat": "dots"}),
        (MeshShape(replica=2, data=2), {"remat": "full", "num_averages": 1}),
        (MeshShape(data=2, model=2, context=2), {"num_microbatches": 2, "skip_window_steps": 8}),
        (MeshShape(data=2, model=2, context=2), {"model": ODD, "optimizer": Muon()}),
        (MeshShape(model=2, context=2), {"step": "eval", "model": TIED}),
    ],
)
def test_no_collective_may_run_beside_a_loop_that_holds_others(shape: MeshShape, change: dict) -> None:
    assert pairs(shape, dataclasses.replace(REQUEST, **change)) == []


def test_left_to_the_program_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLATFORMS, "cpu", dataclasses.replace(PLATFORMS["cpu"], orders_collectives=False))
    assert len(pairs(MeshShape(data=2, model=2, context=2), REQUEST)) >= 10


def test_copies_that_share_nothing_but_gradients_need_no_order() -> None:
    text = compiled_program(REQUEST, make_mesh(MeshShape(replica=2), jax.devices()[:2])).as_text()
    assert "all-reduce" in text and unordered(text) == []


def test_an_array_of_parts_is_waited_for_as_a_whole() -> None:
    """Its first and last elements are there before the collective is asked for."""
    mesh = make_mesh(MeshShape(context=2), jax.devices()[:2])

    def program(order: CollectiveOrder, values: jax.Array, tokens: jax.Array) -> jax.Array:
        from_next = lax.ppermute(values[1:2], "context", [(0, 1), (1, 0)])
        parts = jnp.concatenate([values[:1], from_next, values[2:]])
        begin = order.after(values, parts, tokens)
        summed, _ = lax.scan(lambda total, _: (jnp.sin(lax.psum(total, "context")), None), begin, None, length=3)
        return summed + parts

    def found(order: CollectiveOrder) -> list[tuple[str, str]]:
        mapped = jax.shard_map(partial(program, order), mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(),
                               check_vma=False)  # fmt: skip
        return unordered(jax.jit(mapped).lower(jnp.ones(4), TOKENS).compile().as_text())

    assert len(found(OF_PROGRAM)) == 1
    assert found(BY_DATA) == []


@pytest.mark.parametrize("dtype", [jnp.uint16, jnp.uint32, jnp.int16])
def test_ids_of_another_type_are_refused(dtype: jnp.dtype) -> None:
    """The compiler knows that no unsigned number is negative, and removes the dependence."""
    with expect_error(TypeError):
        BY_DATA.after(jnp.ones(2), jnp.ones(2), TOKENS.astype(dtype))


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
        value, later = order.before_and_after(jnp.sin(value), jnp.cos(later), TOKENS)
        return jnp.sum(value @ later)

    arguments = jnp.arange(6.0).reshape(2, 3), jnp.arange(12.0).reshape(3, 4)
    gradients = [jax.grad(objective, argnums=(1, 2))(order, *arguments) for order in (BY_DATA, OF_PROGRAM)]
    for by_data, of_program in zip(*gradients, strict=True):
        np.testing.assert_array_equal(by_data, of_program)
