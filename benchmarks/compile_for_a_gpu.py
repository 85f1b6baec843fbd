"""Claim: for one H200, without one: steps fit with every activation kept, nothing in them is slow, attention is fused.

The fused loss is lean, and the default attention is faster than the blocks of scores it replaced unless it is very
bad. The steps are those of `train_on_gpu.py`, compiled afresh by the process that `--dry-run --compile` starts, with
only the products and attention kept, as they would be timed ("dots"), and with everything ("none"). The loss, forward
and gradients, is at 32,768 x 2,560 x 128,256: what it takes beside its arguments and gradients. Of attention, forward
and gradients over 4 x 4,096 tokens at the 8B's heads, what goes through memory is added up over the compiled program:
every kernel's operands and results, of an operand that is only sliced what is sliced. `chunked` cannot take less time
than that at the published 4.8 TB/s; the line says which share of the published peak `pallas_gpu` has to reach to be
faster, all products that it computes below the diagonal counted. Bars: 5 GiB for the loss, a fifth of the peak, no
fault, and three quarters of the GPU's memory, which JAX takes. Nothing is timed, and nothing runs on a GPU.

    make .venv-cuda/ready
    python benchmarks/compile_for_a_gpu.py       one minute on two idle cores
"""

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.train_on_gpu import ATTENTION, CASES, LOSS, LOSS_BYTES_BAR
from benchmarks.verdict import conclude
from runtime.cost.chips import GIB, slice_of
from runtime.cost.compiler import NoCompilerError, environment, outcome_of
from runtime.cost.faults import faults
from runtime.cost.request import DoesNotFit, Request
from runtime.model.computation import Remat

GPU = "1 x H200"
REMATS: tuple[Remat, ...] = ("dots", "none")
PEAK_SHARE_BAR = 0.2
PRODUCTS = 9
"""Of `pallas_gpu`: two forward, seven backward, where it computes the scores twice."""

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = (.*?) ([a-z][a-z\-]*)\((.*)$")
_ARRAY = re.compile(r"\b(pred|[a-z]+(\d+))\[([0-9,]*)\]")
_MOVES_NOTHING = {"parameter", "get-tuple-element", "tuple", "bitcast", "constant", "after-all", "iota"}
_SLICES = {"dynamic-slice", "slice", "gather"}


def bytes_through_memory(text: str) -> int:
    """Of a compiled program for a GPU without loops: each kernel reads its operands and writes its results."""
    computations: dict[str, dict[str, tuple[str, str, str]]] = {}
    name = entry = ""
    for line in text.splitlines():
        if (begin := _COMPUTATION.match(line)) is not None:
            name = begin[2]
            computations[name] = {}
            entry = name if begin[1] else entry
        elif name and (found := _INSTRUCTION.match(line)) is not None:
            computations[name][found[1]] = found.group(2, 3, 4)
    total = 0
    for type_, operation, rest in computations[entry].values():
        if operation in ("while", "call", "conditional"):
            raise ValueError(f"a {operation} in the program: how often what is in it runs is not counted here")
        if operation in _MOVES_NOTHING:
            continue
        called = re.search(r"calls=%([\w.\-]+)", rest)
        inner = computations[called[1]] if called is not None else {}
        read = list(_read(_operands(rest), computations[entry], inner))
        total += _size(type_) + sum(read)
    return total


def _read(names: list[str], outer: dict[str, Any], inner: dict[str, Any]) -> Iterator[int]:
    """Bytes of each operand; of one that a fusion only slices, those of the slices."""
    for index, name in enumerate(names):
        if name not in outer:
            continue
        whole = _size(outer[name][0])
        given = [own for own, row in inner.items() if row[1] == "parameter" and row[2].startswith(f"{index})")]
        users = [row for row in inner.values() if given and given[0] in _operands(row[2])]
        is_sliced = bool(users) and all(row[1] in _SLICES for row in users)
        yield min(whole, sum(_size(row[0]) for row in users)) if is_sliced else whole


def _operands(rest: str) -> list[str]:
    return re.findall(r"%([\w.\-]+)", rest.partition(")")[0])


def _size(type_: str) -> int:
    total = 0
    for dtype, bits, numbers in _ARRAY.findall(type_):
        count = 1
        for number in numbers.split(","):
            count *= int(number or 1)
        total += count * (1 if dtype == "pred" else int(bits) // 8)
    return total


def compiled(what: str) -> dict[str, Any]:
    """In a process of its own: the loss, or attention by the kernel `what`, for one H200."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from runtime.cost.gpu_target import target_config
    from runtime.kernels.attention import attend
    from runtime.kernels.cross_entropy import linear_cross_entropy
    from runtime.parallel.compiler_options import compiler_options

    one = slice_of(GPU)
    described = topologies.get_topology_desc(
        platform="cuda", target_config=target_config(one.generation.name), topology=one.topology
    )
    mesh = Mesh(np.array(described.devices), ("one",))
    place = NamedSharding(mesh, PartitionSpec())

    def array(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=place)

    def loss(hidden: Any, head: Any, labels: Any, weights: Any) -> Any:
        z_loss = jnp.float32(1e-4)
        kernel = "chunked_wide"
        return linear_cross_entropy(hidden, head, labels, weights=weights, z_loss=z_loss, kernel=kernel).objective

    def attention(query: Any, key: Any, value: Any, segment_ids: Any) -> Any:
        return attend(query, key, value, segment_ids, kernel=what).astype(jnp.float32).sum()

    if what == "loss":
        tokens, hidden_size, vocab_size = LOSS
        arguments = [array((tokens, hidden_size), jnp.bfloat16), array((hidden_size, vocab_size), jnp.bfloat16)]
        arguments += [array((tokens,), jnp.int32), array((tokens,), jnp.float32)]
        program: Any = jax.value_and_grad(loss, argnums=(0, 1))
    else:
        sequences, tokens, heads, kv_heads, head_dim = ATTENTION
        arguments = [array((sequences, tokens, count, head_dim), jnp.bfloat16) for count in (heads, kv_heads, kv_heads)]
        arguments.append(array((sequences, tokens), jnp.int32))
        program = jax.value_and_grad(attention, argnums=(0, 1, 2))
    # Under shard_map, as in a train step: block sizes are chosen by the kind of its mesh.
    everywhere = PartitionSpec()
    mapped = jax.shard_map(program, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)
    done: Any = jax.jit(mapped, compiler_options=compiler_options(mesh)).lower(*arguments).compile()
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
    share = flops / gpu.peak_flops / floor_seconds
    line = {
        "claim": "for an H200: steps fit with all activations and hold nothing slow; the loss takes 5 GiB at most; a "
        "fifth of the peak is enough for pallas_gpu to be faster than chunked can be",
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
