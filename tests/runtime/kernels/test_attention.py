"""Each attention kernel passes one battery: values and gradients of the definition, documents apart, heads grouped."""

import contextlib
import functools
import importlib.metadata
import tomllib
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr, Var

from runtime.kernels import attention, attention_chunked, attention_tokamax, attention_tpu
from runtime.kernels.block_sizes import SplashBlocks, splash_blocks
from tests.catalogue import expect_error


def tokamax_without_a_gpu(*arrays: jax.Array, first_row: int = 0) -> jax.Array:
    """Apply the kernel's mask through tokamax's own definition, which mixes dtypes and ranks."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return attention_tokamax.tokamax(*arrays, first_row=first_row, implementation="xla")


KERNELS: dict[str, Callable] = {
    "reference": attention.reference,
    "chunked": attention_chunked.chunked,
    "splash": functools.partial(attention_tpu.splash, interpret=True),
    "tokamax": tokamax_without_a_gpu,
}


def compiled(function: Callable) -> Callable:
    """Trace a new function each time, so that no trace with other block sizes is reused.

    With every rounding that is written: XLA may leave one out that another cast follows, and hide it from a test here.
    """
    return jax.jit(lambda *parts: function(*parts), compiler_options={"xla_allow_excess_precision": False})


def promotion(name: str) -> contextlib.AbstractContextManager[None]:
    """Allow dtype promotion in a call: tokamax's own definition is traced again while it is lowered."""
    return jax.numpy_dtype_promotion("standard" if name == "tokamax" else "strict")


def inputs(sequence: int, head_dim: int) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(0)
    query = (rng.normal(size=(2, sequence, 4, head_dim)) * head_dim**-0.5).astype(np.float32)
    key, value = (rng.normal(size=(2, sequence, 2, head_dim)).astype(np.float32) for _ in range(2))
    segment_ids = np.sort(rng.integers(0, 3, (2, sequence), dtype=np.int32), axis=1)
    return tuple(jnp.asarray(part) for part in (query, key, value, segment_ids))


def definition(*arrays: jax.Array | np.ndarray) -> np.ndarray:
    """Float64, one query at a time."""
    query, key, value = (np.asarray(part, np.float64) for part in arrays[:3])
    segment_ids = np.asarray(arrays[3])
    result = np.zeros_like(query)
    for b, row, head in np.ndindex(query.shape[:3]):
        visible = [t for t in range(row + 1) if segment_ids[b, t] == segment_ids[b, row]]
        kv_head = head // (query.shape[2] // key.shape[2])
        scores = key[b, visible, kv_head] @ query[b, row, head]
        shares = np.exp(scores - scores.max())
        result[b, row, head] = shares / shares.sum() @ value[b, visible, kv_head]
    return result


@pytest.mark.parametrize("name", KERNELS)
def test_values_and_gradients_are_those_of_the_definition(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_chunked, "MOST_QUERY_BLOCK", 48)  # several blocks, the last one short
    query, key, value, segment_ids = inputs(sequence=128, head_dim=64)
    got = compiled(KERNELS[name])(query, key, value, segment_ids)
    np.testing.assert_allclose(got, definition(query, key, value, segment_ids), atol=2e-5)

    def gradients(kernel: Callable) -> tuple[jax.Array, ...]:
        total = jax.grad(lambda *parts: jnp.sum(jnp.sin(kernel(*parts, segment_ids))), argnums=(0, 1, 2))
        return compiled(total)(query, key, value)

    for ours, expected in zip(gradients(KERNELS[name]), gradients(attention.reference), strict=True):
        np.testing.assert_allclose(ours, expected, atol=5e-5)


@pytest.mark.parametrize("name", KERNELS)
def test_a_stretch_of_a_row_gives_those_rows_of_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_chunked, "MOST_QUERY_BLOCK", 48)
    query, key, value, segment_ids = inputs(sequence=384, head_dim=64)
    kernel = functools.partial(KERNELS[name], first_row=128)

    def of_whole(rows: jax.Array, *others: jax.Array) -> jax.Array:
        return attention.reference(query.at[:, 128:256].set(rows), *others)[:, 128:256]

    def gradients(attend: Callable) -> tuple[jax.Array, ...]:
        total = jax.grad(lambda *parts: jnp.sum(jnp.sin(attend(*parts, segment_ids))), argnums=(0, 1, 2))
        return compiled(total)(rows, key, value)

    rows = query[:, 128:256]
    got, expected = (compiled(attend)(rows, key, value, segment_ids) for attend in (kernel, of_whole))
    np.testing.assert_allclose(got, expected, atol=2e-5)
    for ours, expected in zip(gradients(kernel), gradients(of_whole), strict=True):
        np.testing.assert_allclose(ours, expected, atol=5e-5)


