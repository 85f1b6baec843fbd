"""Gold answers: bits per byte of right answers in the windows of a validation are those of lm-eval's own requests."""

import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer

from runtime.data.plain_tokenizer import plain_document
from runtime.data.token_bytes import token_bytes
from runtime.evaluation.bits_per_byte import PADDING_SEGMENT, BitsPerByteError
from runtime.evaluation.gold_answers import GoldAnswer, answer_source, read_gold_answers, to_json_lines
from runtime.evaluation.gold_requests import gold_answers
from runtime.evaluation.harness import LlamaHarness
from runtime.evaluation.held_out import HeldOut
from runtime.evaluation.placed_model import PlacedModel
from runtime.evaluation.request_tokens import RequestTokens
from runtime.evaluation.run_tasks import run_tasks
from runtime.evaluation.suites import TaskSpec
from runtime.evaluation.tasks import TaskItemsError
from runtime.interop.huggingface import SpecialTokens
from runtime.model.config import LLAMA3_ROPE
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.training.eval_step import build_eval_step
from tests.catalogue import expect_error
from tests.runtime.evaluation.rows import NUM_ROWS, task_of, write_files
from tests.runtime.interop.small_llama import CONFIG, model, tokenizer_file

SPECS = [TaskSpec("arc_easy", 1), TaskSpec("winogrande"), TaskSpec("boolq"), TaskSpec("lambada_openai"),
         TaskSpec("mmlu", 1), TaskSpec("copa")]  # fmt: skip
SPECIAL = SpecialTokens(0, 1)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tokenizer_file(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json", with_bos=True)
    return Tokenizer.from_file(str(path))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return write_files(tmp_path_factory.mktemp("items"))


def answers_of(files: Any, tokenizer: Tokenizer, specs: Any, limit: int | None = None) -> dict[str, list[GoldAnswer]]:
    lengths = token_bytes(plain_document(tokenizer.to_str(), frozenset(SPECIAL)))
    return gold_answers(
        [task_of(spec) for spec in specs], files, RequestTokens(tokenizer, SPECIAL), lengths, limit=limit
    )


def test_a_group_has_as_many_answers_as_a_task(files, tokenizer):
    found = answers_of(files, tokenizer, [TaskSpec("mmlu", 0)], limit=5)
    assert len(found["mmlu_0shot"]) == 5, "of 3 subjects"
    (first, *_), *_ = answers_of(files, tokenizer, [TaskSpec("mmlu_astronomy", 0)], limit=1).values()
    assert found["mmlu_0shot"][0] == first
    assert len(answers_of(files, tokenizer, [TaskSpec("mmlu", 0)], limit=2)["mmlu_0shot"]) == 2


def test_the_figures_are_those_of_the_scored_requests(tmp_path: Path, files, tokenizer):
    tasks = [task_of(spec) for spec in SPECS]
    (mmlu,) = (spec for spec in SPECS if spec.task == "mmlu")
    found = answers_of(files, tokenizer, SPECS, limit=4) | answers_of(files, tokenizer, [mmlu], limit=12)
    length = 256
    step = build_eval_step(
        CONFIG, LLAMA3_ROPE, make_mesh(MeshShape(data=1), jax.devices()[:1]), attention_kernel="reference",
        loss_kernel="chunked", compute_dtype="float32",
    )  # fmt: skip
    sources = {}
    for label, answers in found.items():
        path = tmp_path / f"{label}.jsonl"
        path.write_bytes(to_json_lines(answers))
        assert read_gold_answers(str(path)) == answers
        sources[label] = answer_source(str(path), sequence_length=length)
    scores = HeldOut.open(sources, step, sequence_length=length, windows_per_batch=4, rows=None).scores(model())
    placed = PlacedModel(model(), CONFIG, LLAMA3_ROPE, compute_dtype=jnp.float32)
    run = run_tasks(lambda: LlamaHarness(placed, tokenizer, SPECIAL), tasks, files, limit=4)
    expected = {label: [0.0, 0] for label in found}
    for sample in run.samples:
        task = next(
            task for task in tasks
            if sample["task"] in {f"{each.name}_{task.num_fewshot}shot" for each in task.definitions}
        )  # fmt: skip
        gold = right_choice(sample)
        _, continuation = sample["requests"][gold]
        log_likelihood = float(sample["responses"][gold][0][0])
        expected[task.label][0] -= log_likelihood / math.log(2)
        expected[task.label][1] += len(continuation.encode())
    for label, (bits, num_bytes) in expected.items():
        assert scores[label].bits == pytest.approx(bits, rel=1e-4), label
        assert scores[label].num_bytes == num_bytes, label


def right_choice(sample: dict[str, Any]) -> int:
    if len(sample["requests"]) == 1:
        return 0
    if sample["task"].startswith(("winogrande", "copa")):
        return sample["doc_id"] % 2
    return int(sample["target"])


def test_answers_alone_count_and_windows_hold_whole_items(tmp_path):
    first, last = GoldAnswer([1, 5, 6], [7, 8], [2, 3]), GoldAnswer([1] * 9, [11, 12], [4, 4])
    answers = [first, GoldAnswer([1, 9], [10], [1]), last]
    path = tmp_path / "answers.jsonl"
    path.write_bytes(to_json_lines(answers))
    source = answer_source(str(path), sequence_length=8)
    assert source.num_windows == 2
    tokens, segments, text_bytes = source.read(np.array([1, 0]))
    assert tokens.tolist() == [[1, 1, 1, 1, 1, 1, 11, 12], [1, 5, 6, 7, 8, 1, 9, 10]]
    assert segments.tolist() == [[0] * 8, [0] * 5 + [1] * 3]
    assert text_bytes.tolist() == [[0, 0, 0, 0, 0, 4, 4, 0], [0, 0, 2, 3, 0, 0, 1, 0]]


def test_an_answer_longer_than_a_window_is_cut_at_its_end(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_bytes(to_json_lines([GoldAnswer([1, 2, 3], [4, 5, 6, 7, 8], [1, 2, 3, 4, 5])]))
    tokens, segments, text_bytes = answer_source(str(path), sequence_length=4).read(np.array([0]))
    assert (tokens.tolist(), text_bytes.tolist()) == ([[3, 4, 5, 6]], [[1, 2, 3, 0]])
    assert PADDING_SEGMENT not in segments
    path.write_bytes(b"")
    with expect_error(BitsPerByteError):
        answer_source(str(path), sequence_length=4)


def test_limit_takes_the_first_items_of_each_definition(files, tokenizer):
    every = answers_of(files, tokenizer, [TaskSpec("piqa"), TaskSpec("mmlu")])
    first = answers_of(files, tokenizer, [TaskSpec("piqa"), TaskSpec("mmlu")], limit=2)
    assert {label: len(found) for label, found in every.items()} == {"piqa_0shot": NUM_ROWS, "mmlu_0shot": 3 * NUM_ROWS}
    assert first["piqa_0shot"] == every["piqa_0shot"][:2]


def test_an_item_without_a_right_choice_is_refused(tmp_path, files, tokenizer):
    path = tmp_path / "boolq.jsonl"
    rows = [{"question": "is it", "passage": "It is.", "label": label} for label in (1, 7)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with expect_error(TaskItemsError):
        answers_of(files._replace(scored={"boolq": str(path)}), tokenizer, [TaskSpec("boolq")])
    with expect_error(TaskItemsError):
        answers_of(files, tokenizer, [TaskSpec("gsm8k_cot", 0)])
