"""FLOPs of a compiled program's products, read from its text: two for each pair of numbers that is multiplied.

Products are `dot`, `convolution` (the TPU compiler's form), calls of cuBLAS, and the kernels of attention, of the loss
and of scattered gradients; attention counts below the diagonal, as in a roofline. Nothing else counts, no other kernel
either: it hides no collective, and the sum falls short of the request's products.
"""

import math
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from runtime.cost.program import ArrayType, Instruction, Program
from runtime.kernels.names import RARELY, RATIOS, SCATTERED, SPLASH, TOKAMAX

ATTENTION = {SPLASH[0]: 2, SPLASH[1]: 5}
"""Products between queries and keys that a kernel forms."""
_RARELY = re.compile(rf'op_name="[^"]*\b{RARELY}\b')
_SCATTERED = re.compile(rf"{SCATTERED}(data_[xyz])")


class Products(NamedTuple):
    """Products of a program; devices may run different branches, of which `of_branches` chooses one."""

    program: Program
    of_branches: Callable[[Iterable[int]], int]
    """`min` or `max`."""

    def flops_within(self, computation: str) -> int:
        return sum(self.flops_of(computation, item) for item in self.program.computations[computation].values())

    def flops_of(self, computation: str, instruction: Instruction) -> int:
        """Return the FLOPs of one run of an instruction, with all that it calls; of a loop, of all its turns.

        Raises:
            ValueError: a product or a loop is written in a way that is not known.
        """
        match instruction.operation:
            case "while":
                return self.program.trips(instruction) * self.flops_within(instruction.computation("body"))
            case "conditional" if _RARELY.search(instruction.attributes):
                return 0
            case "conditional":
                return self.of_branches(self.flops_within(branch) for branch in instruction.branches)
            case "fusion" | "call":
                return sum(map(self.flops_within, instruction.called))
            case "dot" | "convolution" | "custom-call" as operation:
                pairs = {"dot": _dot, "convolution": _convolution, "custom-call": _called}[operation]
                taken = self.program.operands(computation, instruction)
                return 2 * pairs(instruction, [item.arrays[0] for item in taken if item.arrays])
        return 0


def scattered_axis(instruction: Instruction) -> str | None:
    """Return the mesh axis along which a kernel scatters the product that it forms; None for other instructions."""
    found = _SCATTERED.match(instruction.name) if instruction.operation == "custom-call" else None
    return None if found is None else found[1]


def _dot(instruction: Instruction, operands: list[ArrayType]) -> int:
    # cuBLAS calls them "lhs_contracting_dimensions":["1"]
    found = re.search(r'lhs_contracting_dim(?:ension)?s"?[=:][{\[]([^}\]]*)', instruction.attributes)
    if found is None:
        raise ValueError(f"{instruction.name}: the summed axes are not in {instruction.rest[:200]!r}.")
    summed = math.prod(operands[0].shape[int(axis)] for axis in re.findall(r"\d+", found[1]))
    return math.prod(instruction.arrays[0].shape) * summed


def _convolution(instruction: Instruction, operands: list[ArrayType]) -> int:
    """Count pairs without padding: the compiler splits heads apart by windows over mostly padding."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    if labels is None:
        raise ValueError(f"{instruction.name}: no dim_labels in {instruction.rest[:200]!r}.")
    values, weights, result = (
        dict(zip(label, array.shape, strict=True))
        for label, array in zip(labels.groups(), (*operands[:2], instruction.arrays[0]), strict=True)
    )
    window = re.search(r"window=\{([^}]*)\}", instruction.attributes)
    given = dict(item.split("=") for item in window[1].split()) if window else {}
    pairs = result["b"] * result["f"] * weights["i"]
    for axis in range(len(values) - 2):
        stride, spread, step = (
            int(given[name].split("x")[axis]) if name in given else 1 for name in ("stride", "lhs_dilate", "rhs_dilate")
        )
        before = int(given["pad"].split("x")[axis].split("_")[0]) if "pad" in given else 0
        places = (
            position * stride + tap * step - before
            for position in range(result[str(axis)])
            for tap in range(weights[str(axis)])
        )
        last = (values[str(axis)] - 1) * spread
        pairs *= sum(0 <= place <= last and place % spread == 0 for place in places)
    return pairs


def _of_tokamax(instruction: Instruction, operands: list[ArrayType]) -> int:
    """Count the pairs of a tokamax kernel: all have one name, and differ in what they read and write."""
    # What is kept of the softmax is in float32; a batch of one sequence has no axis.
    query, key, *others = [array.shape for array in operands if array.dtype in ("bf16", "f16")]
    rows, columns = query[-3], key[-3]
    up_to_the_diagonal = math.prod(query) * (2 * columns - rows) // 2
    if len(others) == 1:  # the values: forward
        return 2 * up_to_the_diagonal
    # Also the gradient of the output: of one result the queries', of two the keys' and the values'. Backward all pairs
    # of a part of the rows are computed.
    num_products = {1: 3, 2: 4}[len(instruction.arrays)]
    return num_products * (up_to_the_diagonal if rows == columns else math.prod(query) * columns)


def _called(instruction: Instruction, operands: list[ArrayType]) -> int:
    if "__cublas$" in instruction.attributes:
        return _dot(instruction, operands)
    scope = re.search(r'op_name="([^"]*)"', instruction.attributes)
    name = f"{instruction.name} {scope[1] if scope else ''}"
    if TOKAMAX in name and "mosaic_gpu" in instruction.attributes:
        return _of_tokamax(instruction, operands)
    for kernel, num_products in ATTENTION.items():
        if kernel in name:
            # Masks are of integers; a batch of one sequence has no axis.
            query, key = [shape for dtype, shape, _ in operands if "f" in dtype and len(shape) >= 3][:2]
            # Queries are the last of the rows that the keys are of.
            return num_products * math.prod(query) * (2 * key[-2] - query[-2]) // 2
    shapes = [array.shape for array in operands]
    if scattered_axis(instruction) is not None:
        left, right = (shape for shape in shapes if len(shape) == 2)
        return math.prod(left) * right[1]
    if RATIOS in name:  # of the loss: hidden states and the head
        return math.prod(shapes[0]) * shapes[1][1]
    return 0
