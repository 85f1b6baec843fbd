"""In what parts the scatter kernel `pallas_tpu` forms a gradient, or why it cannot. No JAX: a plan asks, too."""

from typing import Literal, NamedTuple, get_args

from runtime.kernels.block_sizes import LANES, NO_ROW, UNKNOWN
from runtime.kernels.tuned_blocks import MIB, SCATTER, VMEM_IN_BYTES, ScatterRow
from runtime.model.config import ModelConfig

ScatterKernel = Literal["xla", "pallas_tpu"]
"""How gradients of a layer's matrices are scattered over the first axis: by the compiler, after the products that form
them; or inside a kernel, beside these."""
SCATTER_KERNELS: tuple[str, ...] = get_args(ScatterKernel)
NUM_SLOTS = 2
"""Buffers a direction of the ring: one is sent or summed while the other is filled."""
TOKENS_AT_ONCE = SCATTER["v5e"].tokens


class ScatterBlocks(NamedTuple):
    """Of `scattered_product_tpu`."""

    columns: int
    """Of the gradient, that go one way round at once; as many go the other way."""
    tokens: int
    """That are summed over at once."""
    vmem_limit_in_bytes: int


def scatter_blocks(
    generation: str | None,
    *,
    num_devices: int,
    num_tokens: int,
    scattered: int,
    columns: int,
    item_bytes: int,
    sum_bytes: int,
) -> ScatterBlocks:
    """For a gradient [scattered, columns] over `num_devices`, formed from `num_tokens` rows; the largest that fit.

    Raises:
        ValueError: the kernel does not take the shape.
    """
    said = f"scatter kernel 'pallas_tpu': the gradient [{scattered}, {columns}] over {num_devices} devices"
    if num_devices < 2:
        raise ValueError(f"{said} is not scattered; use scatter kernel 'xla'.")
    for size, unit, what in (
        (scattered, num_devices * LANES, "rows a device"),
        (columns, 2 * LANES, "columns each way round"),
        (num_tokens, LANES, f"tokens summed over, of {num_tokens},"),
    ):
        if size % unit:
            raise ValueError(f"{said}: its {what} are not a whole number of {LANES}; use scatter kernel 'xla'.")
    limit, part = VMEM_IN_BYTES[generation or UNKNOWN], scattered // num_devices
    row = scatter_row(generation)
    for half in row.columns:
        # Twice what is fetched or written; the sum; what is sent and received. An eighth more, as in `fused_bytes`.
        fetched = 2 * num_tokens * (part + 2 * half) * item_bytes + 2 * part * 2 * half * sum_bytes
        needed = fetched + part * half * (4 + 2 * 2 * NUM_SLOTS * sum_bytes)
        if columns % (2 * half) == 0 and needed + needed // 8 <= limit:
            tokens = max(
                size for size in range(LANES, min(num_tokens, row.tokens) + 1, LANES) if num_tokens % size == 0
            )
            return ScatterBlocks(half, tokens, limit)
    raise ValueError(
        f"{said}: no block of {num_tokens} tokens fits in the {limit // MIB} MiB of vector memory of a "
        f"{generation or UNKNOWN}; use more micro-batches, or scatter kernel 'xla'."
    )


def scatter_row(generation: str | None) -> ScatterRow:
    """Of the table, or v5e's sizes, and that they are no row of this generation."""
    row = SCATTER.get(generation or UNKNOWN)
    return row or SCATTER["v5e"]._replace(reason=f"{NO_ROW} for {generation or UNKNOWN}: v5e's, as far as they fit")


def layer_scatter_blocks(
    generation: str | None,
    model: ModelConfig,
    *,
    num_devices: int,
    num_tokens: int,
    model_parallel: int,
    item_bytes: int,
    sum_bytes: int,
) -> dict[int, ScatterBlocks]:
    """Of the matrices of a layer, by the columns that a device has of them, for `num_tokens` at a time.

    Raises:
        ValueError: the kernel does not take one of them.
    """
    return {
        columns: scatter_blocks(
            generation,
            num_devices=num_devices,
            num_tokens=num_tokens,
            scattered=model.hidden_size,
            columns=columns,
            item_bytes=item_bytes,
            sum_bytes=sum_bytes,
        )
        for columns in (width // model_parallel for width in model.layer_widths)
    }


def check_scatter_kernel(platform: str, scatter_kernel: str) -> None:
    """Raises where it is unknown or cannot run on `platform`; `layer_scatter_blocks` knows which shapes it takes."""
    if scatter_kernel not in SCATTER_KERNELS:
        raise ValueError(f"scatter_kernel is {scatter_kernel!r}; it must be one of {', '.join(SCATTER_KERNELS)}.")
    if scatter_kernel == "pallas_tpu" and platform != "tpu":
        raise ValueError(
            f"scatter_kernel is 'pallas_tpu', a Mosaic TPU kernel, and the mesh is of platform {platform!r}; "
            "pass 'xla'."
        )
