"""Programs of an evaluation for devices that are not here: shapes and places of arguments, without values."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from runtime.evaluation.device_memory import QUERIES_PER_BATCH
from runtime.evaluation.generation import advance
from runtime.evaluation.packing import prompt_row_length
from runtime.evaluation.placed_model import BY_DEVICE, WHOLE, ModelProgram, program_of
from runtime.evaluation.sampling import DRAW_DTYPES, Draws
from runtime.evaluation.scoring import hidden_states, log_likelihoods
from runtime.model.cache import KeyValueCache, PackedRows, empty_cache, filled
from runtime.model.config import ModelConfig
from runtime.model.model import Params, abstract_params
from runtime.model.placement import parameter_specs, shardings
from runtime.parallel.mesh import BATCH_AXES, copy_size


def described_program(
    step: str, config: ModelConfig, mesh: Mesh, *, rows: int, length: int, compute_dtype: str, stored_dtype: str
) -> tuple[Any, tuple[Any, ...]]:
    """Return a program and its arguments.

    Args:
        step: "score" runs rows of packed sequences, and the head at as many positions as `Scorer` asks for at once;
            "prefill" a row of prompts on each device, beside the cache; "decode" one more token of each slot.
        config: the model's shape.
        mesh: the devices.
        rows: rows, or slots, on all devices.
        length: tokens of a row, or capacity of a slot.
        compute_dtype: dtype of activations and cache.
        stored_dtype: dtype of the parameters.
    """
    run = ModelProgram.on(mesh, config, compute_dtype)

    def array(sharding: NamedSharding, dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    everywhere, by_device = NamedSharding(mesh, WHOLE), NamedSharding(mesh, BY_DEVICE)
    abstract = abstract_params(run.model)
    places = jax.tree.map(lambda _: everywhere, abstract)
    if copy_size(mesh) > 1:
        places = shardings(parameter_specs(run.model), mesh)
    params = jax.tree.map(lambda leaf, place: array(place, stored_dtype, *leaf.shape), abstract, places)
    given = params, array(everywhere, np.float32, config.head_dim // 2)

    def packed(rows: int, length: int) -> PackedRows:
        return PackedRows(*(array(by_device, np.int32, rows, length) for _ in PackedRows._fields))

    if step == "score":
        queries = array(by_device, np.int32, QUERIES_PER_BATCH * mesh.size, 3)
        program = program_of(_scored, run, mesh, (BY_DEVICE, BY_DEVICE), (BY_DEVICE, BY_DEVICE))
        return program, (*given, packed(rows, length), queries)
    slots = PartitionSpec(None, BATCH_AXES)
    shapes = jax.eval_shape(
        lambda: empty_cache(config, slots=rows, capacity=length, dtype=np.dtype(compute_dtype), written_out=False)
    )
    cache = jax.tree.map(lambda leaf: array(NamedSharding(mesh, slots), leaf.dtype, *leaf.shape), shapes)
    if step == "prefill":
        program = program_of(_prefill_beside, run, mesh, (slots, BY_DEVICE), slots, donated=(0,))
        return program, (*given, cache, packed(mesh.size, prompt_row_length(length, length)))
    draws = Draws(*(array(by_device, dtype, rows) for dtype in DRAW_DTYPES))
    specs, out = (slots, *(BY_DEVICE,) * 3), (BY_DEVICE, slots)
    program = program_of(advance, run, mesh, specs, out, donated=(0,), static=(("samples", True),))
    numbers = array(by_device, np.int32, rows)
    return program, (*given, cache, numbers, numbers, draws)


def _scored(run: ModelProgram, params: Params, frequencies: Any, rows: PackedRows, queries: Any) -> tuple[Any, Any]:
    """Run the two programs of `Scorer` as one: alone, the first would leave the head out of its arguments."""
    return log_likelihoods(run, params, frequencies, hidden_states(run, params, frequencies, rows), queries)


def _prefill_beside(
    run: ModelProgram, params: Params, frequencies: Any, cache: KeyValueCache, rows: PackedRows
) -> KeyValueCache:
    """Put one prompt of the rows into the cache, which is there while they run."""
    kept = run.model.prefill(params, rows, frequencies, computation=run.computation)[1]
    first = jnp.int32(0)
    return filled(cache, kept, first, first, jnp.bool_(True))
