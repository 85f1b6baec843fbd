"""Which blocks a kernel takes for a shape on a chip: those of its row in `tuned_blocks`, cut to parts of the shape.

A shape without a row gets the largest blocks that the arithmetic of `splash_bytes` or `fused_bytes` holds to fit, and
says so; where none fits, an error. Outside `shard_map` the generation is unknown, and is taken to be v4, the smallest;
so is a TPU of a kind that is not listed, and `taken_as` says so. A GPU of such a kind is taken to be an A100.
"""

from runtime.kernels.tuned_blocks import (
    FUSED,
    MIB,
    MOSAIC,
    SCOPED_VMEM_IN_BYTES,
    SPLASH,
    TRITON,
    VMEM_IN_BYTES,
    FusedBlocks,
    FusedRow,
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
"""By a part of the kind's name, Ray's or the driver's."""


def generation_of(device_kind: str) -> str | None:
    """ "v5e" for "TPU v5 lite"; None for what is no TPU with rows here."""
    return _GENERATIONS.get(device_kind)


def family_of(device_kind: str) -> str | None:
    """ "hopper" for "NVIDIA H100 80GB HBM3" or "H100"; None for what is no GPU with rows here."""
    return next((family for part, family in _GPUS.items() if part in device_kind), None)


def taken_as(device_kind: str) -> str:
    """How a reason begins for a TPU that has no rows here, and gets those of another; "" for every other device."""
    if not device_kind.startswith("TPU") or device_kind in _GENERATIONS:
        return ""
    return f"unknown generation {device_kind!r}, taken as {UNKNOWN}: "


def generation_here() -> str | None:
    """Of the mesh whose `shard_map` is being traced; None outside one."""
    return generation_of(device_kind_here())


def family_here() -> str | None:
    """The same of a mesh of GPUs."""
    return family_of(device_kind_here())


def device_kind_here() -> str:
    """Of the same mesh; "" outside one."""
    import jax  # a plan looks block sizes up without it

    device = jax.sharding.get_abstract_mesh().abstract_device
    return "" if device is None else str(device.device_kind)


def splash_blocks(generation: str | None, *, head_dim: int, num_rows: int, item_bytes: int) -> SplashRow:
    """For stretches of `num_rows` queries; blocks are cut to parts of the stretch."""
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
    return SplashRow(blocks, _reason_of(blocks, row, f"{num_rows} tokens"))


def fused_blocks(
    generation: str | None, *, hidden_size: int, num_tokens: int, vocab_size: int, item_bytes: int
) -> FusedRow:
    """For `num_tokens` of a device; blocks are cut to parts of the tokens and of the vocabulary."""
    if num_tokens % LANES:
        raise ValueError(
            f"loss kernel 'pallas_tpu': {num_tokens} tokens on a device are not a whole number of blocks of "
            f"{LANES}; change the batch or the sequence length."
        )
    if vocab_size % LANES:
        raise ValueError(
            f"loss kernel 'pallas_tpu': vocab_size {vocab_size} is not a multiple of {LANES}; pad the vocabulary."
        )
    row = FUSED.get((generation or UNKNOWN, hidden_size)) if item_bytes == 2 else None
    if row is None:
        row = _fused_by_arithmetic(generation or UNKNOWN, hidden_size, item_bytes)

    def cut(block: tuple[int, int]) -> tuple[int, int]:
        return _part_of(num_tokens, block[0]), _part_of(vocab_size, block[1])

    *passes, limit = row.blocks
    blocks = FusedBlocks(cut(passes[0]), cut(passes[1]), cut(passes[2]), limit)
    return FusedRow(blocks, _reason_of(blocks, row, f"{num_tokens} tokens and {vocab_size} columns"))


def triton_blocks(family: str | None, *, head_dim: int, num_rows: int) -> TritonRow:
    """For rows of `num_rows` tokens on a GPU; blocks are cut to parts of the row."""
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
    return TritonRow(blocks, _reason_of(blocks, row, f"{num_rows} tokens"))


def mosaic_blocks(device_kind: str, *, head_dim: int, num_rows: int, first_row: int) -> MosaicRow:
    """For a stretch of `num_rows` queries that begins at `first_row`; of no device ("") it takes a Hopper's."""
    if device_kind and family_of(device_kind) != "hopper":
        known = " and ".join(name for name, family in _GPUS.items() if family == "hopper")
        raise ValueError(
            f"attention kernel 'tokamax': its kernels are taken for {known}, and the device is {device_kind!r}; use "
            "attention kernel 'chunked'."
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
    """Of vector memory that a grid step takes, the larger of both passes: an estimate from above."""
    columns = max(head_dim, LANES)  # a row takes whole lanes

    def step(query: int, key: int, compute: int, *, kept: int) -> int:
        fetched = 2 * (2 * query + 2 * key) * columns * item_bytes + 2 * 4 * (8 * query + LANES * key)
        return fetched + kept * columns * 4 + 2 * query * compute * 4

    forward = step(*blocks[:3], kept=4 * blocks.query)
    backward = step(*blocks[3:], kept=4 * blocks.key_backward + 2 * blocks.query_backward)
    return max(forward, backward)


def fused_bytes(blocks: FusedBlocks, hidden_size: int, item_bytes: int) -> int:
    """Of vector memory that a grid step takes, the largest of the three passes: an estimate from above."""

    def step(
        block: tuple[int, int], *, rows: int, columns: int, kept: int, multiplied_rows: int, multiplied_columns: int
    ) -> int:
        """`rows` and `columns`: arrays of tokens x hidden and hidden x vocabulary that are fetched or written; of them
        `multiplied_…` are sides of products, one that is of two as often."""
        fetched = 2 * hidden_size * (rows * block[0] + columns * block[1]) * item_bytes
        per_token = 16 * 4 * LANES * block[0]  # a figure of each token takes a whole row of lanes
        exact = fetched + 4 * hidden_size * kept + 4 * 4 * block[0] * block[1] + per_token
        if item_bytes == 4:
            # Each side of a float32 product also as three arrays of bfloat16, and the product beside what it adds to.
            sides = hidden_size * (multiplied_rows * block[0] + multiplied_columns * block[1]) + block[0] * block[1]
            exact += 3 * 2 * sides + 4 * hidden_size * kept
        return exact + exact // 8  # the compiler was seen to take up to an eighth more

    by_tokens, by_columns = blocks.hidden_gradient, blocks.head_gradient
    return max(
        step(blocks.forward, rows=1, columns=1, kept=0, multiplied_rows=1, multiplied_columns=1),
        step(by_tokens, rows=2, columns=1, kept=by_tokens[0], multiplied_rows=1, multiplied_columns=2),
        step(by_columns, rows=1, columns=2, kept=by_columns[1], multiplied_rows=2, multiplied_columns=1),
    )


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


def _fused_by_arithmetic(generation: str, hidden_size: int, item_bytes: int) -> FusedRow:
    limit = VMEM_IN_BYTES[generation]
    for tokens, columns in ((1024, 384), (512, 384), (512, 256), (256, 256), (256, 128), (128, 128)):
        blocks = FusedBlocks((tokens, columns), (tokens, columns), (tokens, columns), limit)
        if fused_bytes(blocks, hidden_size, item_bytes) <= limit:
            return FusedRow(
                blocks,
                f"{NO_ROW} for {generation}, hidden size {hidden_size}, {item_bytes} bytes a number: the largest that "
                f"arithmetic fits in {limit // MIB} MiB",
            )
    raise ValueError(
        f"loss kernel 'pallas_tpu': no block of hidden size {hidden_size} fits in the {limit // MIB} MiB of vector "
        f"memory of a {generation}; use loss kernel 'chunked_wide', or add a row to runtime/kernels/tuned_blocks.py."
    )


def _reason_of(
    blocks: SplashBlocks | FusedBlocks | TritonBlocks, row: SplashRow | FusedRow | TritonRow, whole: str
) -> str:
    """Why these blocks, made of a row's: its figures are those of its own blocks, and go where they were cut."""
    changed = [
        f"{name} {' x '.join(map(str, size)) if isinstance(size, tuple) else size}"
        for name, size, cut in zip(blocks._fields, row.blocks, blocks, strict=True)
        if size != cut
    ]
    if not changed:
        return row.reason
    said = f"{row.reason}; " if row.reason.startswith(NO_ROW) else ""
    return f"{said}cut from {', '.join(changed)} to parts of {whole}"


def _part_of(size: int, limit: int, unit: int = LANES) -> int:
    """The largest whole number of `unit` up to `limit` that divides `size`."""
    return max(part for part in range(unit, min(size, limit) + 1, unit) if size % part == 0)
