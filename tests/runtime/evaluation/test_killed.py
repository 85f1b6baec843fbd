"""A kill in the middle of any kind of request: the next attempt asks nothing twice, and answers the same."""

import json
import multiprocessing
import os
import signal
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from lm_eval.api.instance import Instance
from tokenizers import Tokenizer

from runtime.evaluation.answers import Answers
from runtime.evaluation.harness import LlamaHarness
from runtime.evaluation.placed_model import PlacedModel
from runtime.interop.huggingface import SpecialTokens
from runtime.model.config import LLAMA3_ROPE
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from tests.runtime.interop.small_llama import CONFIG, model, tokenizer_file

FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(["jax", "equinox", "lm_eval.api.instance", "runtime.evaluation.harness"])
KINDS = ("loglikelihood", "loglikelihood_rolling", "generate_until")
NUM_REQUESTS = 24


def answers_of(folder: Path, attempt: str, kind: str, *, die_after: int | None = None) -> list:
    """Return answers of 24 requests; with `die_after`, end the process after so many."""

    def on_progress(done: int, total: int) -> None:
        seen.append(done)
        if die_after is not None and done >= die_after:
            os.kill(os.getpid(), signal.SIGKILL)

    seen: list[int] = []
    mesh = make_mesh(MeshShape(), jax.devices()[:1])
    placed = PlacedModel(model(), CONFIG, LLAMA3_ROPE, compute_dtype=jnp.float32, mesh=mesh)
    tokenizer = Tokenizer.from_file(str(folder.parent / "tokenizer.json"))
    answers = Answers(str(folder), attempt, flush_seconds=0)
    harness = LlamaHarness(
        placed, tokenizer, SpecialTokens(0, None), tokens_per_batch=256, answers=answers, on_progress=on_progress,
    )  # fmt: skip
    requests = []
    for number in range(NUM_REQUESTS):
        text = "the quick brown fox " * (5 + number % 9) + str(number)
        sampling = {"temperature": 0.7, "seed": 5} if number % 2 else {}
        last = {"loglikelihood": (" dog",), "generate_until": ({"max_gen_toks": 5, **sampling},)}.get(kind, ())
        requests.append(Instance(kind, {}, (text, *last), 0, metadata=("task", 0, 1)))
    found = getattr(harness, kind)(requests)
    assert seen == sorted(seen) and seen[-1] == NUM_REQUESTS
    assert not answers._known, "what is answered costs no memory"
    return found


def parts_of(answers: list) -> list:
    return [part for answer in answers for part in (answer if isinstance(answer, tuple) else (answer,))]


def keys_in(folder: Path) -> list[str]:
    return [json.loads(line)[0] for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_evaluation_resumes_by_request(tmp_path, kind):
    tokenizer_file(tmp_path / "tokenizer.json")
    folder = tmp_path / "answers"
    child = FORKSERVER.Process(target=answers_of, args=(folder, "first", kind), kwargs={"die_after": 9})
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    before = keys_in(folder)
    assert 9 <= len(before) < NUM_REQUESTS
    with (folder / "first-999999.jsonl").open("w") as file:
        file.write(json.dumps([before[0], "torn"])[:-3])
    found = answers_of(folder, "second", kind)
    (folder / "first-999999.jsonl").unlink()
    after = keys_in(folder)
    assert len(after) == len(set(after)) == NUM_REQUESTS and after[: len(before)] == before
    # Up to rounding: the killed process may compute with another number of threads than this one.
    assert parts_of(found) == pytest.approx(parts_of(answers_of(tmp_path / "undisturbed", "only", kind)))
