"""Run by test_scattered_product in a process of its own: the kernel on four simulated devices, as TPUs would run it.

Prints one JSON object: how far its sums and the gradients of a model are from those of `psum_scatter`, whether two
devices were found to reach for the same memory unordered, and the output of the simulation.
"""

import contextlib
import functools
import io
import itertools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array

from runtime.kernels import linear
from runtime.kernels.scattered_product_tpu import scattered_product
from runtime.model.config import LLAMA3_ROPE
from runtime.model.llama.config import LlamaConfig
from runtime.model.llama.model import Llama, LlamaParams
from runtime.model.placement import Sharded, parameter_specs
from runtime.model.rotary import inverse_frequencies
from runtime.parallel.mesh import TOKEN_AXES, make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.training import kernel_checks
from runtime.training.objective import computation_on

CONFIG = LlamaConfig(
    vocab_size=64, hidden_size=256, intermediate_size=512, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, head_dim=128, max_position_embeddings=128,
)  # fmt: skip
WATCHED = pltpu.InterpretParams(detect_races=True)
UNOPTIMISED = {"xla_backend_optimization_level": 0}
"""For programs that are large beside what they compute; the check before a phase has large products."""


def far(got: Any, expected: Any) -> float:
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def sums() -> float:
    """Compare the whole gradient from the parts of all devices with the product of all rows at once."""
    mesh, over = Mesh(np.array(jax.devices()), ("data_x",)), PartitionSpec("data_x")
    rng = np.random.default_rng(0)
    # More messages than slots.
    left, right = (rng.normal(size=(1024, size)).astype(np.float32) for size in (512, 768))
    kernel = functools.partial(scattered_product, axis="data_x", sum_dtype=jnp.dtype("float32"), interpret=WATCHED)
    mapped = jax.shard_map(kernel, mesh=mesh, in_specs=over, out_specs=over, check_vma=False)
    return far(jax.jit(mapped, compiler_options=UNOPTIMISED)(left, right), left.T @ right)


def gradients(mesh: Mesh, scatter_kernel: str) -> LlamaParams:
    computation = computation_on(
        mesh, CONFIG, attention_kernel="reference", compute_dtype="float32", remat="full", reduce_dtype="float32",
        scatter_kernel=scatter_kernel,
    )  # fmt: skip
    assert isinstance(computation.gather, Sharded)
    frequencies = inverse_frequencies(LLAMA3_ROPE, CONFIG.head_dim)

    def total(params: LlamaParams, tokens: Array) -> Array:
        segments = jnp.zeros_like(tokens)
        hidden = Llama(CONFIG).states(params, tokens, segments, frequencies, computation=computation).hidden
        return jnp.sum(jnp.sin(hidden * jnp.arange(hidden.shape[-1])))

    specs = parameter_specs(Llama(CONFIG))
    mapped = jax.shard_map(jax.grad(total), mesh=mesh, in_specs=(specs, TOKEN_AXES), out_specs=specs, check_vma=False)
    tokens = np.random.default_rng(0).integers(0, CONFIG.vocab_size, (4, 128), dtype=np.int32)
    return jax.jit(mapped, compiler_options=UNOPTIMISED)(Llama(CONFIG).init(jax.random.key(0)), tokens)


def main() -> None:
    # The simulation has no other way to tell of a semaphore that a kernel leaves up, than to print it.
    with contextlib.redirect_stdout(io.StringIO()) as output:
        report = findings()
    print(json.dumps(report | {"output": output.getvalue()}))


def findings() -> dict[str, Any]:
    report: dict[str, Any] = {"sums": sums(), "races": _races_found()}
    linear.scattered_product = functools.partial(scattered_product, interpret=pltpu.InterpretParams())
    mesh = make_mesh(MeshShape(data=4), torus=(2, 2, 1))
    expected = gradients(mesh, "xla").layers
    got = gradients(mesh, "pallas_tpu").layers
    report["gradients"] = {
        name: far(leaf, getattr(expected, name)) for name, leaf in vars(got).items() if leaf is not None
    }
    report["checks"] = {"as it is": check(mesh)}
    for name, wrong in WRONG.items():
        kernel_checks.scattered_product = wrong
        report["checks"][name] = check(mesh)
    return report


def check(mesh: Mesh) -> str:
    """Return the errors of the check before a phase."""
    try:
        kernel_checks.check_sums(mesh, "bfloat16", interpret=pltpu.InterpretParams())
    except RuntimeError as error:
        return str(error)
    return ""


_calls = itertools.count()


def _with_the_part_of_another_every_second_time(*sides: Array, axis: str, **rest: Any) -> Array:
    found = scattered_product(*sides, axis=axis, **rest)
    return jax.lax.ppermute(found, axis, [(0, 1), (1, 0)]) if next(_calls) % 2 else found


def _without_one_device(left: Array, right: Array, *, axis: str, **rest: Any) -> Array:
    return scattered_product(left * (jax.lax.axis_index(axis) > 0), right, axis=axis, **rest)


WRONG = {
    "the part of another, after a right one": _with_the_part_of_another_every_second_time,
    "without one device": _without_one_device,
}


def _races_found() -> bool:
    # There is no public name for it.
    from jax._src.pallas.mosaic.interpret import interpret_pallas_call

    assert interpret_pallas_call.races is not None
    return bool(interpret_pallas_call.races.races_found)


if __name__ == "__main__":
    main()
