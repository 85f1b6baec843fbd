"""Slow operations of a compiled program for a GPU, read from its text.

A deterministic XLA tries no variants. It then gives products that Triton may form the tiles of its first guess, and
sorts all numbers of a scatter whose places may coincide. With unrolled layers, it puts their gradients together again
in each kernel that reads them.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable

from runtime.cost.program import Instruction, Program

_TRITON_PRODUCT = re.compile(r'"kind":"__triton_(?:nested_)?gemm[a-z_]*"')
LARGE_SORT = 2**20
"""Numbers above which a sort is slow; sorting the tokens of a batch is quick."""
MANY_PARTS = 8
"""Arrays put together above which it is slow; queries, keys and values are fewer."""


def slow_operations(text: str) -> tuple[str, ...]:
    """Return a sentence for each kind; a good program has none."""
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
