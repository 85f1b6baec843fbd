"""Float32 computation multiplies in float32: every product of a step, forward, backward and in its kernels."""

import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from runtime.cost.compile_program import arguments_of
from runtime.cost.request import CompileRequest
from runtime.evaluation.generation import advance
from runtime.evaluation.placed_model import BY_DEVICE, PlacedModel
from runtime.evaluation.sampling import Draws
from runtime.evaluation.scoring import Scorer
from runtime.model.cache import PackedRows, empty_cache
from runtime.model.config import LLAMA3_ROPE
from runtime.model.llama.config import LlamaConfig
from runtime.model.llama.model import Llama
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.training.eval_step import eval_program
from runtime.training.train_step import ProgramOptions, train_program

MODEL = LlamaConfig(
    vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=64, max_position_embeddings=256,
)  # fmt: skip
KERNELS = {  # of attention and of the loss, and whose they are
    "cpu": ("chunked", "chunked"),
    "gpu": ("chunked", "chunked_wide"),
    "tpu": ("splash", "chunked_wide"),
    "plain": ("reference", "reference"),
}
HIGHEST = (lax.Precision.HIGHEST, lax.Precision.HIGHEST)


def traced(step: str, compute_dtype: str, kernels: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """Return the program of a training or evaluation step on two devices."""
    for module in ("train_step", "eval_step"):
        monkeypatch.setattr(f"runtime.training.{module}.platform", lambda mesh: kernels)
    attention, loss = KERNELS[kernels]
    mesh = make_mesh(MeshShape(data=2), jax.devices()[:2])
    request = CompileRequest(step, "none", 1, MODEL, 256, 4, 0, compute_dtype, attention, loss)
    asked = {"attention_kernel": attention, "loss_kernel": loss, "compute_dtype": compute_dtype}
    if step == "eval":
        return eval_program(MODEL, mesh, **asked).trace(*arguments_of(request, mesh))
    how = ProgramOptions(**asked, **{"remat": "full", "num_microbatches": 2} | options)
    return train_program(MODEL, mesh, how, donate=True).trace(*arguments_of(request, mesh))


def products(program: Any) -> Iterator[JaxprEqn]:
    """Yield all products of a traced program, also within loops and kernels."""
    if isinstance(program, tuple | list):
        for part in program:
            yield from products(part)
    elif isinstance(program, Jaxpr | ClosedJaxpr):  # which are one class in JAX 0.12
        for equation in program.eqns:
            if equation.primitive.name == "dot_general":
                yield equation
            yield from products(list(equation.params.values()))


def precisions(step: str, compute_dtype: str, kernels: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list:
    program = traced(step, compute_dtype, kernels, monkeypatch, **options)
    return [equation.params["precision"] for equation in products(program.jaxpr)]


@pytest.mark.parametrize("kernels", KERNELS)
def test_every_product_of_a_step_in_float32_is_float32_s_also_backward_and_in_kernels(
    kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated = precisions("eval", "float32", kernels, monkeypatch)
    trained = precisions("train", "float32", kernels, monkeypatch)
    assert len(evaluated) >= 10  # seven of a layer, two of attention, the head
    assert len(trained) > 2 * len(evaluated)
    assert {*evaluated, *trained} == {HIGHEST}


@pytest.mark.parametrize("options", [{"remat": "none"}, {"remat": "dots", "num_microbatches": 1}])
def test_recomputed_products_are_float32_too(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(precisions("train", "float32", "cpu", monkeypatch, **options)) == {HIGHEST}


@pytest.mark.parametrize(("step", "kernels"), [("eval", "cpu"), ("train", "gpu"), ("train", "tpu")])
def test_a_bfloat16_step_requests_no_precision_under_any_setting_of_jax(
    step: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with jax.default_matmul_precision("highest"):
        reported = precisions(step, "bfloat16", kernels, monkeypatch)
    assert set(reported) == {None}
    assert reported == precisions(step, "bfloat16", kernels, monkeypatch)


@pytest.mark.parametrize(("compute_dtype", "precision"), [("float32", "HIGHEST"), ("bfloat16", "DEFAULT")])
def test_the_lowered_program_has_the_precision_of_each_product(
    compute_dtype: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = traced("train", compute_dtype, "cpu", monkeypatch).lower().as_text()
    asked = re.findall(r"stablehlo\.dot_general.*precision = \[(\w+), (\w+)\]", text)
    assert len(asked) == text.count("stablehlo.dot_general") > 0
    assert set(asked) == {(precision, precision)}


@pytest.mark.parametrize(("compute_dtype", "precision"), [("float32", HIGHEST), ("bfloat16", None)])
def test_scores_are_computed_by_the_same_rule(compute_dtype: str, precision: Any) -> None:
    params = Llama(MODEL).init(jax.random.key(0))
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    placed = PlacedModel(params, MODEL, LLAMA3_ROPE, compute_dtype=jnp.dtype(compute_dtype), mesh=mesh)
    scorer = Scorer(placed)
    decoding: Any = placed.program(advance, (BY_DEVICE,) * 4, BY_DEVICE, samples=True)
    cache = empty_cache(MODEL, slots=2, capacity=128, dtype=jnp.dtype(compute_dtype), written_out=True)
    tokens, hidden, index = jnp.zeros((1, 256), int), jnp.zeros((1, 256, 128), compute_dtype), jnp.zeros(2, int)
    shares, ids = jnp.ones(2), jnp.zeros(2, jnp.uint32)
    for program, arguments in (
        (scorer._hidden_states, (PackedRows(*(tokens,) * 5),)),
        (scorer._log_likelihoods, (hidden, jnp.zeros((4, 3), int))),
        (decoding, (cache, index, index, Draws(shares, shares, index, ids, ids, index))),
    ):
        traced = program.func.trace(*program.args, *arguments)
        asked = {equation.params["precision"] for equation in products(traced.jaxpr)}
        assert asked == {precision}
