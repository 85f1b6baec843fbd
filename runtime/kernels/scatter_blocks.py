"""Block sizes of the scatter kernel `pallas_tpu`, or why it does not take a gradient. No JAX, for plans."""

from typing import Literal, NamedTuple, get_args

from runtime.kernels.block_sizes import LANES, MIB, UNKNOWN, generation_of
from runtime.model.config import ModelConfig

ScatterKernel = Literal["xla", "pallas_tpu"]
"""Scatter of gradients of a layer's matrices over the first axis: by the compiler, after the products that form them;
or by a kernel, beside the products."""
SCATTER_KERNELS: tuple[str, ...] = get_args(ScatterKernel)
NUM_SLOTS = 2
"""Buffers of each direction of the ring: one is sent or summed while the other is filled."""
VMEM_IN_BYTES = {"v4": 16 * MIB, "v5e": 64 * MIB, "v5p": 48 * MIB, "v6e": 64 * MIB}
"""Vector memory that the kernel asks for."""
COLUMNS, TOKENS_AT_ONCE = (512, 256, 128), 2048
"""Columns that go one way round at once, of which the first that fit are used, and the most tokens summed over at once:
for v5e. Other generations with enough vector memory have other ways to hide scatters."""


class ScatterBlocks(NamedTuple):
    """Block sizes of `scattered_product_tpu`."""

    columns: int
    """Columns of the gradient that go one way round at once; as many go the other way."""
    tokens: int
    """Tokens that are summed over at once."""
    vmem_limit_in_bytes: int


def scatter_blocks(
    device_kind: str,
    *,
    num_devices: int,
    num_tokens: int,
    scattered: int,
    columns: int,
    item_bytes: int,
    sum_bytes: int,
) -> ScatterBlocks:
    """Return the largest blocks that fit, for a gradient [scattered, columns] over `num_devices` from `num_tokens`
    rows.

    Raises:
        ValueError: the kernel does not take the shape.
    """
    what_fails = f"scatter kernel 'pallas_tpu': the gradient [{scattered}, {columns}] over {num_devices} devices"
    if num_devices < 2:
        raise ValueError(f"{what_fails} is not scattered; use scatter kernel 'xla'.")
    for size, unit, what in (
        (scattered, num_devices * LANES, "rows per device"),
        (columns, 2 * LANES, "columns each way round"),
        (num_tokens, LANES, f"tokens summed over, of {num_tokens},"),
    ):
        if size % unit:
            raise ValueError(f"{what_fails}: its {what} are not a whole number of {LANES}; use scatter kernel 'xla'.")
    generation = generation_of(device_kind) or UNKNOWN
    limit, part = VMEM_IN_BYTES[generation], scattered // num_devices
    for half in COLUMNS:
        # Twice what is fetched or written; the sum; messages. The compiler was seen to take up to an eighth more.
        fetched = 2 * num_tokens * (part + 2 * half) * item_bytes + 2 * part * 2 * half * sum_bytes
        needed = fetched + part * half * (4 + 2 * 2 * NUM_SLOTS * sum_bytes)
        if columns % (2 * half) == 0 and needed + needed // 8 <= limit:
            sizes = range(LANES, min(num_tokens, TOKENS_AT_ONCE) + 1, LANES)
            return ScatterBlocks(half, max(size for size in sizes if num_tokens % size == 0), limit)
    raise ValueError(
        f"{what_fails}: no block of {num_tokens} tokens fits in the {limit // MIB} MiB of vector memory of a "
        f"{generation}; use more micro-batches, or scatter kernel 'xla'."
    )


def layer_scatter_blocks(
    device_kind: str,
    model: ModelConfig,
    *,
    num_devices: int,
    num_tokens: int,
    model_parallel: int,
    item_bytes: int,
    sum_bytes: int,
) -> dict[int, ScatterBlocks]:
    """Return the blocks of a layer's matrices by their columns on a device, for `num_tokens` at a time.

    Raises:
        ValueError: the kernel does not take one of them.
    """
    return {
        columns: scatter_blocks(
            device_kind,
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
    """Raise ValueError for a kernel that is unknown or cannot run on `platform`; shapes are
    `layer_scatter_blocks`'s."""
    if scatter_kernel not in SCATTER_KERNELS:
        raise ValueError(f"scatter_kernel is {scatter_kernel!r}; use one of {', '.join(SCATTER_KERNELS)}.")
    if scatter_kernel == "pallas_tpu" and platform != "tpu":
        raise ValueError(
            f"scatter_kernel is 'pallas_tpu', a Mosaic TPU kernel, and the mesh is of platform {platform!r}; use 'xla'."
        )
