"""Scores and texts on one device, on eight with whole copies, and on two hosts that share two copies; prints JSON.

The hosts are processes of this script with its number and the coordinator's port as arguments.
"""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from runtime.evaluation.answers import Answers
from runtime.evaluation.generation import Generator, Prompt
from runtime.evaluation.placed_model import PlacedModel
from runtime.evaluation.sampling import Sampling
from runtime.evaluation.scoring import Scored, Scorer
from runtime.model.config import LLAMA3_ROPE
from runtime.parallel.hosts import join_hosts
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from tests.runtime.interop.small_llama import CONFIG, model


def report_of(mesh: jax.sharding.Mesh | None, folder: str | None = None) -> dict[str, Any]:
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
    placed = PlacedModel(model(), CONFIG, LLAMA3_ROPE, compute_dtype=jnp.float32, mesh=mesh)
    texts = dict(Generator(placed, most_slots=2).generate(asked, lambda _, tokens: tokens[-1] % 7 == 0))
    largest = max(placed.params.embed_tokens.addressable_shards, key=lambda shard: shard.data.size)
    answers = Answers(folder, "of two hosts")
    return {
        "scores": [list(score) for score in Scorer(placed, tokens_per_batch=512, answers=answers).score(sequences)],
        "texts": [texts[number] for number in range(len(asked))],
        "share": largest.data.size / placed.params.embed_tokens.size,
        "devices": placed.num_devices,
    }


def host(index: int, port: str, folder: str) -> dict[str, Any]:
    join_hosts(coordinator=f"localhost:{port}", num_hosts=2, index=index)
    if index == 1:
        folder += "/unread"  # what host 0 knows counts
    report = report_of(make_mesh(MeshShape(replica=2, data=4)), folder)
    files = sorted(path.name for path in Path(folder).iterdir()) if index == 0 else []
    known = Answers(folder)._known
    return {"shards": report, "files": files, "known": len(known)}


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(host(int(sys.argv[1]), *sys.argv[2:])))
        return
    with socket.socket() as listening:
        listening.bind(("localhost", 0))
        port = str(listening.getsockname()[1])
    flags = re.sub(r"(device_count=)8", r"\g<1>4", os.environ["XLA_FLAGS"])
    environment = os.environ | {"XLA_FLAGS": flags}
    command = [sys.executable, "-W", "error", __file__]
    hosts = [
        subprocess.Popen([*command, str(index), port, os.environ["ANSWERS"]], env=environment, stdout=subprocess.PIPE)
        for index in range(2)
    ]
    report = {"one": report_of(make_mesh(MeshShape(), jax.devices()[:1])), "copies": report_of(None)}
    reports = [json.loads(process.communicate()[0].splitlines()[-1]) for process in hosts]  # Gloo prints before it
    print(json.dumps(report | {f"{name} {index}": of[name] for index, of in enumerate(reports) for name in of}))


main()
