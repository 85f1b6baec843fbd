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
    """Both of the kernel that forms the gradients of keys and values."""
    key_of_query_gradient: int
    """Of the other one, which takes as many queries."""
    num_stages_backward: int


class SplashRow(NamedTuple):
    blocks: SplashBlocks
    reason: str


class FusedRow(NamedTuple):
    blocks: FusedBlocks
    reason: str


class ScatterRow(NamedTuple):
    columns: tuple[int, ...]
    """Of a gradient, that go one way round at once: the first that fit are taken."""
    tokens: int
    """That are summed over at once, at most."""
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
    ("v4", 128): SplashRow(_BLOCKS_OF_1024, "fwd 96k, bwd 138k bundles (512: 116k, 153k); 12.8 of 16 MiB" + _ALSO),
    ("v5e", 128): SplashRow(_BLOCKS_OF_1024, "fwd 61k, bwd 106k bundles (512: 77k, 110k); 10.3 of 16 MiB" + _ALSO),
    ("v5p", 128): SplashRow(_BLOCKS_OF_1024, "fwd 62k, bwd 105k bundles (512: 87k, 114k); 10.1 of 16 MiB"),
    ("v6e", 128): SplashRow(_BLOCKS_OF_1024, "fwd 45k, bwd 69k bundles (512: 59k, 74k); 10.6 of 32 MiB" + _ALSO),
    ("v4", 64): SplashRow(_BLOCKS_OF_1024, "fwd 99k, bwd 138k bundles; 12.9 of 16 MiB"),
    ("v5e", 64): SplashRow(_BLOCKS_OF_1024, "fwd 63k, bwd 109k bundles; 10.3 of 16 MiB"),
    ("v5p", 64): SplashRow(_BLOCKS_OF_1024, "fwd 64k, bwd 107k bundles; 10.1 of 16 MiB"),
    ("v6e", 64): SplashRow(_BLOCKS_OF_1024, "fwd 46k, bwd 71k bundles; 10.6 of 32 MiB"),
    ("v4", 256): SplashRow(
        SplashBlocks(1024, 1024, 512, 1024, 512, 512), "fwd 146k, bwd 237k bundles (512: 170k, 245k); 15.0 of 16 MiB"
    ),
    ("v5e", 256): SplashRow(
        SplashBlocks(1024, 1024, 512, 512, 512, 512), "fwd 102k, bwd 206k bundles (fwd 512: 113k); 11.4 of 16 MiB"
    ),
    ("v5p", 256): SplashRow(
        SplashBlocks(1024, 1024, 512, 512, 512, 512),
        "fwd 105k, bwd 206k bundles (fwd 512: 120k; bwd 1,024 does not fit); 12.5 of 16 MiB",
    ),
    ("v6e", 256): SplashRow(_BLOCKS_OF_1024, "fwd 48k, bwd 73k bundles; 15.0 of 32 MiB"),
}
"""By generation and head size; bfloat16. Bundles: instructions that the compiler scheduled for a grid step, times the
grid steps of one head over 4,096 tokens that are not wholly above the diagonal."""

VMEM_IN_BYTES = {"v4": 16 * MIB, "v5e": 64 * MIB, "v5p": 48 * MIB, "v6e": 64 * MIB}
"""That the kernels of the loss and of scattered gradients ask for."""
SCOPED_VMEM_IN_BYTES = {"v4": 16 * MIB, "v5e": 16 * MIB, "v5p": 16 * MIB, "v6e": 32 * MIB}
"""That a kernel gets if it does not ask."""

SCATTER = {
    "v5e": ScatterRow(
        (512, 256, 128), 2048, "512 columns: 16.3k bundles for 8,192 tokens and 256 rows, which the products alone take"
    ),
}
"""By generation; bfloat16. Of those with more vector memory than v4 only v5e has nothing else that hides scatters."""

