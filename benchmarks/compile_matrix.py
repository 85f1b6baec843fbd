"""Compile matrix: whether every kernel and size of model compiles for every TPU and GPU, and fits.

`python -m benchmarks.compile_matrix [--kernels | --models]` compiles, without an accelerator, each kernel for v4, v5e,
v5p, v6e and two GPUs at the shapes of the 8B model, and the train step of five sizes for suitable slices and hosts. It
prints the tables of docs/explanation/tpu.md and docs/explanation/gpu.md; earlier programs come from the cache. Exit
code 1 if anything failed, does not fit, or has a fault.
"""

import argparse
import datetime
import json
import subprocess
import sys

from runtime.cost.chips import GENERATIONS, GIB, GPUS, slice_of
from runtime.cost.compiler import ROOT, environment, outcome_of
from runtime.cost.faults import faults
from runtime.cost.request import CompileRequest, DoesNotFit
from runtime.cost.roofline import flops_of, roofline_of
from runtime.model.llama.config import LlamaConfig
from runtime.platform.remat import Remat

CHIPS = (*GENERATIONS, "H100", "H200")
KERNELS = {
    "splash": GENERATIONS,
    "tokamax": ("H100", "H200"),
    "chunked_wide": CHIPS,
    "mosaic_gpu": ("H100", "H200"),
    "scattered_product": GENERATIONS,
    "paged_tpu": GENERATIONS,
    "paged_gpu": GPUS,
}
"""Kernels, and the chips that they are for."""
REFUSED = {("scattered_product", "v4"): "no block of 8192 tokens fits in the 16 MiB of vector memory of a v4"}
"""Error of a kernel on a chip where it does not take the 8B's shapes."""
VOCAB_SIZE, SEQUENCE_LENGTH = 128_256, 4096


def _llama(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, head_dim: int) -> LlamaConfig:
    return LlamaConfig(VOCAB_SIZE, hidden, intermediate, layers, heads, kv_heads, head_dim, SEQUENCE_LENGTH)


MODELS = {
    "125M": _llama(768, 3072, 12, 12, 12, 64),
    "400M": _llama(1024, 4096, 24, 16, 8, 64),
    "1.5B": _llama(2048, 8192, 20, 16, 8, 128),
    "8B": _llama(4096, 14_336, 32, 32, 8, 128),
    "70B": _llama(8192, 28_672, 80, 64, 8, 128),
}
Trial = tuple[str, str, int, Remat]
TRIALS: tuple[Trial, ...] = (  # model, machines, sequences, remat
    ("125M", "v5litepod-1", 16, "full"),  # over four chips it has faults: 768 columns leave each no whole tile of 128
    ("400M", "v5litepod-16", 256, "full"),
    ("1.5B", "v6e-16", 256, "full"),
    ("8B", "v5p-256", 512, "full"),
    ("70B", "v5p-1024", 2048, "full"),
    ("125M", "1 x H200", 8, "dots"),
    ("400M", "1 x H200", 8, "dots"),
    ("1.5B", "1 x H200", 4, "dots"),
    ("8B", "8 x H200", 64, "full"),
    ("70B", "16 x 8 x H200", 512, "full"),
)


def _kernel_cell(chip: str, kernel: str) -> str:
    """Return the peak memory of a kernel with its gradients on one chip, or its expected refusal, or its failure."""
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.compile_kernel", chip, kernel],
        capture_output=True,
        text=True,
        # Otherwise JAX's note on its own frames comes after the error.
        env=environment("gpu" if chip in GPUS else "tpu") | {"JAX_TRACEBACK_FILTERING": "off"},
        cwd=ROOT,
    )
    if finished.returncode:
        error = finished.stderr.strip().splitlines()[-1]
        refusal = REFUSED.get((kernel, chip))
        return f"refuses: {refusal}" if refusal is not None and refusal in error else f"fails: {error[:120]}"
    found = json.loads(finished.stdout.splitlines()[-1])
    spilled = sum(row["spilled_bytes"] for row in found.get("registers", {}).values())
    size = f"{found['peak_memory_in_bytes'] / GIB:.2f} GiB"
    return f"fails: {spilled} bytes of registers spilled, {size}" if spilled else size


def _print_kernels() -> bool:
    print(f"| kernel, with gradients | {' | '.join(CHIPS)} |\n|---|{'---|' * len(CHIPS)}")
    all_good = True
    for kernel, chips in KERNELS.items():
        cells = []
        for chip in CHIPS:
            cells.append(_kernel_cell(chip, kernel) if chip in chips else "")
            print(f"{kernel} {chip}: {cells[-1] or 'not for it'}", file=sys.stderr, flush=True)
        all_good &= not any(cell.startswith("fails") for cell in cells)
        print(f"| `{kernel}` | {' | '.join(cells)} |", flush=True)
    return all_good


def _print_models() -> tuple[bool, int]:
    """Print the table; return whether all compile and fit, and how many faults their programs have."""
    print("| model | on | sequences | memory a chip | exposed | at most MFU (causal) | compile | faults |")
    print("|---|---|---|---|---|---|---|---|")
    all_good, num_faults = True, 0
    for name, slice_name, batch, remat in TRIALS:
        attention = "splash" if slice_of(slice_name).generation.platform == "tpu" else "tokamax"
        request = CompileRequest(
            "train", slice_name, 1, MODELS[name], SEQUENCE_LENGTH, batch, 0, "bfloat16", attention, "chunked_wide",
            remat=remat, reduce_dtype="bfloat16",
        )  # fmt: skip
        print(f"{name} on {slice_name} ...", file=sys.stderr, flush=True)
        try:
            outcome, _ = outcome_of(request)
        except RuntimeError as error:
            all_good = False
            print(
                f"| {name} | {slice_name} | {batch} | fails: {str(error).splitlines()[-1][:120]} | | | | |", flush=True
            )
            continue
        if isinstance(outcome, DoesNotFit):
            all_good = False
            print(f"| {name} | {slice_name} | {batch} | {outcome.message[:80]} | | | | |", flush=True)
            continue
        roofline = roofline_of(request, outcome)
        found = faults(request, outcome)
        num_faults += len(found)
        peak = flops_of(request).causal / flops_of(request).executed * roofline.products_seconds / roofline.step_seconds
        memory, seconds = f"{outcome.peak_memory_in_bytes / GIB:.2f} GiB", f"{outcome.compile_seconds:.0f} s"
        cells = [name, slice_name, f"{batch:,}", memory, f"{roofline.exposed_share:.1%}", f"{peak:.1%}", seconds]
        print(f"| {' | '.join(cells)} | {'; '.join(found) or 'none'} |", flush=True)
    return all_good, num_faults


def main() -> int:
    """Print both tables and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", action="store_true", help="only the kernels")
    parser.add_argument("--models", action="store_true", help="only the models")
    arguments = parser.parse_args()
    kernels_compiled = True if arguments.models else _print_kernels()
    models_compiled, num_faults = (True, None) if arguments.kernels else _print_models()
    all_compiled = kernels_compiled and models_compiled
    date = datetime.date.today().isoformat()
    print(json.dumps({"date": date, "all_compiled": all_compiled, "num_faults": num_faults}))
    return 0 if all_compiled and not num_faults else 1


if __name__ == "__main__":
    sys.exit(main())
