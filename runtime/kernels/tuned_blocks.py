"""Tuned block sizes of the kernels: a table by kernel, chip and head size, with a reason for each row.

A block has to be so large that its products take longer than reading it (a chip's FLOPs a byte of memory bandwidth: 224
on v4, 240 on v5e, 166 on v5p, 560 on v6e), and so small that everything of a grid step fits in vector memory, with a
second copy of what is fetched for the next step. The rows are what the compiler accepted; nothing was timed.
"""

from typing import NamedTuple

MIB = 2**20


class SplashBlocks(NamedTuple):
    """Blocks of `splash`: queries and keys of a grid step, and the keys that are multiplied at a time."""

    query: int
    key: int
    key_compute: int
    query_backward: int
    key_backward: int
    key_backward_compute: int


class TritonBlocks(NamedTuple):
    """Blocks of `pallas_gpu`, in rows of queries and of keys, and the warps that share a block."""

    query: int
    key: int
    query_backward: int
    """Queries that a block of keys takes at a time, backward."""
    backward: int
    """Keys of such a block, and both sides of the queries' gradient."""
    num_warps: int


class MosaicBlocks(NamedTuple):
    """Blocks of `tokamax`, in rows; a program takes two blocks of queries, backward also two of keys."""

    query: int
    key: int
    num_stages: int
    """Blocks of keys fetched ahead."""
    query_backward: int
    key_backward: int
    """Blocks of the kernel that forms the gradients of keys and values."""
    key_of_query_gradient: int
    """Keys of the kernel that forms the queries' gradient; it takes as many queries."""
    num_stages_backward: int


class SplashRow(NamedTuple):
    blocks: SplashBlocks
    reason: str


class ScatterRow(NamedTuple):
    columns: tuple[int, ...]
    """Columns of a gradient that go one way round at once; the first that fit are used."""
    tokens: int
    """Most tokens that are summed over at once."""
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
"""Rows by generation and head size; bfloat16. Bundles: instructions that the compiler scheduled for a grid step, times
the grid steps of one head over 4,096 tokens that are not wholly above the diagonal."""

VMEM_IN_BYTES = {"v4": 16 * MIB, "v5e": 64 * MIB, "v5p": 48 * MIB, "v6e": 64 * MIB}
"""Vector memory that the kernel of scattered gradients asks for."""
SCOPED_VMEM_IN_BYTES = {"v4": 16 * MIB, "v5e": 16 * MIB, "v5p": 16 * MIB, "v6e": 32 * MIB}
"""Vector memory of a kernel that does not ask."""

SCATTER = {
    "v5e": ScatterRow(
        (512, 256, 128), 2048, "512 columns: 16.3k bundles for 8,192 tokens and 256 rows, which the products alone take"
    ),
}
"""Rows by generation; bfloat16. Others with enough vector memory have other ways to hide scatters."""

TRITON: dict[tuple[str, int], TritonRow] = {
    ("hopper", 64): TritonRow(TritonBlocks(128, 64, 64, 64, 4), "compiled for an H200: fwd 210, bwd 230 registers"),
    ("hopper", 128): TritonRow(TritonBlocks(128, 64, 128, 64, 8), "compiled for an H200: fwd 166, bwd 246 registers"),
    ("ampere", 64): TritonRow(TritonBlocks(128, 64, 64, 32, 8), "compiled for an A100: fwd 161, bwd 182 registers"),
    ("ampere", 128): TritonRow(TritonBlocks(64, 64, 32, 64, 8), "compiled for an A100: fwd 165, bwd 235 registers"),
}
"""Rows by GPU and head size; bfloat16, jax 0.10.2, ptxas 12.9. The largest tried blocks that CUDA's assembler keeps in
a thread's 255 registers (docs/gpu.md)."""


MOSAIC: dict[int, MosaicRow] = {
    64: MosaicRow(
        MosaicBlocks(64, 128, 2, 64, 64, 128, 2), "the quickest of 8 on an H200; a thread's numbers stay in registers"
    ),
    128: MosaicRow(
        MosaicBlocks(64, 128, 3, 64, 64, 64, 2),
        "of 7 on an H200 none is quicker; of a thread's numbers 56 bytes forward and 72 backward leave the registers",
    ),
}
"""Rows of a Hopper by head size; bfloat16. Timed with jax 0.11.2 and tokamax 0.0.17, registers by ptxas 12.9 of jax
0.10.2 and tokamax 0.0.12 (docs/gpu.md)."""