def test_the_gradients_of_the_definition_agree_with_finite_differences() -> None:
    query, key, value, segment_ids = inputs(sequence=12, head_dim=4)
    direction = [np.random.default_rng(1).normal(size=part.shape) for part in (query, key, value)]

    def total(step: float) -> float:
        moved = [
            np.asarray(part, np.float64) + step * by for part, by in zip((query, key, value), direction, strict=True)
        ]
        return float(np.sin(definition(*moved, segment_ids)).sum())

    slope = (total(1e-5) - total(-1e-5)) / 2e-5
    total_of = jax.grad(lambda *parts: jnp.sum(jnp.sin(attention.reference(*parts, segment_ids))), argnums=(0, 1, 2))
    gradients = compiled(total_of)(query, key, value)
    ours = sum(float(np.vdot(gradient, by)) for gradient, by in zip(gradients, direction, strict=True))
    assert ours == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("name", KERNELS)
def test_bfloat16_in_gives_bfloat16_out_and_rounds_no_score(name: str) -> None:
    """Scores of some tens: rounded, they are wrong by a tenth, and so is each share."""
    query, key, value, segment_ids = inputs(sequence=128, head_dim=64)
    narrow = [jnp.asarray(part, jnp.bfloat16) for part in (8 * query, key, value)]
    with promotion(name):
        got = compiled(KERNELS[name])(*narrow, segment_ids)
    assert got.dtype == jnp.bfloat16
    expected = definition(*(np.asarray(part, np.float32) for part in narrow), segment_ids)
    assert np.linalg.norm(np.asarray(got, np.float64) - expected) < 0.004 * np.linalg.norm(expected)


def narrow_steps(program: Jaxpr) -> set[str]:
    """Return the exponentials, logarithms and reductions that take or give values rounded to bfloat16."""
    found, rounded = set(), set()
    for equation in program.eqns:
        name, (result, *_) = equation.primitive.name, equation.outvars
        taken = [value for value in equation.invars if isinstance(value, Var)]
        is_narrow = any(value in rounded or value.aval.dtype == jnp.bfloat16 for value in taken)
        if name == "convert_element_type" and is_narrow:
            rounded.add(result)
        if name in ("exp", "log", "reduce_sum", "reduce_max") and (is_narrow or result.aval.dtype == jnp.bfloat16):
            found.add(name)
        for part in jax.tree.leaves(list(equation.params.values())):
            if isinstance(part, Jaxpr | ClosedJaxpr):
                found |= narrow_steps(getattr(part, "jaxpr", part))
    return found


@pytest.mark.parametrize("name", ["reference", "chunked"])
def test_every_step_of_the_softmax_is_float32_in_both_passes(name: str) -> None:
    *parts, segment_ids = inputs(sequence=128, head_dim=64)

    def total(*parts: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(KERNELS[name](*parts, segment_ids).astype(jnp.float32)))

    program = jax.make_jaxpr(jax.grad(total, argnums=(0, 1, 2)))(*(part.astype(jnp.bfloat16) for part in parts))
    assert "exp" in str(program) and narrow_steps(program.jaxpr) == set()


@pytest.mark.parametrize("name", KERNELS)
def test_gradients_in_bfloat16_are_near_those_in_float32(name: str) -> None:
    *parts, segment_ids = inputs(sequence=128, head_dim=64)
    narrow = [jnp.asarray(part, jnp.bfloat16) for part in parts]

    def gradients(kernel: Callable, *parts: jax.Array) -> tuple[jax.Array, ...]:
        def total(*parts: jax.Array) -> jax.Array:
            return jnp.sum(jnp.sin(kernel(*parts, segment_ids).astype(jnp.float32)))

        with jax.numpy_dtype_promotion("standard"):  # JAX's own implementation promotes dtypes inside
            return compiled(jax.grad(total, argnums=(0, 1, 2)))(*parts)

    wide = gradients(attention.reference, *(part.astype(jnp.float32) for part in narrow))
    for ours, expected in zip(gradients(KERNELS[name], *narrow), wide, strict=True):
        assert ours.dtype == jnp.bfloat16
        difference = np.asarray(ours, np.float32) - np.asarray(expected)
        assert np.linalg.norm(difference) < 0.01 * np.linalg.norm(expected)


