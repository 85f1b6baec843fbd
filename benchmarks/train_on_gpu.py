"""Claim: on one H200 in bfloat16 small and middling Llamas train faster than with torch, and the fused loss is lean.

Models of 125M, 400M and 1.5B parameters and layers of the 8B's shape, sequences of 4,096 tokens: tokens a second and
MFU, with causal attention counted once as half and once as the whole square, against transformers + torch.compile with
SDPA under autocast (float32 parameters and moments, as ours). Both keep every activation; with --remats also ours that
keeps the products with weights and attention ("dots"), and nothing ("full"), against which no bar is held. Then the
loss alone, forward and gradients, at 32,768 x 2,560 x 128,256; and attention alone, forward and gradients over packed
documents at the 8B's shape, by each attention kernel for a GPU. One that cannot run is reported as such, and no other
is run in its place. Each contestant runs in a process of its own, and they use the GPU one after the other, so that
neither holds the other's memory or takes its time; the next ones are loaded and lowered meanwhile, on the host alone.

Bars: 42 % causal MFU at 125M and 400M, 50 % at 1.5B, ahead of torch in each; the loss in 100 ms and 5 GiB.

    python benchmarks/train_on_gpu.py            needs a GPU, jax and torch that see it, and the extra tokamax
    python benchmarks/train_on_gpu.py --smoke    on a CPU and in small: shows that it works and claims nothing
"""

import argparse
import dataclasses
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.in_turn import InTurn, Measure, wait_for_turn
from benchmarks.kernel_alone import AttentionShape, LossShape
from benchmarks.verdict import conclude
from runtime.model.config import LLAMA2_ROPE
from runtime.model.llama.config import LlamaConfig

if TYPE_CHECKING:
    from runtime.platform.remat import Remat

PEAK_FLOPS = {"NVIDIA H200": 989e12, "NVIDIA H100 80GB HBM3": 989e12}
"""bfloat16 without sparsity, as published."""
LOSS_SECONDS_BAR, LOSS_BYTES_BAR = 0.1, 5 * 2**30
SMOKE_PEAK = 1e12  # so that the arithmetic has something to divide by; no figure of a smoke run is a measurement


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, its batch, and the share of the peak that it must reach."""

    model: LlamaConfig
    sequences: int
    bar: float | None

    @property
    def tokens(self) -> int:
        return self.sequences * self.model.max_position_embeddings


def _llama(hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, head_dim: int) -> LlamaConfig:
    return LlamaConfig(128_256, hidden, intermediate, layers, heads, kv_heads, head_dim, 4096)


CASES = {
    "125M": Case(_llama(768, 3072, 12, 12, 12, 64), 8, 0.42),
    "400M": Case(_llama(1024, 4096, 24, 16, 8, 64), 8, 0.42),
    "1.5B": Case(_llama(2048, 8192, 20, 16, 8, 128), 4, 0.50),
    # Two layers and a small head: what is measured is the layer.
    "8B layers": Case(dataclasses.replace(_llama(4096, 14_336, 2, 32, 8, 128), vocab_size=1024), 4, None),
}
LOSS = LossShape(num_tokens=32_768, hidden_size=2_560, vocab_size=128_256)
ATTENTION = AttentionShape(num_sequences=4, sequence_length=4096, num_heads=32, num_kv_heads=8, head_dim=128)
ATTENTION_KERNELS = ("chunked", "tokamax")
DOCUMENT_TOKENS = 500
"""Average length of the packed documents."""
REMAT: dict[str, "Remat"] = {"ours": "none", "ours, dots": "dots", "ours, full": "full"}
SDPA: dict[str, Any] = {"attn_implementation": "sdpa"}
"""A field of transformers' config, which takes it and does not declare it."""
SMOKE_CASES = {"smoke": Case(LlamaConfig(512, 64, 128, 2, 4, 2, 16, 128), 2, None)}
SMOKE_LOSS = LossShape(256, 32, 512)
SMOKE_ATTENTION = AttentionShape(2, 1024, 4, 2, 64)
SMOKE_ATTENTION_KERNELS = ("reference", "chunked", "tokamax")  # the last cannot run there, and it says so


