"""Block sizes of the Pallas kernels: a table by kernel, generation, and head or hidden size, each row with a why.

A block has to be so large that its products take longer than reading it (a chip's FLOPs a byte of memory bandwidth: 224
on v4, 240 on v5e, 166 on v5p, 560 on v6e), and so small that all that a grid step holds fits in vector memory, with a
second copy of what is fetched for the next step. The rows are what the compiler accepted; nothing was timed.
"""

from typing import NamedTuple

MIB = 2**20


class SplashBlocks(NamedTuple):
    """Of the attention kernel: queries and keys of a grid step, and the keys that are multiplied at a time."""

    query: int
    key: int
    key_compute: int
    query_backward: int
    key_backward: int
    key_backward_compute: int


class FusedBlocks(NamedTuple):
    """Of the loss kernel's three passes: tokens x columns of the vocabulary in a grid step."""

    forward: tuple[int, int]
    hidden_gradient: tuple[int, int]
    head_gradient: tuple[int, int]
    vmem_limit_in_bytes: int
    """What the kernel asks the compiler for."""


class TritonBlocks(NamedTuple):
    """Of the GPU attention kernel, in rows of queries and of keys; and how many warps share a block."""

    query: int
    key: int
    query_backward: int
    """That a block of keys takes at a time; their gradients are kept."""
    backward: int
    """Keys of such a block, and both sides of what the gradient of the queries is computed from."""
    num_warps: int


class MosaicBlocks(NamedTuple):
    """Of tokamax's attention kernel, in rows; a program takes two blocks of queries, backward also two of keys."""

    query: int
    key: int
    num_stages: int
    """Blocks of keys that are fetched ahead."""
    query_backward: int
    key_backward: int
    num_stages_backward: int


class SplashRow(NamedTuple):
    blocks: SplashBlocks
    reason: str


class FusedRow(NamedTuple):
    blocks: FusedBlocks
    reason: str


class TritonRow(NamedTuple):
    blocks: TritonBlocks
    reason: str


class MosaicRow(NamedTuple):
    blocks: MosaicBlocks
    reason: str


_BLOCKS_OF_1024 = SplashBlocks(1024, 1024, 512, 1024, 1024, 1024)
_ALSO = "; blocks of 2,048 compute more above the diagonal, or do not fit"
SPLASH = {
    ("v4", 128): SplashRow(_BLOCKS_OF_1024, "fwd 96k, bwd 138k bundles (512: 116k, 153k); 11.8 of 16 MiB" + _ALSO),
    ("v5e", 128): SplashRow(_BLOCKS_OF_1024, "fwd 61k, bwd 102k bundles (512: 77k, 110k); 8.1 of 16 MiB" + _ALSO),
    ("v5p", 128): SplashRow(_BLOCKS_OF_1024, "fwd 65k, bwd 104k bundles (512: 87k, 114k); 9.6 of 16 MiB"),
    ("v6e", 128): SplashRow(_BLOCKS_OF_1024, "fwd 45k, bwd 66k bundles (512: 59k, 74k); 8.5 of 32 MiB" + _ALSO),
    ("v5e", 64): SplashRow(_BLOCKS_OF_1024, "fwd 61k, bwd 104k bundles; 8.3 of 16 MiB"),
}
"""By generation and head size; bfloat16. Bundles: instructions that the compiler scheduled for a grid step, times the
grid steps of one head over 4,096 tokens that are not wholly above the diagonal."""

VMEM_IN_BYTES = {"v4": 16 * MIB, "v5e": 64 * MIB, "v5p": 48 * MIB, "v6e": 64 * MIB}
"""That the loss kernel asks for."""
SCOPED_VMEM_IN_BYTES = {"v4": 16 * MIB, "v5e": 16 * MIB, "v5p": 16 * MIB, "v6e": 32 * MIB}
"""That a kernel gets if it does not ask."""

FUSED = {
    ("v4", 4096): FusedRow(
        FusedBlocks((256, 256), (128, 256), (256, 128), VMEM_IN_BYTES["v4"]),
        "77, 163 and 165 bundles for 1,000 logits (all 128 x 256: 85, 163, 204); 11.2, 12.9 and 13.3 of 16 MiB",
    ),
    ("v5e", 4096): FusedRow(
        FusedBlocks((512, 768), (512, 384), (1024, 256), VMEM_IN_BYTES["v5e"]),
        "48, 113 and 114 bundles for 1,000 logits (all 128 x 256: 67, 147, 164); 26.0, 37.4 and 41.9 of 64 MiB",
    ),
    ("v5p", 4096): FusedRow(
        FusedBlocks((256, 384), (256, 384), (512, 256), VMEM_IN_BYTES["v5p"]),
        "59, 123 and 120 bundles for 1,000 logits (all 128 x 256: 71, 150, 170); 13.3, 23.1 and 25.9 of 48 MiB",
    ),
    ("v6e", 4096): FusedRow(
        FusedBlocks((512, 384), (512, 384), (512, 384), VMEM_IN_BYTES["v6e"]),
        "29, 53 and 51 bundles for 1,000 logits (all 128 x 256: 37, 66, 91); 19.1, 35.3 and 31.6 of 64 MiB",
    ),
}
"""By generation and hidden size; bfloat16. Bundles as above, in the order of `FusedBlocks`."""

TRITON: dict[tuple[str, int], TritonRow] = {
    ("hopper", 64): TritonRow(TritonBlocks(128, 64, 64, 64, 4), "compiled for an H200: fwd 210, bwd 230 registers"),
    ("hopper", 128): TritonRow(TritonBlocks(128, 64, 128, 64, 8), "compiled for an H200: fwd 166, bwd 246 registers"),
    ("ampere", 64): TritonRow(TritonBlocks(128, 64, 64, 32, 8), "compiled for an A100: fwd 161, bwd 182 registers"),
    ("ampere", 128): TritonRow(TritonBlocks(64, 64, 32, 64, 8), "compiled for an A100: fwd 165, bwd 235 registers"),
}
"""By GPU and head size; bfloat16, jax 0.10.2, ptxas 12.9. Of those that were tried, the largest blocks of which CUDA's
assembler keeps everything in a thread's 255 registers (docs/gpu.md). Never timed."""


MOSAIC: dict[int, MosaicRow] = {
    64: MosaicRow(
        MosaicBlocks(64, 128, 2, 64, 64, 2), "tokamax's own; compiled for an H200: nothing leaves the registers"
    ),
    128: MosaicRow(
        MosaicBlocks(64, 128, 3, 64, 64, 2),
        "the quickest in tokamax's tuning files, of an H100 at this head size; compiled for an H200: of a thread's "
        "numbers 56 bytes forward and 72 backward leave the registers",
    ),
}
"""By head size, of a Hopper; bfloat16, tokamax 0.0.12, jax 0.10.2, ptxas 12.9 (docs/gpu.md). Never timed here."""
