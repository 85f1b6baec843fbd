"""Faults of a compiled step: collectives that move more than they need to, and a GPU's slow operations.

A compiler is free to replace a reduce-scatter by an all-reduce and a slice, to gather a parameter before it is
cast, and to cast a gradient after it is summed; each is seen only in the compiled program.

On a GPU a deterministic XLA tries no variants. It then gives products that Triton may form the tiles of its first
guess, and sorts all numbers of a scatter whose places may coincide. With unrolled layers, it puts their gradients
together again in each kernel that reads them.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable

from runtime.cost.collectives import Collective
from runtime.cost.program import Instruction, Program
from runtime.cost.request import Compiled, Request
from runtime.kernels.block_sizes import padded_to_tiles

SMALL = 2**20
"""Elements below which a collective is no fault: norms and scalars."""
SUMS = ("reduce-scatter", "all-reduce", "collective-permute")
"""Collectives that sum gradients; permutes do where a reduce-scatter became a ring of parts of the product before
it."""
FEWEST_ROWS = 8
"""Rows that a reduce-scatter leaves a chip; with fewer, the TPU's compiler makes an all-reduce, which is small."""
HLO_NAMES = {"bfloat16": "bf16", "float32": "f32"}
_TRITON_PRODUCT = re.compile(r'"kind":"__triton_(?:nested_)?gemm[a-z_]*"')
LARGE_SORT = 2**20
"""Numbers above which a sort is slow; sorting the tokens of a batch is quick."""
MANY_PARTS = 8
"""Arrays put together above which it is slow; queries, keys and values are fewer."""


def faults(request: Request, compiled: Compiled) -> list[str]:
    """Return a sentence for each fault; a good program has none."""
    model = request.model
    widths = (*(size // request.model_parallel for size in model.layer_widths), model.vocab_size)
    whole = {model.hidden_size * size for width in widths for size in (width, padded_to_tiles(width))}
    wanted = HLO_NAMES[request.reduce_dtype]
    found = list(compiled.slow_operations)
    for item in compiled.collectives:
        size, shape = math.prod(item.shape), "x".join(map(str, item.shape))
        if size < SMALL:
            continue
        where = f"{item.dtype} [{shape}] over {'+'.join(item.axes)}"
        if item.kind == "all-reduce" and "replica" not in item.axes and (size in whole or _is_scattered_part(item)):
            what = "whole" if size in whole else "part of a"
            found.append(f"an all-reduce of a {what} gradient, {where}: a reduce-scatter would send half as much")
        if item.kind == "all-gather" and item.dtype == "f32" and request.compute_dtype == "bfloat16":
            found.append(f"a parameter gathered before it is cast, {where}: bfloat16 would send half as much")
        # Over the model and context axes, partial sums of activations and of keys go in the compute dtype.
        is_of_gradients = item.kind in SUMS and not {"model", "context"} & set(item.axes)
        if request.step == "train" and is_of_gradients and item.dtype != wanted:
            found.append(f"a gradient summed in another dtype than reduce_dtype={request.reduce_dtype!r}, {where}")
    return sorted(set(found))


def slow_operations(text: str) -> tuple[str, ...]:
    """Return a sentence for each kind of slow operation in the text of a GPU's program; a good one has none."""
    found: Counter[str] = Counter()
    program = Program.read(text)
    kernels = {
        name
        for computation in program.computations.values()
        for instruction in computation.values()
        if instruction.operation == "fusion"
        for name in instruction.called
    }
    for name, computation in program.computations.items():
        if name in kernels and _sums_many_parts(computation.values()):
            found["a sum over arrays that it puts together number by number: `materialized` would, once"] += 1
        for instruction in computation.values():
            if _TRITON_PRODUCT.search(instruction.attributes) is not None:
                found["a product by Triton in untuned tiles: cuBLAS would choose by shape"] += 1
            elif instruction.operation == "sort":
                size = math.prod(instruction.arrays[0].shape)
                if size >= LARGE_SORT:
                    found[f"a sort of {size:,} numbers: of a scatter whose places may coincide"] += 1
    return tuple(sentence if count == 1 else f"{sentence} ({count} times)" for sentence, count in found.items())


def _is_scattered_part(item: Collective) -> bool:
    """Return whether it is over a data axis, and of a part of a gradient that could be scattered."""
    is_of_data = any(axis.startswith("data") for axis in item.axes)
    return is_of_data and math.prod(item.shape[:-1]) >= FEWEST_ROWS * item.num_devices


def _sums_many_parts(fused: Iterable[Instruction]) -> bool:
    """Return whether one kernel puts many large arrays together and sums values computed from them."""
    operations = list(fused)
    is_joined = any(
        item.operation == "concatenate"
        and len(item.operands) >= MANY_PARTS
        and math.prod(item.arrays[0].shape) >= LARGE_SORT
        for item in operations
    )
    return is_joined and any(item.operation == "reduce" for item in operations)
