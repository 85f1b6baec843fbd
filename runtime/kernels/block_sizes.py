"""Block sizes of the kernels by shape and chip: the rows of `tuned_blocks`, cut to parts of the shape.

Where the attention kernel has no row, it gets the largest blocks that `splash_bytes` finds to fit, and the reason says
so; where none fits, ValueError. A TPU of an unlisted kind counts as v4, the smallest, as does any outside `shard_map`;
a GPU of an unlisted kind counts as an A100.
"""

from runtime.kernels.tuned_blocks import (
    MIB,
    MOSAIC,
    SCOPED_VMEM_IN_BYTES,
    SPLASH,
    TRITON,
    MosaicRow,
    SplashBlocks,
    SplashRow,
    TritonBlocks,
    TritonRow,
)

LANES = 128  # every block is a whole number of vector lanes
UNKNOWN = "v4"
NO_ROW = "no row"
_GENERATIONS = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
}
UNKNOWN_GPU = "ampere"
_GPUS = {"A100": "ampere", "H100": "hopper", "H200": "hopper"}
"""Family by a part of the kind's name, Ray's or the driver's."""


def generation_of(device_kind: str) -> str | None:
    """Return "v5e" for "TPU v5 lite"; None for a device that is no TPU with rows here."""
    return _GENERATIONS.get(device_kind)


def family_of(device_kind: str) -> str | None:
    """Return "hopper" for "NVIDIA H100 80GB HBM3" or "H100"; None for a device that is no GPU with rows here."""
    return next((family for part, family in _GPUS.items() if part in device_kind), None)


def taken_as(device_kind: str) -> str:
    """Return the beginning of a reason for a TPU without rows, which gets those of another; "" for other devices."""
    if not device_kind.startswith("TPU") or device_kind in _GENERATIONS:
        return ""
    return f"unknown generation {device_kind!r}, taken as {UNKNOWN}: "


def generation_here() -> str | None:
    """Return the TPU generation of the mesh whose `shard_map` is being traced; None outside one."""
    return generation_of(device_kind_here())


def family_here() -> str | None:
    """Return the GPU family of the mesh whose `shard_map` is being traced; None outside one."""
    return family_of(device_kind_here())


def device_kind_here() -> str:
    """Return the device kind of the mesh whose `shard_map` is being traced; "" outside one."""
    import jax  # plans look block sizes up without it

    device = jax.sharding.get_abstract_mesh().abstract_device
    return "" if device is None else str(device.device_kind)


def splash_blocks(generation: str | None, *, head_dim: int, num_rows: int, item_bytes: int) -> SplashRow:
    """Return the blocks for `num_rows` queries of each row on a device.

    Raises:
        ValueError: the kernel does not take the shape.
    """
    if num_rows % LANES:
        raise ValueError(
            f"attention kernel 'splash': {num_rows} tokens of a row on a device are not a whole number of blocks of "
            f"{LANES}; change the sequence length, or context_parallel."
        )
    row = SPLASH.get((generation or UNKNOWN, head_dim)) if item_bytes == 2 else None
    if row is None:
        row = _splash_by_arithmetic(generation or UNKNOWN, head_dim, item_bytes)
    query, key, key_compute, query_backward, key_backward, key_backward_compute = (
        _part_of(num_rows, size) for size in row.blocks
    )
    blocks = SplashBlocks(
        query,
        key,
        _part_of(key, key_compute),
        query_backward,
        key_backward,
        _part_of(key_backward, key_backward_compute),
    )
    return SplashRow(blocks, _reason_of(blocks, row, num_rows))


