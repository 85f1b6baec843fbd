"""Claim: leaving out the position before a new document changes the loss inside documents by less than noise.

The public run also predicts the first token of a document (BOS) from the last of the one before (EOS); this project
leaves that position out. The laptop's model trains both ways on Python's standard library, cut into documents of
some 700 tokens, as kestrel does until step 240, with three seeds. Printed: the loss of the same held-out text inside
documents, at boundaries, and over all positions. Some three minutes of one core. The last line is JSON.

    python benchmarks/document_boundaries.py
"""

import statistics
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from benchmarks.laptop_model import LaptopStep
from benchmarks.verdict import conclude
from pipelines.scales import LAPTOP
from runtime.model.config import LLAMA2_ROPE
from runtime.optim.schedule import WsdS
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.parallel.spread import ALONE, Spread
from runtime.training import eval_step, objective, train_step
from runtime.training.eval_step import build_eval_step
from runtime.training.state import initial_state
from runtime.training.train_step import Hyperparameters

NUM_STEPS = 240
SEEDS = (0, 1, 2)
NUM_HELD_OUT_ROWS = 128
DOCUMENT_BYTES = 2_500
BOS, EOS = "<bos>", "<eos>"
SCHEDULE = WsdS(LAPTOP.rate * 1e-3, LAPTOP.rate * 1e-4, LAPTOP.warmup_steps, LAPTOP.kestrel_cycles)


class Losses(NamedTuple):
    """Mean losses of held-out text, in nats."""

    inside: float
    boundary: float
    every: float


class Rows(NamedTuple):
    tokens: np.ndarray
    segment_ids: np.ndarray


def documents() -> Iterator[str]:
    """Return modules of the standard library, cut at line ends."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        part = ""
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            part += line
            if len(part) >= DOCUMENT_BYTES:
                yield part
                part = ""
        if part:
            yield part


def rows() -> Rows:
    """Return all documents as rows of the laptop's length, concatenated as training packs them."""
    texts = list(documents())
    tokenizer = tokenizers.Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    alphabet = ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=LAPTOP.model.vocab_size, special_tokens=[BOS, EOS], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    ids = [np.array([0, *encoding.ids, 1], np.int32) for encoding in tokenizer.encode_batch(texts)]
    order = np.random.default_rng(0).permutation(len(ids))
    tokens = np.concatenate([ids[index] for index in order])
    segments = np.concatenate([np.full(len(ids[index]), place, np.int32) for place, index in enumerate(order)])
    length = LAPTOP.sequence_length
    num_rows = len(tokens) // length
    shaped = (part[: num_rows * length].reshape(num_rows, length) for part in (tokens, segments))
    return Rows(*shaped)


def every_position(tokens: jax.Array, segment_ids: jax.Array, spread: Spread = ALONE) -> tuple[jax.Array, jax.Array]:
    """Return labels and targets as the public code has them: every position but the last of a row."""
    return objective.next_tokens(tokens, jnp.zeros_like(segment_ids), spread)


def train(text: Rows, seed: int, *, counts_boundaries: bool) -> Losses:
    """Return the held-out losses after training."""
    train_step._train_program.cache_clear()
    setattr(train_step, "next_tokens", every_position if counts_boundaries else objective.next_tokens)  # noqa: B010
    size, mesh = LAPTOP.batches[0], make_mesh(MeshShape(), jax.devices()[:1])
    step = LaptopStep(size, mesh).step
    state = initial_state(LAPTOP.model, seed, mesh)
    drawn = np.random.default_rng(seed).permutation(len(text.tokens) - NUM_HELD_OUT_ROWS)
    for index in range(NUM_STEPS):
        chosen = drawn[index * size.global_batch_size : (index + 1) * size.global_batch_size]
        numbers = Hyperparameters(SCHEDULE(index), 0.05, 0.9, 0.95, 1e-8, 1.0, 0.0)
        state, _ = step(state, text.tokens[chosen], text.segment_ids[chosen], numbers)
    return evaluate(state.params, text, mesh)


def evaluate(params: object, text: Rows, mesh: jax.sharding.Mesh) -> Losses:
    """Return the losses of the last rows by kind of position."""
    setattr(eval_step, "next_tokens", every_position)  # noqa: B010
    program = build_eval_step(
        LAPTOP.model, LLAMA2_ROPE, mesh, attention_kernel="chunked", loss_kernel="chunked", compute_dtype="float32"
    )
    tokens, segments = text.tokens[-NUM_HELD_OUT_ROWS:], text.segment_ids[-NUM_HELD_OUT_ROWS:]
    losses = np.asarray(program(params, tokens, segments).loss, np.float64)[:, :-1]
    is_inside = segments[:, :-1] == segments[:, 1:]
    return Losses(losses[is_inside].mean(), losses[~is_inside].mean(), losses.mean())


def main() -> None:
    """Train, and print both kinds of losses."""
    text = rows()
    held_out = text.segment_ids[-NUM_HELD_OUT_ROWS:]
    share = float(np.mean(held_out[:, :-1] != held_out[:, 1:]))
    masked = [train(text, seed, counts_boundaries=False) for seed in SEEDS]
    counted = [train(text, seed, counts_boundaries=True) for seed in SEEDS]
    differences = [there.inside - here.inside for here, there in zip(masked, counted, strict=True)]
    for seed, here, there in zip(SEEDS, masked, counted, strict=True):
        print(f"seed {seed}: inside {here.inside:.4f} left out, {there.inside:.4f} counted; all {there.every:.4f}")
    noise = statistics.stdev(here.inside for here in masked)
    difference = statistics.mean(differences)
    conclude(
        {
            "claim": "leaving out the position before a document changes the loss inside documents by less than noise",
            "holds": bool(abs(difference) < 2 * noise),
            "boundary_share": share,
            "inside_left_out": statistics.mean(here.inside for here in masked),
            "inside_counted": statistics.mean(there.inside for there in counted),
            "difference_inside": difference,
            "deviation_over_seeds": noise,
            "boundary_counted": statistics.mean(there.boundary for there in counted),
            "reported_counted": statistics.mean(there.every for there in counted),
            "num_steps": NUM_STEPS,
        }
    )


if __name__ == "__main__":
    main()
