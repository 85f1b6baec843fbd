"""What a compiled program for a GPU must not contain, read off its text: operations that take many times their share.

XLA compiled to be deterministic tries nothing out. It then gives products that it may give to Triton the tiles of its
first guess, and makes a sort of all numbers of a scatter whose places may coincide.
"""

import math
import re
from collections import Counter

from runtime.cost.program import Program

_TRITON_PRODUCT = re.compile(r'"kind":"__triton_(?:nested_)?gemm[a-z_]*"')
LARGE_SORT = 2**20
"""Numbers; the tokens of a batch are sorted, which is quick."""


def slow_operations(text: str) -> tuple[str, ...]:
    """A sentence for each kind; none is what a good program has."""
    found: Counter[str] = Counter()
    for computation in Program.read(text).computations.values():
        for instruction in computation.values():
            if _TRITON_PRODUCT.search(instruction.attributes) is not None:
                found["a product by Triton in tiles that nobody tuned: cuBLAS would choose by shape"] += 1
            elif instruction.operation == "sort":
                size = math.prod(instruction.arrays[0].shape)
                if size >= LARGE_SORT:
                    found[f"a sort of {size:,} numbers: of a scatter whose places may coincide"] += 1
    return tuple(sentence if count == 1 else f"{sentence} ({count} times)" for sentence, count in found.items())
