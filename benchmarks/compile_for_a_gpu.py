"""Claim: for one H200, without one: steps fit with every activation kept, nothing in them is slow, attention is fused.

The fused loss is lean, and the default attention is faster than the blocks of scores it replaced unless it is very
bad. The steps are those of `train_on_gpu.py`, compiled afresh by the process that `--dry-run --compile` starts, with
only the products and attention kept, as they would be timed ("dots"), and with everything ("none"). The loss, forward
and gradients, is at 32,768 x 2,560 x 128,256: what it takes beside its arguments and gradients. Of attention, forward
and gradients over 4 x 4,096 tokens at the 8B's heads, what goes through memory is added up over the compiled program:
every kernel's operands and results, of an operand that is only sliced what is sliced. `chunked` cannot take less time
than that at the published 4.8 TB/s; the line says which share of the published peak `pallas_gpu` has to reach to be
faster, all products that it computes below the diagonal counted. Bars: 5 GiB for the loss, a quarter of the peak, no
fault, and three quarters of the GPU's memory, which JAX takes. Nothing is timed, and nothing runs on a GPU.

    make .venv-cuda/ready
    python benchmarks/compile_for_a_gpu.py       one minute on two idle cores
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.train_on_gpu import ATTENTION, CASES, LOSS, LOSS_BYTES_BAR
from benchmarks.verdict import conclude
from runtime.cost.chips import GIB, slice_of
from runtime.cost.compiler import NoCompilerError, environment, outcome_of
from runtime.cost.described_devices import mesh_of_one_chip
from runtime.cost.faults import faults
from runtime.cost.kernel_alone import (
    arguments_of,
    attention_with_gradients,
    jit_like_a_step,
    loss_with_gradients,
)
from runtime.cost.program import Instruction, Program
from runtime.cost.request import DoesNotFit, Request
from runtime.kernels.attention import attend
from runtime.kernels.cross_entropy import linear_cross_entropy
from runtime.model.computation import Remat

GPU = "1 x H200"
REMATS: tuple[Remat, ...] = ("dots", "none")
PEAK_SHARE_BAR = 0.25
PRODUCTS = 9
"""Of `pallas_gpu`: two forward, seven backward, where it computes the scores twice."""

_MOVES_NOTHING = {"parameter", "get-tuple-element", "tuple", "bitcast", "constant", "after-all", "iota"}
_SLICES = {"dynamic-slice", "slice", "gather"}


def bytes_through_memory(text: str) -> int:
    """Of a compiled program for a GPU without loops: each kernel reads its operands and writes its results."""
    program = Program.read(text)
    kernels = program.computations[program.entry]
    total = 0
    for kernel in kernels.values():
        if kernel.operation in ("while", "call", "conditional"):
            raise ValueError(f"a {kernel.operation} in the program: how often what is in it runs is not counted here")
        if kernel.operation not in _MOVES_NOTHING:
            inner = program.computations[kernel.computation("calls")] if kernel.operation == "fusion" else {}
            total += kernel.size_in_bytes + sum(_read(kernel, kernels, inner))
    return total


def _read(kernel: Instruction, outer: dict[str, Instruction], inner: dict[str, Instruction]) -> Iterator[int]:
    """Bytes of each operand; of one that a fusion only slices, those of the slices."""
    for index, name in enumerate(kernel.operands):
        if name not in outer:
            continue
        given = [
            row.name for row in inner.values() if row.operation == "parameter" and row.rest.startswith(f"{index})")
        ]
        users = [row for row in inner.values() if given and given[0] in row.operands]
        is_sliced = bool(users) and all(row.operation in _SLICES for row in users)
        whole = outer[name].size_in_bytes
        yield min(whole, sum(row.size_in_bytes for row in users)) if is_sliced else whole


def compiled(what: str) -> dict[str, Any]:
    """In a process of its own: the loss, or attention by the kernel `what`, for one H200."""
    mesh = mesh_of_one_chip(slice_of(GPU).generation.name)
    if what == "loss":
        program = loss_with_gradients(partial(linear_cross_entropy, kernel="chunked_wide"))
        arguments = arguments_of(LOSS, mesh)
    else:
        program = attention_with_gradients(partial(attend, kernel=what))
        arguments = arguments_of(ATTENTION, mesh)
    done: Any = jit_like_a_step(program, mesh).lower(*arguments).compile()
    moved = None if what == "loss" else bytes_through_memory(done.as_text())
    return {"temporary_bytes": done.memory_analysis().temp_size_in_bytes, "moved_bytes": moved}


def in_its_own_process(what: str) -> dict[str, Any]:
    finished = subprocess.run(
        [sys.executable, __file__, "--compile", what], capture_output=True, text=True, env=environment("gpu")
    )
    if finished.returncode:
        raise SystemExit(f"compiling {what} failed:\n{finished.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return found


def steps() -> dict[str, dict[str, Any]]:
    """Each case of the benchmark that would time them: what it needs, and what is wrong with it."""
    found = {}
    gets = slice_of(GPU).generation.hbm_in_bytes
    for (model, case), remat in itertools.product(CASES.items(), REMATS):
        name = f"{model}, {remat}"
        request = Request(
            "train", GPU, 1, case.model, case.model.max_position_embeddings, case.sequences, 0, "bfloat16",
            "pallas_gpu", "chunked_wide", remat=remat,
        )  # fmt: skip
        outcome, _ = outcome_of(request)
        if isinstance(outcome, DoesNotFit):
            found[name] = {"does_not_fit": outcome.message, "holds": False}
        else:
            wrong = faults(request, outcome)
            memory = round(outcome.peak_memory_in_bytes / GIB, 2)
            seconds = outcome.compile_seconds
            holds = not wrong and outcome.peak_memory_in_bytes <= gets
            found[name] = {"gpu_gib": memory, "compile_seconds": seconds, "faults": wrong, "holds": holds}
        print(name, json.dumps(found[name]), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", choices=("loss", "chunked", "pallas_gpu"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.compile:
        print(json.dumps(compiled(arguments.compile)))
        return
    with tempfile.TemporaryDirectory() as cache:
        os.environ["MARIN_DAG_CACHE"] = cache
        try:
            of_steps = steps()
        except NoCompilerError as error:
            raise SystemExit(str(error)) from error
    loss, blocks, fused = (in_its_own_process(what) for what in ("loss", "chunked", "pallas_gpu"))
    gpu = slice_of(GPU).generation
    sequences, tokens, heads, _, head_dim = ATTENTION
    flops = PRODUCTS * sequences * heads * tokens**2 * head_dim  # a product and a sum each, half of the square
    floor_seconds = blocks["moved_bytes"] / gpu.hbm_bytes_per_second
    share = flops / gpu.bfloat16_flops / floor_seconds
    line = {
        "claim": "for an H200: steps fit with all activations and hold nothing slow; the loss takes 5 GiB at most; a "
        "quarter of the peak is enough for pallas_gpu to be faster than chunked can be",
        "steps": of_steps,
        "loss_gib": round(loss["temporary_bytes"] / GIB, 2),
        "attention_gib": {
            "chunked": round(blocks["temporary_bytes"] / GIB, 2),
            "pallas_gpu": round(fused["temporary_bytes"] / GIB, 2),
        },
        "attention_moved_gb": {
            "chunked": round(blocks["moved_bytes"] / 1e9, 1),
            "pallas_gpu": round(fused["moved_bytes"] / 1e9, 1),
        },
        "chunked_at_least_seconds": round(floor_seconds, 4),
        "share_of_peak_to_be_faster": round(share, 3),
        "bars": {"loss_gib": LOSS_BYTES_BAR / GIB, "share_of_peak": PEAK_SHARE_BAR},
        "holds": all(step["holds"] for step in of_steps.values())
        and loss["temporary_bytes"] <= LOSS_BYTES_BAR
        and share <= PEAK_SHARE_BAR,
        "load": round(os.getloadavg()[0], 1),
    }
    conclude(line)


if __name__ == "__main__":
    main()