def triton_blocks(family: str | None, *, head_dim: int, num_rows: int) -> TritonRow:
    """Return the blocks for rows of `num_rows` tokens on a GPU.

    Raises:
        ValueError: the kernel does not take the shape.
    """
    row = TRITON.get((family or UNKNOWN_GPU, head_dim))
    if row is None:
        known = ", ".join(str(size) for name, size in TRITON if name == UNKNOWN_GPU)
        raise ValueError(
            f"attention kernel 'pallas_gpu': head_dim {head_dim} is none of {known}; use attention kernel 'chunked'."
        )
    unit = max(row.blocks.key, row.blocks.backward)
    if num_rows % unit:
        raise ValueError(
            f"attention kernel 'pallas_gpu': {num_rows} tokens of a row are not a whole number of blocks of {unit}; "
            "change the sequence length, or context_parallel."
        )
    blocks = row.blocks._replace(
        query=_part_of(num_rows, row.blocks.query, row.blocks.key),
        query_backward=_part_of(num_rows, row.blocks.query_backward, row.blocks.query_backward // 2),
    )
    return TritonRow(blocks, _reason_of(blocks, row, num_rows))


def mosaic_blocks(device_kind: str, *, head_dim: int, num_rows: int, first_row: int) -> MosaicRow:
    """Return the blocks for `num_rows` queries from position `first_row` on; for an unknown device ("") a Hopper's.

    Raises:
        ValueError: the kernel does not take the device or the shape.
    """
    if device_kind and family_of(device_kind) != "hopper":
        known = " and ".join(name for name, family in _GPUS.items() if family == "hopper")
        raise ValueError(
            f"attention kernel 'tokamax': the device is {device_kind!r}, and the kernel is for {known}; use attention "
            "kernel 'chunked'."
        )
    if head_dim not in MOSAIC:
        known = ", ".join(str(size) for size in MOSAIC)
        raise ValueError(
            f"attention kernel 'tokamax': head_dim {head_dim} is none of {known}; use attention kernel 'chunked'."
        )
    row = MOSAIC[head_dim]
    unit = 2 * max(row.blocks.query, row.blocks.query_backward, row.blocks.key_backward)
    unit = max(unit, row.blocks.key, row.blocks.key_of_query_gradient)
    for tokens, what in ((num_rows, "of a row on a device"), (first_row, "before them")):
        if tokens % unit:
            raise ValueError(
                f"attention kernel 'tokamax': {tokens} tokens {what} are not a whole number of blocks of {unit}; "
                "change the sequence length, or context_parallel."
            )
    return row


def splash_bytes(blocks: SplashBlocks, head_dim: int, item_bytes: int) -> int:
    """Return the vector memory that a grid step takes, the larger of both passes: an estimate from above."""
    columns = max(head_dim, LANES)  # a row takes whole lanes

    def step(query: int, key: int, compute: int, *, kept: int) -> int:
        fetched = 2 * (2 * query + 2 * key) * columns * item_bytes + 2 * 4 * (8 * query + LANES * key)
        return fetched + kept * columns * 4 + 2 * query * compute * 4

    forward = step(*blocks[:3], kept=4 * blocks.query)
    backward = step(*blocks[3:], kept=4 * blocks.key_backward + 2 * blocks.query_backward)
    return max(forward, backward)


def _splash_by_arithmetic(generation: str, head_dim: int, item_bytes: int) -> SplashRow:
    limit = SCOPED_VMEM_IN_BYTES[generation]
    for size in (1024, 512, 256, 128):
        blocks = SplashBlocks(size, size, min(size, 512), size, size, size)
        if splash_bytes(blocks, head_dim, item_bytes) <= limit:
            return SplashRow(
                blocks,
                f"{NO_ROW} for {generation}, head size {head_dim}, {item_bytes} bytes a number: the largest that "
                f"arithmetic fits in {limit // MIB} MiB",
            )
    raise ValueError(
        f"attention kernel 'splash': no block of head size {head_dim} fits in the {limit // MIB} MiB of vector memory "
        f"of a {generation}; use attention kernel 'chunked', or add a row to runtime/kernels/tuned_blocks.py."
    )


def _reason_of(blocks: SplashBlocks | TritonBlocks, row: SplashRow | TritonRow, num_rows: int) -> str:
    """Return the reason for blocks made of a row's; the row's figures hold for its own blocks only."""
    changed = [
        f"{name} {size}" for name, size, cut in zip(blocks._fields, row.blocks, blocks, strict=True) if size != cut
    ]
    if not changed:
        return row.reason
    before = f"{row.reason}; " if row.reason.startswith(NO_ROW) else ""
    return f"{before}cut from {', '.join(changed)} to parts of {num_rows} tokens"


def _part_of(size: int, limit: int, unit: int = LANES) -> int:
    """Return the largest whole number of `unit` up to `limit` that divides `size`."""
    return max(part for part in range(unit, min(size, limit) + 1, unit) if size % part == 0)
