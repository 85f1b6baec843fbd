"""Compile one kernel with its gradients for one chip, at 8B shapes; run by `compile_matrix` in a process of its own.

The kernel that forms and scatters a gradient is compiled for a ring of 16.

`python -m benchmarks.compile_kernel CHIP KERNEL [SIZE]` prints one line of JSON: the peak memory, for a
TPU's attention the bundles that docs/explanation/tpu.md quotes, and for a GPU's kernels the registers of a thread. SIZE
is the head size of attention, the hidden size of a loss, or the columns of a gradient.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kernel_alone import (
    RING,
    AttentionShape,
    CacheShape,
    LossShape,
    ScatterShape,
    arguments_of,
    attention_with_gradients,
    decoding,
    jit_like_a_step,
    loss_with_gradients,
    mesh_of_16_chips,
    mesh_of_one_chip,
)
from benchmarks.kernel_bundles import figures_of_splash, schedules_of, write_schedules
from benchmarks.kernel_registers import Registers, registers_in
from runtime.cost.described_devices import as_default
from runtime.kernels import names
from runtime.kernels.attention import attend
from runtime.kernels.block_sizes import splash_blocks
from runtime.kernels.cross_entropy import linear_cross_entropy
from runtime.kernels.scattered_product_tpu import scattered_product

ATTENTION_SHAPE = AttentionShape(num_sequences=2, sequence_length=4096, num_heads=32, num_kv_heads=8, head_dim=128)
LOSS_SHAPE = LossShape(num_tokens=2 * 4096, hidden_size=4096, vocab_size=128_256)
SCATTER_SHAPE = ScatterShape(num_tokens=2 * 4096, scattered=4096, columns=14_336)
CACHE_SHAPE = CacheShape(num_layers=32, slots=32, num_heads=32, num_kv_heads=8, capacity=1024, head_dim=128)
PAGED = ("paged_tpu", "paged_gpu")
ATTENTION = ("splash", "tokamax")
OF_TOKAMAX = ("forward", "backward of queries", "backward of keys and values")
"""Its kernels in the order in which they run; all have one name."""


def compiled_kernel(chip: str, kernel: str, size: int | None = None) -> dict[str, Any]:
    """Return `peak_memory_in_bytes`, `figures` of a TPU's attention kernel, and `registers` of a GPU's by name."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        if kernel == "splash":
            write_schedules(folder)
        mesh = mesh_of_16_chips(chip) if kernel == "scattered_product" else mesh_of_one_chip(chip)
        shape, program = _at_size(kernel, size)
        with as_default(mesh):
            donated = (0, 1) if kernel in PAGED else ()
            lowered = jit_like_a_step(program, mesh, donated=donated).lower(*arguments_of(shape, mesh))
        match shape, kernel:
            case AttentionShape(sequence_length=length, head_dim=head_dim), "splash":
                compiled = lowered.compile()
                schedules = schedules_of(Path(folder), compiled.as_text(), names.SPLASH)
                blocks = splash_blocks(f"TPU {chip}", head_dim=head_dim, num_rows=length, item_bytes=2)
                found["figures"] = figures_of_splash(chip, blocks, length, schedules)
            case _, "tokamax" | "mosaic_gpu":  # Mosaic assembles such kernels; its environment says where
                os.environ.update(MOSAIC_GPU_DUMP_PTXAS="1", MOSAIC_GPU_DUMP_TO=folder)
                compiled = lowered.compile()
                words = [path.read_text() for path in sorted(Path(folder).glob("*.ptxas"))]
                of_each = [row for text in words for row in registers_in(text).values()]
                called = OF_TOKAMAX if kernel == "tokamax" else (names.RATIOS,)
                found["registers"] = _named(dict(zip(called, of_each, strict=True)))
            case _:
                compiled = lowered.compile()
    return {"peak_memory_in_bytes": int(compiled.memory_analysis().peak_memory_in_bytes), **found}


def _at_size(
    kernel: str, size: int | None
) -> tuple[AttentionShape | CacheShape | LossShape | ScatterShape, Callable[..., Any]]:
    if kernel in PAGED:
        return CACHE_SHAPE._replace(head_dim=size or CACHE_SHAPE.head_dim), decoding(kernel)
    if kernel in ATTENTION:
        attention = ATTENTION_SHAPE._replace(head_dim=size or ATTENTION_SHAPE.head_dim)
        return attention, attention_with_gradients(partial(attend, kernel=kernel))
    if kernel == "scattered_product":
        sides = SCATTER_SHAPE._replace(columns=size or SCATTER_SHAPE.columns)
        return sides, partial(scattered_product, axis=RING, sum_dtype=np.dtype("bfloat16"))
    loss = LOSS_SHAPE._replace(hidden_size=size or LOSS_SHAPE.hidden_size)
    return loss, loss_with_gradients(partial(linear_cross_entropy, kernel=kernel))


def _named(registers: dict[str, Registers]) -> dict[str, dict[str, Any]]:
    return {name: row._asdict() for name, row in registers.items()}


if __name__ == "__main__":
    chip_name, kernel_name, *sizes = sys.argv[1:]
    print(json.dumps(compiled_kernel(chip_name, kernel_name, int(sizes[0]) if sizes else None)))
