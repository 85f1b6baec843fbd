"""Block sizes of the attention kernels by shape and chip. No JAX at import, for plans.

A TPU of an unlisted kind counts as v4, the smallest, as does any outside `shard_map`. Where no blocks suit a shape,
ValueError.
"""

from typing import NamedTuple

MIB = 2**20
LANES = 128  # every block is a whole number of vector lanes
# A dimension that a TPU does not scatter has whole tiles of 8 x 128, or its compiler makes an all-reduce of everything.
WHOLE_TILES = 1024
UNKNOWN = "v4"
_GENERATIONS = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
}
SCOPED_VMEM_IN_BYTES = {"v4": 16 * MIB, "v5e": 16 * MIB, "v5p": 16 * MIB, "v6e": 32 * MIB}
"""Vector memory of a kernel that does not ask for more."""
HOPPERS = ("H100", "H200")
"""Parts of the names of Hopper GPUs, Ray's or the driver's."""


class SplashBlocks(NamedTuple):
    """Blocks of `splash`: queries and keys of a grid step, and the keys that are multiplied at a time."""

    query: int
    key: int
    key_compute: int
    query_backward: int
    key_backward: int
    key_backward_compute: int


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


MOSAIC = {64: MosaicBlocks(64, 128, 2, 64, 64, 128, 2), 128: MosaicBlocks(64, 128, 3, 64, 64, 64, 2)}
"""Blocks by head size; bfloat16: the quickest of some eight on an H200."""


def generation_of(device_kind: str) -> str | None:
    """Return "v5e" for "TPU v5 lite"; None for a device that is no known TPU."""
    return _GENERATIONS.get(device_kind)


def is_hopper(device_kind: str) -> bool:
    """Return whether a device is a Hopper GPU, such as "NVIDIA H200"; an unknown device ("") counts as one."""
    return not device_kind or any(name in device_kind for name in HOPPERS)


def taken_as(device_kind: str) -> str:
    """Return a note on an unknown TPU, which gets the blocks of another; "" for other devices."""
    if not device_kind.startswith("TPU") or device_kind in _GENERATIONS:
        return ""
    return f"unknown generation {device_kind!r}, taken as {UNKNOWN}: "


def device_kind_here() -> str:
    """Return the device kind of the mesh whose `shard_map` is being traced; "" outside one."""
    import jax

    device = jax.sharding.get_abstract_mesh().abstract_device
    return "" if device is None else str(device.device_kind)


def splash_blocks(device_kind: str, *, head_dim: int, num_rows: int, item_bytes: int) -> SplashBlocks:
    """Return the blocks for `num_rows` queries of each row on a device: for each pass the largest that fit.

    Larger ones than 1,024 compute more above the diagonal (docs/explanation/tpu.md).

    Raises:
        ValueError: the kernel does not take the shape.
    """
    if num_rows % LANES:
        raise ValueError(
            f"attention kernel 'splash': {num_rows} tokens of a row on a device are not a whole number of blocks of "
            f"{LANES}; change the sequence length, or context_parallel."
        )
    generation = generation_of(device_kind) or UNKNOWN
    limit = SCOPED_VMEM_IN_BYTES[generation]
    for size in (1024, 512, 256, 128):
        if splash_bytes(size, size, head_dim, item_bytes, is_backward=True) <= limit:
            break
    else:
        raise ValueError(
            f"attention kernel 'splash': no block of head size {head_dim} fits in the {limit // MIB} MiB of vector "
            f"memory of a {generation}; use attention kernel 'chunked'."
        )
    backward = _part_of(num_rows, size)
    while size < 1024 and splash_bytes(2 * size, 512, head_dim, item_bytes, is_backward=False) <= limit:
        size *= 2
    forward = _part_of(num_rows, size)
    return SplashBlocks(forward, forward, _part_of(forward, 512), backward, backward, backward)


def splash_bytes(size: int, compute: int, head_dim: int, item_bytes: int, *, is_backward: bool) -> int:
    """Return the vector memory of a grid step in blocks of `size`: an estimate from above."""
    columns = max(head_dim, LANES)  # a row takes whole lanes
    fetched = 2 * 4 * size * columns * item_bytes + 2 * 4 * (8 + LANES) * size
    kept = (6 if is_backward else 4) * size * columns * 4
    return fetched + kept + 2 * size * min(compute, size) * 4


def mosaic_blocks(device_kind: str, *, head_dim: int, num_rows: int, first_row: int) -> MosaicBlocks:
    """Return the blocks for `num_rows` queries from position `first_row` on; for an unknown device ("") a Hopper's.

    Raises:
        ValueError: the kernel does not take the device or the shape.
    """
    if not is_hopper(device_kind):
        raise ValueError(
            f"attention kernel 'tokamax': the device is {device_kind!r}, and the kernel is for {' and '.join(HOPPERS)}"
            "; use attention kernel 'chunked'."
        )
    if head_dim not in MOSAIC:
        known = ", ".join(str(size) for size in MOSAIC)
        raise ValueError(
            f"attention kernel 'tokamax': head_dim {head_dim} is none of {known}; use attention kernel 'chunked'."
        )
    blocks = MOSAIC[head_dim]
    unit = 2 * max(blocks.query, blocks.query_backward, blocks.key_backward)
    unit = max(unit, blocks.key, blocks.key_of_query_gradient)
    for tokens, what in ((num_rows, "of a row on a device"), (first_row, "before them")):
        if tokens % unit:
            raise ValueError(
                f"attention kernel 'tokamax': {tokens} tokens {what} are not a whole number of blocks of {unit}; "
                "change the sequence length, or context_parallel."
            )
    return blocks


def _part_of(size: int, limit: int) -> int:
    """Return the largest whole number of lanes up to `limit` that divides `size`."""
    return max(part for part in range(LANES, min(size, limit) + 1, LANES) if size % part == 0)


def padded_to_tiles(size: int) -> int:
    """Return the next multiple of `WHOLE_TILES`, 129,024 for 128,256; smaller sizes stay as they are."""
    return size if size < WHOLE_TILES else size + -size % WHOLE_TILES