def timed(step: Callable[[], Any], *, turns: int) -> float:
    """Return the median seconds of a call that waits for its result, after two that compile and warm."""
    step()
    step()
    seconds = []
    for _ in range(turns):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def batch(case: Case) -> Any:
    import numpy as np

    shape = case.sequences, case.model.max_position_embeddings
    return np.random.default_rng(0).integers(1, case.model.vocab_size, shape, dtype=np.int32)


def ours(case: Case, turns: int, attention_kernel: str | None, remat: "Remat") -> Measure:
    """Measure our train step on one device."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding

    from runtime.kernels.kernel_shape import KernelShape
    from runtime.model.rotary import inverse_frequencies
    from runtime.parallel.mesh import TOKEN_AXES, devices_of, make_mesh
    from runtime.parallel.mesh_shape import MeshShape
    from runtime.training.kernel_choice import default_kernels
    from runtime.training.state import initial_state
    from runtime.training.train_step import Hyperparameters, ProgramOptions, train_program

    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    tokens = batch(case)
    rows, length = tokens.shape
    shape = KernelShape.of(
        devices_of(mesh), case.model, num_rows=rows, sequence_length=length, compute_dtype="bfloat16"
    )
    kernels = default_kernels(shape)
    attention = attention_kernel or kernels.attention
    options = ProgramOptions(
        attention_kernel=attention, loss_kernel=kernels.loss, compute_dtype="bfloat16", remat=remat
    )
    hyperparameters = Hyperparameters(1e-4, 0.1, 0.9, 0.95, 1e-8, 1.0, 0.0).packed()
    frequencies = inverse_frequencies(LLAMA2_ROPE, case.model.head_dim)
    program: Any = train_program(case.model, mesh, options, donate=True)
    described = jax.eval_shape(lambda: initial_state(case.model, 0, mesh))
    lowered = program.lower(described, tokens, np.zeros_like(tokens), hyperparameters, frequencies)

    def measure() -> dict[str, Any]:
        step, state = lowered.compile(), initial_state(case.model, 0, mesh)
        # As torch's are, and as a run places its next batch while this one is computed.
        placed = jax.device_put((tokens, np.zeros_like(tokens)), NamedSharding(mesh, TOKEN_AXES))
        losses = []

        def update() -> None:
            nonlocal state
            state, metrics = step(state, *placed, hyperparameters, frequencies)
            losses.append(float(metrics.loss))

        return {"seconds": timed(update, turns=turns), "loss": losses[0], "kernels": [attention, kernels.loss]}

    return measure


def with_torch(case: Case, turns: int) -> Measure:
    """Measure transformers + torch.compile, SDPA, fused AdamW, autocast."""
    import torch
    import transformers

    model, device = case.model, "cuda" if torch.cuda.is_available() else "cpu"
    config = transformers.LlamaConfig(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_hidden_layers=model.num_hidden_layers,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.num_key_value_heads,
        head_dim=model.head_dim,
        max_position_embeddings=model.max_position_embeddings,
        tie_word_embeddings=False,
        use_cache=False,
        **SDPA,
    )

    def measure() -> dict[str, Any]:
        torch.manual_seed(0)
        with torch.device(device):
            network = transformers.LlamaForCausalLM(config).train()
        run = torch.compile(network)
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        ids = torch.from_numpy(batch(case).astype("int64")).to(device)
        losses = []

        def update() -> None:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = run(input_ids=ids, labels=ids).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            losses.append(float(loss.detach()))

        return {"seconds": timed(update, turns=turns), "loss": losses[0]}

    return measure


def fused_loss(shape: LossShape, turns: int) -> Measure:
    """Measure forward and gradients of the loss, and its memory beyond its arguments and gradients."""
    import jax
    import jax.numpy as jnp

    from benchmarks.kernel_alone import arguments_of, jit_like_a_step, loss_with_gradients
    from runtime.kernels.cross_entropy import linear_cross_entropy
    from runtime.kernels.kernel_shape import KernelShape
    from runtime.parallel.mesh import device_kind, make_mesh, platform
    from runtime.parallel.mesh_shape import MeshShape
    from runtime.training.kernel_choice import default_kernels

    tokens, hidden_size, vocab_size = shape
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    kernel_shape = KernelShape(
        platform(mesh),
        device_kind(mesh),
        head_dim=128,
        query_length=4096,
        first_row=0,
        compute_dtype="bfloat16",
        **shape._asdict(),
    )
    kernel = default_kernels(kernel_shape).loss
    lowered = jit_like_a_step(loss_with_gradients(partial(linear_cross_entropy, kernel=kernel)), mesh).lower(
        *arguments_of(shape, mesh)
    )

    def measure() -> dict[str, Any]:
        program = lowered.compile()
        keys = jax.random.split(jax.random.key(0), 3)
        hidden = jax.random.normal(keys[0], (tokens, hidden_size), jnp.bfloat16)
        head = 0.02 * jax.random.normal(keys[1], (hidden_size, vocab_size), jnp.bfloat16)
        labels = jax.random.randint(keys[2], (tokens,), 0, vocab_size, jnp.int32)
        parts = hidden, head, labels, jnp.full((tokens,), 1 / tokens, jnp.float32)
        memory: Any = program.memory_analysis()
        seconds = timed(lambda: jax.block_until_ready(program(*parts)), turns=turns)
        return {"seconds": seconds, "temporary_bytes": int(memory.temp_size_in_bytes), "kernel": kernel}

    return measure


def attention(kernel: str, shape: AttentionShape, turns: int) -> Measure:
    """Measure forward and gradients of one kernel over packed documents, and its distance from `chunked`."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from benchmarks.kernel_alone import arguments_of, attention_with_gradients, jit_like_a_step
    from runtime.kernels.attention import attend
    from runtime.parallel.mesh import make_mesh
    from runtime.parallel.mesh_shape import MeshShape

    sequences, tokens, heads, kv_heads, head_dim = shape
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    attended = partial(attend, kernel=kernel)
    lowered = jit_like_a_step(attention_with_gradients(attended), mesh).lower(*arguments_of(shape, mesh))

    def measure() -> dict[str, Any]:
        program = lowered.compile()
        keys = jax.random.split(jax.random.key(0), 3)
        parts = [
            jax.random.normal(key, (sequences, tokens, count, head_dim), jnp.bfloat16)
            for key, count in zip(keys, (heads, kv_heads, kv_heads), strict=True)
        ]
        parts[0] *= head_dim**-0.5  # queries come scaled
        begins = np.random.default_rng(0).uniform(size=(sequences, tokens)) < 1 / DOCUMENT_TOKENS
        given = *parts, jnp.asarray(np.cumsum(begins, axis=1), jnp.int32)
        values, expected = (jit_like_a_step(way, mesh)(*given) for way in (attended, partial(attend, kernel="chunked")))
        difference = jnp.max(jnp.abs(values.astype(jnp.float32) - expected.astype(jnp.float32)))
        memory: Any = program.memory_analysis()
        return {
            "seconds": timed(lambda: jax.block_until_ready(program(*given)), turns=turns),
            "temporary_bytes": int(memory.temp_size_in_bytes),
            "largest_difference": float(difference),
        }

    return measure


