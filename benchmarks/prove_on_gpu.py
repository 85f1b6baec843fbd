"""Claim: on this very GPU kernels give what their definitions do, and a phase that is killed goes on to the same bytes.

The suite shows both without a GPU: by simulators, by the assembler, and on CPUs. Here are the three that a card can
contradict. The loss kernel of Hopper against `chunked_wide`: objective and gradients, the same bits each time, and
where a token's loss is too large for it every bit of the other's. Attention of two documents in a row against each of
them alone, bit by bit. And a phase in bfloat16 with the kernels of this device, killed by SIGKILL behind its second
checkpoint and run again, against an undisturbed one: every file of its last checkpoint.

    python benchmarks/prove_on_gpu.py            needs an H100 or H200 that JAX sees, and the extra tokamax
    python benchmarks/prove_on_gpu.py --smoke    on a CPU with its kernels, in small; claims nothing

(Attention on a CPU sums over as many keys as a block sees: there the documents of --smoke differ by rounding.)
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pydantic import BaseModel

from benchmarks.kernel_alone import LossShape
from benchmarks.verdict import conclude
from marin_dag.cli.main import main as run_pipeline
from marin_dag.graph.resources import Cpu
from marin_dag.graph.step import Step, StepContext, step
from runtime.data.mixture import MixtureSchedule
from runtime.model.config import LLAMA2_ROPE
from runtime.model.llama.config import LlamaConfig
from runtime.optim.ema import Ema
from runtime.optim.schedule import Linear
from steps.phase_config import TrainPhaseConfig
from steps.tokenize import TokenizeResult
from steps.train_phase import train_phase

LOSS, SMOKE_LOSS = LossShape(4096, 768, 128_256), LossShape(512, 64, 1024)
BETWEEN_GRADIENTS = 0.006
"""Relative, in the Euclidean norm: of two in bfloat16, each as far from the exact one as 8 bits are (0.2 to 0.4 %)."""
DOCUMENTS = (1536, 2560)
ATTENTION_KERNELS = ("tokamax",)
MODEL = LlamaConfig(32_768, 768, 3072, 6, 12, 6, 64, 2048)
SMOKE_MODEL = LlamaConfig(512, 64, 128, 2, 4, 2, 16, 256)
UNTIL_STEP, CHECKPOINT_EVERY_STEPS = 60, 6
KILLED_BEHIND = 2  # checkpoints
SECONDS_TO_A_CHECKPOINT = 600.0


def loss(shape: LossShape, kernel: str) -> dict[str, Any]:
    """Compare one loss kernel with `chunked_wide`."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from benchmarks.kernel_alone import jit_like_a_step, loss_with_gradients
    from runtime.kernels.cross_entropy import linear_cross_entropy
    from runtime.parallel.mesh import make_mesh
    from runtime.parallel.mesh_shape import MeshShape

    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    tokens, hidden_size, vocab_size = shape
    keys = jax.random.split(jax.random.key(0), 3)
    hidden = jax.random.normal(keys[0], (tokens, hidden_size), jnp.bfloat16)
    head = (2 * hidden_size**-0.5 * jax.random.normal(keys[1], (hidden_size, vocab_size))).astype(jnp.bfloat16)
    rest = jax.random.randint(keys[2], (tokens,), 0, vocab_size, jnp.int32), jnp.full((tokens,), 1 / tokens)

    ours, other = (
        jit_like_a_step(loss_with_gradients(partial(linear_cross_entropy, kernel=name)), mesh)
        for name in (kernel, "chunked_wide")
    )

    def numbers(program: Any, hidden: Any) -> list[Any]:
        return [np.asarray(part, np.float32) for part in jax.tree.leaves(program(hidden, head, *rest))]

    found, expected, again = numbers(ours, hidden), numbers(other, hidden), numbers(ours, hidden)
    large = hidden.at[7].multiply(60)  # a loss above 60 nats
    of_large = zip(numbers(ours, large), numbers(other, large), strict=True)
    between = [
        float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(found, expected, strict=True)
    ]  # objective, hidden states, head
    repeats = all(np.array_equal(a, b) for a, b in zip(found, again, strict=True))
    is_other = kernel != "mosaic_gpu" or all(np.array_equal(a, b) for a, b in of_large)
    holds = between[0] < 1e-5 and max(between[1:]) < BETWEEN_GRADIENTS and repeats and is_other
    return {"holds": holds, "kernel": kernel, "between": between, "repeats": repeats, "where_large": is_other}


