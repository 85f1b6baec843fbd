"""Scores and texts on one device, on eight with whole copies, and on eight that share two copies; prints JSON."""

import json

import jax
import jax.numpy as jnp
import numpy as np

from runtime.evaluation.generation import Generator, Prompt
from runtime.evaluation.placed_model import PlacedModel
from runtime.evaluation.sampling import Sampling
from runtime.evaluation.scoring import Scored, Scorer
from runtime.model.config import LLAMA3_ROPE
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from tests.runtime.interop.small_llama import CONFIG, model


def main() -> None:
    rng = np.random.default_rng(0)

    def tokens(most: int) -> tuple[int, ...]:
        return tuple(rng.integers(0, 320, int(rng.integers(1, most))).tolist())

    asked = [Prompt(tokens(100), 6, Sampling(seed=1) if n % 3 == 0 else None, n) for n in range(21)]
    sequences = []
    for _ in range(30):
        context = tokens(120)
        for _ in range(3):
            targets = tokens(12)
            sequences.append(Scored((*context, *targets[:-1]), targets))
    report = {}
    default = PlacedModel(model(), CONFIG, LLAMA3_ROPE, compute_dtype=jnp.float32).mesh
    for name, mesh in {
        "one": make_mesh(MeshShape(), jax.devices()[:1]),
        "copies": default,
        "shards": make_mesh(MeshShape(replica=2, data=4)),
    }.items():
        placed = PlacedModel(model(), CONFIG, LLAMA3_ROPE, compute_dtype=jnp.float32, mesh=mesh)
        texts = dict(Generator(placed, most_slots=2).generate(asked, lambda _, tokens: tokens[-1] % 7 == 0))
        largest = max(placed.params.embed_tokens.addressable_shards, key=lambda shard: shard.data.size)
        report[name] = {
            "scores": [list(score) for score in Scorer(placed, tokens_per_batch=512).score(sequences)],
            "texts": [texts[number] for number in range(len(asked))],
            "share": largest.data.size / placed.params.embed_tokens.size,
            "devices": mesh.size,
        }
    print(json.dumps(report))


main()
