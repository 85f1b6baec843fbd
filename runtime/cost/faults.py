"""Faults of a compiled step: collectives that move more bytes than necessary.

A compiler is free to replace a reduce-scatter by an all-reduce and a slice, to gather a parameter before it is
cast, and to cast a gradient after it is summed; each is seen only in the compiled program.
"""

import math

from runtime.cost.collectives import Collective
from runtime.cost.request import Compiled, CompileRequest
from runtime.kernels.block_sizes import padded_to_tiles

SMALL = 2**20
"""Elements below which a collective is no fault: norms and scalars."""
SUMS = ("reduce-scatter", "all-reduce", "collective-permute")
"""Collectives that sum gradients; permutes do where a reduce-scatter became a ring of parts of the product before
it."""
FEWEST_ROWS = 8
"""Rows that a reduce-scatter leaves a chip; with fewer, the TPU's compiler makes an all-reduce, which is small."""
HLO_NAMES = {"bfloat16": "bf16", "float32": "f32"}


def faults(request: CompileRequest, compiled: Compiled) -> list[str]:
    """Return a sentence for each fault; a good program has none."""
    model = request.model
    widths = (*(size // request.model_parallel for size in model.layer_widths), model.vocab_size)
    whole = {model.hidden_size * size for width in widths for size in (width, padded_to_tiles(width))}
    wanted = HLO_NAMES[request.reduce_dtype]
    found: set[str] = set()
    for item in compiled.collectives:
        size, shape = math.prod(item.shape), "x".join(map(str, item.shape))
        if size < SMALL:
            continue
        where = f"{item.dtype} [{shape}] over {'+'.join(item.axes)}"
        if item.kind == "all-reduce" and "replica" not in item.axes and (size in whole or _is_scattered_part(item)):
            what = "whole" if size in whole else "part of a"
            found.add(f"an all-reduce of a {what} gradient, {where}: a reduce-scatter would send half as much")
        if item.kind == "all-gather" and item.dtype == "f32" and request.compute_dtype == "bfloat16":
            found.add(f"a parameter gathered before it is cast, {where}: bfloat16 would send half as much")
        # Over the model and context axes, partial sums of activations and of keys go in the compute dtype.
        is_of_gradients = item.kind in SUMS and not {"model", "context"} & set(item.axes)
        if request.step == "train" and is_of_gradients and item.dtype != wanted:
            found.add(f"a gradient summed in another dtype than reduce_dtype={request.reduce_dtype!r}, {where}")
    return sorted(found)


def _is_scattered_part(item: Collective) -> bool:
    """Return whether it is over a data axis, and of a part of a gradient that could be scattered."""
    is_of_data = any(axis.startswith("data") for axis in item.axes)
    return is_of_data and math.prod(item.shape[:-1]) >= FEWEST_ROWS * item.num_devices