def attention(kernel: str, documents: Sequence[int], head_dim: int) -> dict[str, Any]:
    """Compare values and gradients of documents in a row with those of each document alone."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from benchmarks.kernel_alone import jit_like_a_step
    from runtime.kernels.attention import attend
    from runtime.parallel.mesh import make_mesh
    from runtime.parallel.mesh_shape import MeshShape

    mesh = make_mesh(MeshShape(), jax.devices()[:1])

    def with_gradients(query: Any, key: Any, value: Any, segment_ids: Any, cotangent: Any) -> Any:
        attended = partial(attend, segment_ids=segment_ids, kernel=kernel)
        values, backward = jax.vjp(attended, query, key, value)
        return values, *backward(cotangent)

    program = jit_like_a_step(with_gradients, mesh)
    keys, length = jax.random.split(jax.random.key(0), 4), sum(documents)
    query, key, value, cotangent = (
        jax.random.normal(part, (1, length, heads, head_dim), jnp.bfloat16)
        for part, heads in zip(keys, (8, 2, 2, 8), strict=True)
    )
    parts = query * head_dim**-0.5, key, value
    ids = jnp.repeat(jnp.arange(len(documents), dtype=jnp.int32), jnp.array(documents))[None]
    packed = [np.asarray(part, np.float32) for part in program(*parts, ids, cotangent)]
    begin, differ = 0, 0
    for document in documents:
        own = slice(begin, begin + document)
        alone = program(*(part[:, own] for part in parts), jnp.zeros((1, document), jnp.int32), cotangent[:, own])
        differ += sum(
            int(np.sum(whole[:, own] != np.asarray(part, np.float32)))
            for whole, part in zip(packed, alone, strict=True)
        )
        begin += document
    return {"holds": differ == 0, "kernel": kernel, "head_dim": head_dim, "numbers_that_differ": differ}


class PhaseEndedError(Exception):
    """The phase ended before it could be killed."""


class TokensConfig(BaseModel, frozen=True, extra="forbid"):
    """Documents of random ids below half of the vocabulary."""

    vocab_size: int
    num_documents: int
    longest_document: int


@step(policy="tracked")
def tokens(config: TokensConfig, context: StepContext) -> TokenizeResult:
    """Write a token cache without texts."""
    import numpy as np

    from runtime.data.cache import TokenFormat
    from runtime.data.cache_writer import token_cache_writer

    form = TokenFormat(vocab_size=config.vocab_size, eos_token_id=0, bos_token_id=None, tokenizer_digest="0" * 64)
    rng, bytes_of_tokens = np.random.default_rng(0), np.ones(config.vocab_size, np.int32)
    lengths = rng.integers(config.longest_document // 16, config.longest_document, config.num_documents)
    counts: dict[str, int] = {}
    for name, of_name in (("train", lengths), ("validation", lengths[:1])):
        with token_cache_writer(f"{context.output_path}/{name}", form, bytes_of_tokens) as writer:
            writer.add(
                [rng.integers(1, config.vocab_size // 2, size) for size in of_name], num_bytes=int(of_name.sum())
            )
        counts[f"num_{name}_documents"] = len(of_name)
        counts[f"num_{name}_bytes"] = int(of_name.sum())
        counts[f"num_{name}_tokens"] = int(of_name.sum()) + len(of_name)  # each document ends with an id
    return TokenizeResult(
        train="train", validation="validation", vocab_size=config.vocab_size, eos_token_id=0, **counts
    )


def recipe(model: LlamaConfig, arguments: argparse.Namespace) -> Sequence[Step[Any]]:
    """Return one phase over random ids. A step on `Cpu` in the driver's process computes on its accelerators."""
    length = model.max_position_embeddings
    web = tokens("tokens", TokensConfig(vocab_size=model.vocab_size, num_documents=2000, longest_document=length))
    config = TrainPhaseConfig(
        start=None,
        until_step=UNTIL_STEP,
        model=model,
        rope=LLAMA2_ROPE,
        sequence_length=length,
        global_batch_size=4,
        learning_rate=Linear(peak_value=1e-3, end_value=1e-4, start_step=0, decay_steps=UNTIL_STEP),
        weight_decay=0.1,
        b1=0.9,
        b2=0.95,
        eps=1e-8,
        max_norm=1.0,
        z_loss=1e-4,
        mixture=MixtureSchedule.constant({"web": 1.0}),
        caches={"web": web},
        averages=(Ema(0.75), Ema(0.9995, name="slow")),
        seed=0,
        compute_dtype="bfloat16",
        checkpoint_every_steps=CHECKPOINT_EVERY_STEPS,
        digest_every_steps=CHECKPOINT_EVERY_STEPS,
    )
    return [train_phase("phase", config, resources=Cpu(1))]