def device_of(library: str) -> str:
    """Return the name of the GPU that the library computes on, or "cpu"."""
    if library == "torch":
        import torch

        return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"
    import jax

    device = jax.devices()[0]
    return str(device.device_kind) if device.platform in ("gpu", "cuda", "rocm") else "cpu"


def contestant(arguments: argparse.Namespace) -> Measure:
    """Run in one process: first what needs no GPU, then the measurement."""
    side, name = arguments.contestant
    case = (SMOKE_CASES if arguments.smoke else CASES).get(name)
    if side == "device":
        return lambda: {"device": device_of(name)}
    if side == "loss":
        return fused_loss(SMOKE_LOSS if arguments.smoke else LOSS, arguments.turns)
    if side == "attention":
        return attention(name, SMOKE_ATTENTION if arguments.smoke else ATTENTION, arguments.turns)
    if case is None:
        raise ValueError(f"no case {name!r}")
    if side == "torch":
        return with_torch(case, arguments.turns)
    return ours(case, arguments.turns, arguments.attention, REMAT[side])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small sizes on a CPU; claims nothing")
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--attention", help="ours with another attention kernel than the default")
    parser.add_argument("--remats", action="store_true", help="ours also with less kept than all")
    parser.add_argument(
        "--only", nargs="+", choices=[*CASES, "loss", "attention"], help="a part, as a short loan allows"
    )
    parser.add_argument("--contestant", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contestant:
        wait_for_turn(contestant(arguments))
        return
    wanted = arguments.only or [*CASES, "loss", "attention"]
    cases = SMOKE_CASES if arguments.smoke else {name: case for name, case in CASES.items() if name in wanted}
    sides = (*(REMAT if arguments.remats else ("ours",)), "torch")
    kernels = (SMOKE_ATTENTION_KERNELS if arguments.smoke else ATTENTION_KERNELS) if "attention" in wanted else ()
    everybody = [
        *(("device", library) for library in ("jax", "torch")),
        *((side, name) for name in cases for side in sides),
        *([("loss", "loss")] if "loss" in wanted else []),
        *(("attention", kernel) for kernel in kernels),
    ]
    command = [sys.executable, __file__, "--turns", str(arguments.turns)]
    command += ["--smoke"] if arguments.smoke else []
    command += ["--attention", arguments.attention] if arguments.attention else []
    commands = [(whose, [*command, "--contestant", *whose]) for whose in everybody]
    with closing(InTurn(commands)) as in_turn:
        measure_all(arguments, in_turn, cases, sides, kernels)


def measure_all(
    arguments: argparse.Namespace,
    in_turn: InTurn,
    cases: Mapping[str, Case],
    sides: Sequence[str],
    kernels: Sequence[str],
) -> None:
    """Print each model as soon as it is measured: a loan may end before the last."""
    devices = {library: in_turn.measured("device", library)["device"] for library in ("jax", "torch")}
    if not arguments.smoke and (devices["jax"] != devices["torch"] or devices["jax"] not in PEAK_FLOPS):
        raise SystemExit(
            f"this benchmark compares on one GPU of {', '.join(PEAK_FLOPS)}, and jax sees {devices['jax']!r}, torch "
            f"{devices['torch']!r}: install JAX's and torch's CUDA builds there, or try --smoke."
        )
    peak = SMOKE_PEAK if arguments.smoke else PEAK_FLOPS[devices["jax"]]
    results: dict[str, dict[str, Any]] = {}
    holds = True
    for name, case in cases.items():
        # Torch may need more memory than there is, and has to be beaten.
        found_of = {side: in_turn.measured(side, name, may_fail=side != "ours") for side in sides}
        causal = case.model.flops_per_token(case.model.max_position_embeddings)
        square = 6 * case.model.num_hidden_layers * case.model.num_attention_heads * case.model.head_dim
        full = causal + square * case.model.max_position_embeddings
        results[name] = {
            side: found
            if "failed" in found
            else {
                "tokens_per_second": round(case.tokens / found["seconds"]),
                "mfu_causal": round(causal * case.tokens / found["seconds"] / peak, 4),
                "mfu_full": round(full * case.tokens / found["seconds"] / peak, 4),
                "first_loss": round(found["loss"], 4),  # of other weights each; about the log of the vocabulary
            }
            for side, found in found_of.items()
        }
        # Where torch could not run nothing was beaten, and nothing holds.
        ratio = found_of["torch"].get("seconds", 0.0) / found_of["ours"]["seconds"]
        results[name] |= {"ratio": round(ratio, 3), "bar": case.bar, "kernels": found_of["ours"]["kernels"]}
        holds &= ratio >= 1 and results[name]["ours"]["mfu_causal"] >= (case.bar or 0)
        print(name, json.dumps(results[name]), flush=True)
    loss = in_turn.measured("loss", "loss") if not arguments.only or "loss" in arguments.only else None
    if loss is not None:
        holds &= loss["seconds"] <= LOSS_SECONDS_BAR and loss["temporary_bytes"] <= LOSS_BYTES_BAR
        print("loss", json.dumps(loss), flush=True)
    by_kernel = {kernel: in_turn.measured("attention", kernel, may_fail=True) for kernel in kernels}
    print("attention", json.dumps(by_kernel), flush=True)
    line = {
        "claim": "bfloat16 training on one H200: MFU and tokens/s against torch; the fused loss in 100 ms and 5 GiB",
        "holds": None if arguments.smoke else bool(holds),
        "is_smoke": arguments.smoke,
        "only": arguments.only,
        "models": results,
        "loss": loss,
        "attention": by_kernel,
        "devices": devices,
        "load": round(os.getloadavg()[0], 1),
        "host": platform.machine(),
    }
    conclude(line)


if __name__ == "__main__":
    main()
