"""What a compiled program for a GPU must not contain, read off its text: operations that take many times their share.

XLA compiled to be deterministic tries nothing out. It then gives products that it may give to Triton the tiles of its
first guess, and makes a sort of all numbers of a scatter whose places may coincide.
"""

import math
import re
from collections import Counter

_TRITON_PRODUCT = re.compile(r'"kind":"__triton_(?:nested_)?gemm[a-z_]*"')
_SORT = re.compile(r"= \(?[a-z]+[0-9]+\[([0-9,]+)\]\S* ?.*? sort\(")
LARGE_SORT = 2**20
"""Numbers; the tokens of a batch are sorted, which is quick."""


def slow_operations(text: str) -> tuple[str, ...]:
    """A sentence for each kind; none is what a good program has."""
    found: Counter[str] = Counter()
    for line in text.splitlines():
        if _TRITON_PRODUCT.search(line) is not None:
            found["a product by Triton in tiles that nobody tuned: cuBLAS would choose by shape"] += 1
        elif (sort := _SORT.search(line)) is not None:
            size = math.prod(int(number) for number in sort[1].split(","))
            if size >= LARGE_SORT:
                found[f"a sort of {size:,} numbers: of a scatter whose places may coincide"] += 1
    return tuple(sentence if count == 1 else f"{sentence} ({count} times)" for sentence, count in found.items())