FUSED = {
    ("v4", 768): FusedRow(
        FusedBlocks((512, 768), (512, 768), (1024, 256), VMEM_IN_BYTES["v4"]),
        "16, 27 and 27 bundles for 1,000 logits (all 512 x 384: 20, 30, 28); 8.4, 12.2 and 13.6 of 16 MiB",
    ),
    ("v5e", 768): FusedRow(
        FusedBlocks((1024, 768), (512, 768), (2048, 256), VMEM_IN_BYTES["v5e"]),
        "14, 21 and 22 bundles for 1,000 logits (all 1024 x 384: 18, 24, 23); 10.9, 8.6 and 11.4 of 64 MiB",
    ),
    ("v5p", 768): FusedRow(
        FusedBlocks((1024, 768), (1024, 768), (1024, 768), VMEM_IN_BYTES["v5p"]),
        "14, 22 and 22 bundles for 1,000 logits (all 1024 x 384: 18, 25, 24); 13.9, 19.1 and 17.3 of 48 MiB",
    ),
    ("v6e", 768): FusedRow(
        FusedBlocks((512, 768), (2048, 768), (1024, 768), VMEM_IN_BYTES["v6e"]),
        "7, 7 and 7 bundles for 1,000 logits (all 1024 x 384: 11, 11, 10); 6.5, 22.2 and 12.0 of 64 MiB",
    ),
    ("v4", 1024): FusedRow(
        FusedBlocks((512, 768), (512, 768), (512, 384), VMEM_IN_BYTES["v4"]),
        "19, 34 and 36 bundles for 1,000 logits (all 512 x 256: 27, 41, 38); 10.0, 15.0 and 11.0 of 16 MiB",
    ),
    ("v5e", 1024): FusedRow(
        FusedBlocks((512, 768), (512, 768), (1024, 384), VMEM_IN_BYTES["v5e"]),
        "16, 29 and 28 bundles for 1,000 logits (all 1024 x 384: 20, 30, 28); 7.9, 12.9 and 14.1 of 64 MiB",
    ),
    ("v5p", 1024): FusedRow(
        FusedBlocks((512, 768), (512, 768), (1024, 384), VMEM_IN_BYTES["v5p"]),
        "17, 31 and 30 bundles for 1,000 logits (all 1024 x 384: 20, 32, 30); 9.4, 13.9 and 16.1 of 48 MiB",
    ),
    ("v6e", 1024): FusedRow(
        FusedBlocks((1024, 768), (1024, 768), (1024, 768), VMEM_IN_BYTES["v6e"]),
        "8, 10 and 9 bundles for 1,000 logits (all 1024 x 384: 13, 14, 12); 12.6, 16.5 and 15.0 of 64 MiB",
    ),
    ("v4", 2048): FusedRow(
        FusedBlocks((256, 768), (128, 768), (512, 256), VMEM_IN_BYTES["v4"]),
        "36, 72 and 68 bundles for 1,000 logits (all 256 x 256: 45, 79, 81); 11.0, 13.0 and 15.3 of 16 MiB",
    ),
    ("v5e", 2048): FusedRow(
        FusedBlocks((512, 768), (512, 768), (1024, 384), VMEM_IN_BYTES["v5e"]),
        "27, 56 and 57 bundles for 1,000 logits (all 1024 x 384: 31, 57, 57); 14.0, 24.2 and 25.5 of 64 MiB",
    ),
    ("v5p", 2048): FusedRow(
        FusedBlocks((512, 768), (512, 768), (1024, 384), VMEM_IN_BYTES["v5p"]),
        "27, 58 and 58 bundles for 1,000 logits (all 1024 x 384: 31, 62, 58); 15.5, 25.2 and 27.5 of 48 MiB",
    ),
    ("v6e", 2048): FusedRow(
        FusedBlocks((1024, 768), (512, 768), (512, 768), VMEM_IN_BYTES["v6e"]),
        "12, 19 and 20 bundles for 1,000 logits (all 1024 x 384: 18, 27, 24); 21.6, 21.9 and 25.6 of 64 MiB",
    ),
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
        FusedBlocks((512, 768), (512, 768), (512, 768), VMEM_IN_BYTES["v6e"]),
        "20, 37 and 39 bundles for 1,000 logits (all 512 x 384: 28, 53, 51); 25.6, 41.9 and 49.7 of 64 MiB",
    ),
    ("v5e", 8192): FusedRow(
        FusedBlocks((512, 384), (128, 768), (512, 256), VMEM_IN_BYTES["v5e"]),
        "98, 234 and 229 bundles for 1,000 logits (all 256 x 256: 111, 284, 254); 37.2, 48.4 and 49.0 of 64 MiB",
    ),
    ("v5p", 8192): FusedRow(
        FusedBlocks((256, 768), (256, 256), (256, 256), VMEM_IN_BYTES["v5p"]),
        "101, 267 and 252 bundles for 1,000 logits (all 256 x 256: 113, 267, 252); 37.7, 39.0 and 36.9 of 48 MiB",
    ),
    ("v6e", 8192): FusedRow(
        FusedBlocks((512, 768), (256, 768), (256, 256), VMEM_IN_BYTES["v6e"]),
        "36, 74 and 99 bundles for 1,000 logits (all 256 x 256: 43, 97, 99); 49.6, 52.9 and 36.3 of 64 MiB",
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
assembler keeps everything in a thread's 255 registers (docs/gpu.md)."""


MOSAIC: dict[int, MosaicRow] = {
    64: MosaicRow(
        MosaicBlocks(64, 128, 2, 64, 64, 128, 2), "the quickest of 8 on an H200; a thread's numbers stay in registers"
    ),
    128: MosaicRow(
        MosaicBlocks(64, 128, 3, 64, 64, 64, 2),
        "of 7 on an H200 none is quicker; of a thread's numbers 56 bytes forward and 72 backward leave the registers",
    ),
}
"""By head size, of a Hopper; bfloat16. Timed with jax 0.11.2 and tokamax 0.0.17, registers by ptxas 12.9 of jax 0.10.2
and tokamax 0.0.12 (docs/gpu.md)."""