@pytest.mark.parametrize("name", KERNELS)
def test_packed_documents_are_each_as_if_alone(name: str) -> None:
    query, key, value, _ = inputs(sequence=256, head_dim=64)
    segment_ids = jnp.repeat(jnp.asarray([[0, 1], [7, 3]], jnp.int32), 128, axis=1)
    kernel = compiled(KERNELS[name])
    packed = kernel(query, key, value, segment_ids)
    for begin in (0, 128):
        own = slice(begin, begin + 128)
        alone = kernel(query[:, own], key[:, own], value[:, own], segment_ids[:, own])
        np.testing.assert_allclose(packed[:, own], alone, atol=2e-5)


def test_tokamax_refuses_numbers_and_rows_that_it_does_not_take() -> None:
    with expect_error(ValueError):
        attention_tokamax.tokamax(*inputs(sequence=128, head_dim=64))
    query, key, value, segment_ids = inputs(sequence=192, head_dim=64)
    narrow = [part.astype(jnp.bfloat16) for part in (query, key, value)]
    with expect_error(ValueError):
        attention_tokamax.tokamax(*narrow, segment_ids)
    with expect_error(ValueError):
        attention_tokamax.tokamax(narrow[0][:, 64:], *narrow[1:], segment_ids, first_row=64)


@pytest.mark.parametrize(
    "versions",
    [
        {"jax": "0.10.2"},
        {"jax": "0.10.2", "tokamax": "0.0.17"},
        {"jax": "0.12.0", "tokamax": "0.0.12"},
    ],
)
def test_tokamax_is_refused_for_other_versions_with_what_to_do(
    versions: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(attention_tokamax.importlib.metadata, "version", installed)
    narrow = [part.astype(jnp.bfloat16) for part in inputs(sequence=128, head_dim=64)[:3]]
    with expect_error(ValueError):
        attention_tokamax.tokamax(*narrow, jnp.ones((2, 128), jnp.int32))


@pytest.mark.parametrize("jax", ["0.10.2", "0.11.2", "0.12.0.1"])
def test_tokamax_is_taken_in_the_version_for_its_jax(jax: str, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"jax": jax, "tokamax": attention_tokamax.version_for(jax)}
    monkeypatch.setattr(attention_tokamax.importlib.metadata, "version", versions.__getitem__)
    assert attention_tokamax.missing() is None


def test_tokamax_is_pinned_to_one_version_for_each_jax() -> None:
    root = Path(__file__).resolve().parents[3]
    first, later = f"tokamax=={attention_tokamax.OF_JAX_0_10}", f"tokamax=={attention_tokamax.OF_LATER_JAX}"
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pins = [f"{first}; python_version < '3.12'", f"{later}; python_version >= '3.12'"]
    assert extras["tokamax"] == pins
    assert set(pins) <= set(extras["test"])
    lock = (root / "requirements-test.lock").read_text().replace(" \\", "").splitlines()
    assert f"{first} ; python_full_version < '3.12'" in lock
    assert f"{later} ; python_full_version >= '3.12'" in lock


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_splash_takes_the_blocks_that_a_plan_names_for_its_dtype(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def kernel(num_heads: int, num_rows: int, first_row: int, blocks: SplashBlocks, interpret: bool) -> Callable:
        taken.append(blocks)
        return lambda query, key, value, segment_ids: query

    monkeypatch.setattr(attention_tpu, "_kernel", kernel)
    query, key = (jax.ShapeDtypeStruct((1, 4096, heads, 128), dtype) for heads in (4, 2))
    jax.eval_shape(attention_tpu.splash, query, key, key, jax.ShapeDtypeStruct((1, 4096), "int32"))
    sized = [splash_blocks("", head_dim=128, num_rows=4096, item_bytes=size) for size in (2, 4)]
    assert sized[0] != sized[1]  # blocks of bfloat16 in float32 do not fit in a v4's vector memory
    assert taken == [sized[dtype == "float32"]]


def test_splash_refuses_a_sequence_that_is_not_whole_blocks() -> None:
    with expect_error(ValueError):
        attention_tpu.splash(*inputs(sequence=100, head_dim=64))


def test_an_unknown_kernel_is_an_error_that_lists_the_known_ones() -> None:
    with expect_error(ValueError):
        attention.attend(*inputs(sequence=8, head_dim=4), kernel="flash")