def files_of(prefix: Path) -> dict[str, bytes]:
    """Return the files of the phase's last checkpoint."""
    (folder,) = prefix.glob(f"outputs/phase-*/*/step-{UNTIL_STEP}")
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def phase(*, is_smoke: bool) -> dict[str, Any]:
    """Compare a phase that is killed and run again with an undisturbed one."""
    command = [sys.executable, __file__, *(["--smoke"] if is_smoke else []), "--part", "run"]
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder, "whole"), Path(folder, "killed")
        subprocess.run([*command, str(whole)], check=True, stdout=sys.stderr)
        process = subprocess.Popen([*command, str(killed)], stdout=sys.stderr)
        deadline = time.monotonic() + SECONDS_TO_A_CHECKPOINT
        while len(list(killed.glob("work/*/temporary/*/checkpoint/manifest.json"))) < KILLED_BEHIND:
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise PhaseEndedError("the phase that was to be killed ended, or saved nothing")
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        saved = len(list(killed.glob("work/*/temporary/*/checkpoint/manifest.json")))
        subprocess.run([*command, str(killed)], check=True, stdout=sys.stderr)
        expected, found = files_of(whole), files_of(killed)
        differ = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    return {"holds": saved > 0 and bool(expected) and not differ, "num_files": len(expected), "differ": differ[:9]}


def measured(part: str, *, is_smoke: bool) -> dict[str, Any]:
    """Return what one process finds."""
    import jax

    device, is_gpu = jax.devices()[0], jax.default_backend() == "gpu"
    if not is_gpu and not is_smoke:
        raise SystemExit(f"this is for a GPU, and JAX sees {device.device_kind!r}: install its CUDA build, or --smoke.")
    what, _, kernel = part.partition(" ")
    if what == "loss":
        found = loss(SMOKE_LOSS if is_smoke else LOSS, "chunked" if is_smoke else "mosaic_gpu")
    else:
        heads = [attention(kernel, DOCUMENTS, head_dim) for head_dim in ((16,) if is_smoke else (64, 128))]
        found = {"holds": all(each["holds"] for each in heads), "by_head": heads}
    return found | {"device": device.device_kind, "jax": jax.__version__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="on a CPU, in small; claims nothing")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    match arguments.part:
        case ["run", prefix]:
            build = partial(recipe, SMOKE_MODEL if arguments.smoke else MODEL)
            sys.exit(run_pipeline(build, name="prove_on_gpu", argv=["--prefix", prefix, "--backend", "local"]))
        case [part]:
            print(json.dumps(measured(part, is_smoke=arguments.smoke)))
            return
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # of two processes the second finds the memory free
    parts = ["loss", *(f"attention {name}" for name in (("chunked",) if arguments.smoke else ATTENTION_KERNELS))]
    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        command = [sys.executable, __file__, *(["--smoke"] if arguments.smoke else []), "--part", part]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        outcome = {"holds": False, "failed": f"exit code {done.returncode}; its error is above"}
        found[part] = outcome if done.returncode else json.loads(done.stdout.splitlines()[-1])
        print(part, json.dumps(found[part]), flush=True)
    try:
        found["phase"] = phase(is_smoke=arguments.smoke)
    except (subprocess.CalledProcessError, PhaseEndedError) as error:
        found["phase"] = {"holds": False, "failed": f"{error}; its output is above"}
    print("phase", json.dumps(found["phase"]), flush=True)
    conclude(
        {
            "claim": "on this GPU kernels give what their definitions do, and a killed phase goes on to the same bytes",
            "holds": None if arguments.smoke else all(part["holds"] for part in found.values()),
            "is_smoke": arguments.smoke,
            "parts": found,
            "host": platform.machine(),
        }
    )


if __name__ == "__main__":
    main()
