"""Run by `matrix` in a process of its own: compiles one kernel with its gradients for one chip, at 8B shapes.

`python -m runtime.cost.compile_kernel CHIP KERNEL` prints one line of JSON: the peak memory, and of a GPU's attention
kernel what each thread needs.
"""

import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from runtime.cost.described_devices import asked_for, mesh_of_one_chip
from runtime.cost.kernel_alone import (
    AttentionShape,
    LossShape,
    arguments_of,
    attention_with_gradients,
    jit_like_a_step,
    loss_with_gradients,
)
from runtime.cost.registers import registers_of, registers_told, toolkit
from runtime.kernels.attention import attend
from runtime.kernels.cross_entropy import linear_cross_entropy

ATTENTION_SHAPE = AttentionShape(num_sequences=2, sequence_length=4096, num_heads=32, num_kv_heads=8, head_dim=128)
LOSS_SHAPE = LossShape(num_tokens=2 * 4096, hidden_size=4096, vocab_size=128_256)
ATTENTION = ("splash", "pallas_gpu", "tokamax")
ASSEMBLED = ("mha_forward", "mha_backward")
"""Names of the kernels that `pallas_gpu` is made of."""
OF_TOKAMAX = ("forward", "backward of queries", "backward of keys and values")
"""What its kernels do, in the order in which they run; all have one name."""
WRITE_ASSEMBLY = {
    "xla_dump_emitter_re": "ptx",
    # Else XLA writes for the assembler that is linked into it, and from jaxlib 0.12 on that one reads a newer language
    # than the package's `ptxas`.
    "xla_gpu_libnvjitlink_mode": "LIB_NV_JIT_LINK_MODE_DISABLED",
}


def compiled_kernel(chip: str, kernel: str, *, head_dim: int = ATTENTION_SHAPE.head_dim) -> dict[str, Any]:
    """Of the kernel's value and gradients on one chip: `peak_memory_in_bytes`, and `registers` by kernel of a GPU."""
    mesh = mesh_of_one_chip(chip)
    if kernel in ATTENTION:
        program = attention_with_gradients(partial(attend, kernel=kernel))
        arguments = arguments_of(ATTENTION_SHAPE._replace(head_dim=head_dim), mesh)
    else:
        program = loss_with_gradients(partial(linear_cross_entropy, kernel=kernel))
        arguments = arguments_of(LOSS_SHAPE, mesh)
    with asked_for(mesh, kernel):
        lowered = jit_like_a_step(program, mesh).lower(*arguments)
    if kernel not in ("pallas_gpu", "tokamax"):
        return {"peak_memory_in_bytes": _peak(lowered.compile())}
    with tempfile.TemporaryDirectory() as folder:
        if kernel == "tokamax":  # its kernels are assembled by Mosaic, which is told by its environment
            os.environ.update(MOSAIC_GPU_DUMP_PTXAS="1", MOSAIC_GPU_DUMP_TO=folder)
            peak = _peak(lowered.compile())
            words = [path.read_text() for path in sorted(Path(folder).glob("*.ptxas"))]
            of_each = [row for text in words for row in registers_told(text).values()]
            rows = dict(zip(OF_TOKAMAX, of_each, strict=True))
            return {"peak_memory_in_bytes": peak, "registers": {name: row._asdict() for name, row in rows.items()}}
        # Else XLA writes for the first ptxas in PATH, which may be of another CUDA and read a newer language.
        options = {**WRITE_ASSEMBLY, "xla_gpu_cuda_data_dir": str(toolkit()), "xla_dump_to": folder}
        peak = _peak(lowered.compile(compiler_options=options))
        registers = registers_of(Path(folder), ASSEMBLED)
    return {"peak_memory_in_bytes": peak, "registers": {name: row._asdict() for name, row in registers.items()}}


def _peak(program: Any) -> int:
    return int(program.memory_analysis().peak_memory_in_bytes)


if __name__ == "__main__":
    chip_name, kernel_name, *sizes = sys.argv[1:]
    print(json.dumps(compiled_kernel(chip_name, kernel_name, **({"head_dim": int(sizes[0])} if sizes else {}))))
