"""Claim: for one H200, without one: steps fit with every activation kept, nothing in them is slow, the loss is lean.

The steps are those of `train_on_gpu.py`, with the kernels that are the default there, compiled afresh by the process
that `--dry-run --compile` starts: with every activation kept, as they are timed ("none"), and with products and
attention only ("dots"). The loss, forward and gradients, is at 32,768 x 2,560 x 128,256: what it takes beside its
arguments and gradients. Bars: 5 GiB for the loss, no fault, and three quarters of the GPU's memory, which JAX takes.
Nothing is timed, and nothing runs on a GPU.

    make .venv-cuda/ready
    python benchmarks/compile_for_a_gpu.py       five minutes on two idle cores
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.kernel_alone import (
    arguments_of,
    jit_like_a_step,
    loss_with_gradients,
    mesh_of_one_chip,
)
from benchmarks.train_on_gpu import CASES, LOSS, LOSS_BYTES_BAR
from benchmarks.verdict import conclude
from runtime.cost.chips import GIB, slice_of
from runtime.cost.compiler import NoCompilerError, environment, outcome_of
from runtime.cost.faults import faults
from runtime.cost.request import CompileRequest, DoesNotFit
from runtime.kernels.cross_entropy import linear_cross_entropy
from runtime.kernels.kernel_shape import Devices, KernelShape
from runtime.platform.remat import Remat
from runtime.training.kernel_choice import default_kernels

GPU = "1 x H200"
REMATS: tuple[Remat, ...] = ("none", "dots")


def loss_bytes() -> int:
    """Return the memory of the loss beside its arguments and gradients on one H200, compiled in its own process."""
    mesh = mesh_of_one_chip(slice_of(GPU).generation.name)
    program = loss_with_gradients(partial(linear_cross_entropy, kernel="mosaic_gpu"))
    compiled: Any = jit_like_a_step(program, mesh).lower(*arguments_of(LOSS, mesh)).compile()
    return int(compiled.memory_analysis().temp_size_in_bytes)


def in_its_own_process() -> int:
    finished = subprocess.run(
        [sys.executable, __file__, "--loss"], capture_output=True, text=True, env=environment("gpu")
    )
    if finished.returncode:
        raise SystemExit(f"compiling the loss failed:\n{finished.stderr[-3000:]}")
    return int(finished.stdout.splitlines()[-1])


def steps() -> dict[str, dict[str, Any]]:
    """Return the memory and the faults of each step that `train_on_gpu.py` times."""
    found = {}
    gets = slice_of(GPU).generation.hbm_in_bytes
    for (model, case), remat in itertools.product(CASES.items(), REMATS):
        name = f"{model}, {remat}"
        length, rows = case.model.max_position_embeddings, case.sequences
        devices = Devices("gpu", slice_of(GPU).generation.name, 1)
        shape = KernelShape.of(devices, case.model, num_rows=rows, sequence_length=length, compute_dtype="bfloat16")
        kernels = default_kernels(shape)
        request = CompileRequest(
            "train", GPU, 1, case.model, length, rows, 0, "bfloat16", kernels.attention, kernels.loss, remat=remat
        )
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
    parser.add_argument("--loss", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.loss:
        print(loss_bytes())
        return
    with tempfile.TemporaryDirectory() as cache:
        os.environ["MARIN_DAG_CACHE"] = cache
        try:
            of_steps = steps()
        except NoCompilerError as error:
            raise SystemExit(str(error)) from error
    of_loss = in_its_own_process()
    line = {
        "claim": "for an H200: steps fit with all activations and hold nothing slow; the loss takes 5 GiB at most",
        "steps": of_steps,
        "loss_gib": round(of_loss / GIB, 2),
        "bars": {"loss_gib": LOSS_BYTES_BAR / GIB},
        "holds": all(step["holds"] for step in of_steps.values()) and of_loss <= LOSS_BYTES_BAR,
        "load": round(os.getloadavg()[0], 1),
    }
    conclude(line)


if __name__ == "__main__":
    main()
