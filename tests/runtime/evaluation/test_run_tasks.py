"""lm-eval's own definitions run on local rows, offline, and their scores come with what is needed to judge them."""

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import lm_eval.tasks
import pytest
from lm_eval.api.metrics import mean_stderr, pooled_sample_stderr
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks._yaml_loader import load_yaml
from tokenizers import Tokenizer

from runtime.evaluation.harness import GenerationError, LlamaHarness
from runtime.evaluation.placed_model import PlacedModel
from runtime.evaluation.run_tasks import FEWSHOT_SEED, _fewshot_from, _scores, run_tasks
from runtime.evaluation.suites import DEFINITIONS, LAPTOP_TASKS, TaskSpec
from runtime.evaluation.task_score import suspicion
from runtime.evaluation.tasks import (
    OFFLINE_ENVIRONMENT,
    TaskFiles,
    TaskItemsError,
    read_rows,
    task_manager,
    write_definitions,
)
from runtime.interop.huggingface import SpecialTokens
from runtime.model.config import LLAMA3_ROPE
from tests.catalogue import check_message, expect_error
from tests.runtime.evaluation.rows import NUM_ROWS, ROWS, write_files
from tests.runtime.interop.small_llama import CONFIG, model, tokenizer_file

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("items"))


@pytest.fixture(scope="module")
def make_harness(tmp_path_factory):
    placed = PlacedModel(model(), CONFIG, LLAMA3_ROPE, compute_dtype=jnp.float32)
    tokenizer = Tokenizer.from_file(str(tokenizer_file(tmp_path_factory.mktemp("t") / "tokenizer.json")))
    return lambda: LlamaHarness(placed, tokenizer, SpecialTokens(0, None))


def test_all_laptop_tasks_run_and_score_every_row(files, make_harness):
    run = run_tasks(make_harness, LAPTOP_TASKS, files, limit=None)
    assert {score.task for score in run.scores} == {spec.task for spec in LAPTOP_TASKS}
    assert all(score.num_items == NUM_ROWS and score.num_fewshot == 0 for score in run.scores)
    assert {(s.task, s.metric) for s in run.scores} >= {("arc_easy", "acc"), ("arc_easy", "acc_norm"), ("boolq", "acc")}
    assert all(0 <= score.value <= 1 and score.chance and score.fewshot_from == "none" for score in run.scores)


def test_a_score_is_the_mean_over_its_samples_and_limit_takes_the_first_rows(files, make_harness):
    run = run_tasks(make_harness, [TaskSpec("boolq")], files, limit=5)
    (score,) = run.scores
    values = [sample["metrics"]["acc"] for sample in run.samples]
    assert score.num_items == len(values) == 5
    assert score.value == pytest.approx(sum(values) / 5)
    assert score.stderr == pytest.approx(mean_stderr(values))
    assert [sample["target"] for sample in run.samples] == [n % 2 for n in range(5)]
    (items,) = run.items
    assert (items.values, items.stderr) == (tuple(values), score.stderr)
    assert items.items[-1] == "boolq_0shot/4" and items.groups == (0, 1, 2, 3, 4)


def test_the_first_five_scored_rows_are_samples(files, make_harness):
    run = run_tasks(make_harness, [TaskSpec("piqa")], files, limit=None)
    assert run.scores[0].num_items == NUM_ROWS > 5
    assert [sample["doc_id"] for sample in run.samples] == [0, 1, 2, 3, 4]


def test_worked_examples_are_drawn_by_lm_evals_own_seed():
    assert inspect.signature(simple_evaluate).parameters["fewshot_random_seed"].default == FEWSHOT_SEED


def test_a_group_has_worked_examples_of_their_own_only_if_each_of_its_tasks_has(files):
    of_mmlu = {name: path for name, path in files.scored.items() if name.startswith("mmlu_")}
    assert len(of_mmlu) > 1
    for num_own in range(len(of_mmlu) + 1):
        own = dict(list(of_mmlu.items())[:num_own])
        found = _fewshot_from(TaskSpec("mmlu", 1), TaskFiles(of_mmlu, own))
        assert found == ("rows of their own" if num_own == len(of_mmlu) else "the scored rows")


def test_running_twice_gives_the_same_scores_and_samples(files, make_harness):
    specs = [TaskSpec("arc_easy", 2), TaskSpec("mmlu", 2), TaskSpec("hellaswag"), TaskSpec("hellaswag", 1)]
    assert run_tasks(make_harness, specs, files, limit=4) == run_tasks(make_harness, specs, files, limit=4)


def test_samples_have_the_prompts_of_lm_evals_definition(files, make_harness):
    run = run_tasks(make_harness, [TaskSpec("arc_easy"), TaskSpec("mmlu_astronomy", 1)], files, limit=2)
    arc, mmlu = run.samples[0], run.samples[2]
    assert arc["requests"][1] == ["Question: Which of them jumps 0?\nAnswer:", " a dog 0"]
    assert mmlu["requests"][0] == [
        "The following are multiple choice questions (with answers) about astronomy.\n\n"
        "How many dogs are 100?\nA. 0\nB. 1\nC. 2\nD. 3\nAnswer: A\n\n"
        "How many dogs are 0?\nA. 0\nB. 1\nC. 2\nD. 3\nAnswer:",
        " A",
    ]
    json.dumps(run.samples)


def test_worked_examples_come_from_separate_rows_where_there_are_any(files, make_harness):
    run = run_tasks(make_harness, [TaskSpec("mmlu", 2), TaskSpec("arc_easy", 2)], files, limit=3)
    sources = {score.task: score.fewshot_from for score in run.scores}
    assert sources == {"mmlu": "rows of their own", "arc_easy": "the scored rows"}
    for sample in run.samples:
        if sample["task"].startswith("arc_easy"):
            prompt = sample["requests"][0][0]
            assert prompt.count("Question:") == 3
            assert prompt.count(f"jumps {sample['doc_id']}?") == 1  # the item itself is never its own example


def test_worked_examples_are_drawn_from_all_scored_rows_under_any_limit(files, make_harness):
    run = run_tasks(make_harness, [TaskSpec("arc_easy", 4)], files, limit=2)
    assert {score.num_items for score in run.scores} == {2}
    assert all(prompt.count("Question:") == 5 for sample in run.samples for prompt, _ in sample["requests"])


def test_worked_examples_of_the_definition_are_its_prompt(tmp_path, files):
    """Those of gsm8k_cot reason step by step (arXiv:2201.11903); a row of the set would show a bare number."""
    with_rows = TaskFiles(files.scored, {**files.fewshot, "gsm8k_cot": files.scored["gsm8k_cot"]})
    spec = TaskSpec("gsm8k_cot", 8)
    write_definitions(tmp_path, [spec], with_rows, limit=2)
    task = task_manager(tmp_path).load([spec.label])["tasks"][spec.label]
    task.set_fewshot_seed(seed=1234)
    prompt = str(task.fewshot_context(next(iter(task.eval_docs)), 8))
    assert prompt.startswith("Q: There are 15 trees in the grove.") and prompt.count("The answer is") == 8
    assert _fewshot_from(spec, with_rows) == "the definition"
    with expect_error(ValueError):
        TaskSpec("gsm8k_cot", 9)


def test_the_suites_have_the_number_of_examples_of_each_definition():
    installed = Path(lm_eval.tasks.__file__).parent
    for name, definition in DEFINITIONS.items():
        read = load_yaml(installed / definition.yaml, resolve_func=False, recursive=True)
        samples = (read.get("fewshot_config") or {}).get("samples")
        assert (None if samples is None else len(samples)) == definition.num_examples, name


def an_answer(number: int, answer_filter: str, value: float, *, found: str = "7") -> dict[str, Any]:
    return {
        "doc_id": number, "doc": {}, "filter": answer_filter, "exact_match": value, "acc": value,
        "filtered_resps": [found], "arguments": [("a prompt", "one choice"), ("a prompt", "another")],
    }  # fmt: skip


def test_each_answer_filter_is_scored_over_its_own_answers(files):
    strict = [an_answer(number, "strict-match", 0.0, found="[invalid]") for number in range(4)]
    flexible = [an_answer(number, "flexible-extract", 1.0) for number in range(4)]
    keys = {"exact_match,strict-match": 0.0, "exact_match,flexible-extract": 1.0}
    output = {"samples": {"gsm8k_cot_0shot": [*strict, *flexible]}, "results": {"gsm8k_cot_0shot": keys}}
    means = {("gsm8k_cot_0shot", "exact_match"): True}
    found = _scores(TaskSpec("gsm8k_cot"), ["gsm8k_cot_0shot"], output, means, {}, files)
    told = [(score.metric, score.value, score.num_items, score.num_unparsed) for score in found]
    assert told == [("exact_match,strict-match", 0.0, 4, 4), ("exact_match,flexible-extract", 1.0, 4, 0)]


@pytest.mark.parametrize(("num_truncated", "is_suspicious"), [(4, False), (5, True)])
def test_suspicion_counts_requests_of_which_an_item_makes_several(files, num_truncated, is_suspicious):
    output = {
        "samples": {"piqa_0shot": [an_answer(number, "none", 0.5) for number in range(4)]},
        "results": {"piqa_0shot": {"acc,none": 0.5, "acc_stderr,none": 0.1}},
    }  # fmt: skip
    (score,) = _scores(
        TaskSpec("piqa"), ["piqa_0shot"], output, {("piqa_0shot", "acc"): True}, {"piqa_0shot": num_truncated}, files
    )
    assert (score.warning is not None) == is_suspicious


def test_a_group_counts_the_truncated_prompts_of_its_tasks(files):
    subjects = ("mmlu_astronomy_0shot", "mmlu_world_religions_0shot")
    output = {
        "samples": {subject: [an_answer(number, "none", 0.5) for number in range(4)] for subject in subjects},
        "results": {subjects[0]: {"acc,none": 0.5}},
    }
    lost = {subjects[0]: 1, subjects[1]: 2, "another_0shot": 4}
    (score,) = _scores(TaskSpec("mmlu"), subjects, output, {(subjects[0], "acc"): True}, lost, files)
    assert (score.num_truncated, score.num_items) == (3, 8)


def test_a_group_scores_all_items_of_its_tasks_together(files, make_harness):
    subjects = ("mmlu_astronomy", "mmlu_high_school_biology", "mmlu_world_religions")
    (group,) = run_tasks(make_harness, [TaskSpec("mmlu")], files, limit=None).scores
    parts = run_tasks(make_harness, [TaskSpec(subject) for subject in subjects], files, limit=None).scores
    assert group.num_items == sum(part.num_items for part in parts) == 3 * NUM_ROWS
    assert group.value == pytest.approx(sum(part.value * part.num_items for part in parts) / group.num_items)
    pooled = pooled_sample_stderr([part.stderr for part in parts], [part.num_items for part in parts])
    assert group.stderr == pytest.approx(pooled, rel=0.1)
    check_message(group.warning)
    assert [part.warning for part in parts] == [None] * 3


def test_a_metric_that_is_no_mean_over_items_has_no_standard_error(files, make_harness):
    scores = run_tasks(make_harness, [TaskSpec("lambada_openai")], files, limit=2).scores
    perplexity = next(score for score in scores if score.metric == "perplexity")
    assert perplexity.value > 1 and perplexity.stderr is None and perplexity.chance is None


def test_a_task_without_items_is_an_error(files, make_harness):
    with expect_error(TaskItemsError):
        run_tasks(make_harness, [TaskSpec("wsc273")], files, limit=None)


def test_answers_as_long_as_the_context_are_an_error_before_any_score(files, make_harness):
    harness = make_harness()
    harness.loglikelihood = None
    with expect_error(GenerationError):
        run_tasks(lambda: harness, [TaskSpec("piqa"), TaskSpec("gsm8k_cot")], files, limit=2)


def test_the_same_task_twice_is_an_error(files, make_harness):
    with expect_error(TaskItemsError):
        run_tasks(make_harness, [TaskSpec("piqa"), TaskSpec("piqa", 0)], files, limit=None)


@pytest.mark.parametrize("content", [b'{"a": 1}\n{"a": \n', b"[1]\n", b"", b'{"a": "\xff"}\n'])
def test_a_damaged_file_of_items_is_an_error(tmp_path, content):
    (tmp_path / "x.jsonl").write_bytes(content)
    with expect_error(TaskItemsError):
        read_rows({"test": str(tmp_path / "x.jsonl")}, {"test": None})


def test_tasks_use_no_network_and_leave_no_cache(files, tmp_path):
    script = f"""
import json, os, socket, sys

def refuse(*arguments, **options):
    print("NETWORK", arguments, flush=True)
    os._exit(3)

socket.getaddrinfo = socket.create_connection = refuse
socket.socket.connect = refuse
from runtime.evaluation.run_tasks import FEWSHOT_SEED, _fewshot_from, _scores, run_tasks
from runtime.evaluation.suites import TaskSpec
from runtime.evaluation.tasks import TaskFiles

class Constant:
    def make(self):
        from lm_eval.api.model import LM
        import collections
        class Shortest(LM):
            num_truncated = collections.Counter()
            def loglikelihood(self, requests):
                return [(-float(len(request.args[1])), False) for request in requests]
            def check_generation(self, task_name, arguments):
                assert arguments["until"], task_name
            def loglikelihood_rolling(self, requests):
                raise NotImplementedError
            def generate_until(self, requests):
                return ["The answer is 2." for request in requests]
        return Shortest()

files = TaskFiles(*json.loads({json.dumps(json.dumps(files))}))
specs = [TaskSpec(name) for name in {sorted(ROWS)!r}]
run = run_tasks(Constant().make, specs, files, limit=2)
print(json.dumps([[score.task, score.metric, score.value, score.num_unparsed] for score in run.scores]))
"""
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    child = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stdout + child.stderr
    scores = json.loads(child.stdout.splitlines()[-1])
    assert {task for task, *_ in scores} == set(ROWS)
    assert ["gsm8k_cot", "exact_match,strict-match", 0.5, 0] in scores
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left == []


def test_the_environment_is_restored(files, make_harness, monkeypatch):
    import os

    for name in (*OFFLINE_ENVIRONMENT, "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    before = dict(os.environ)
    run_tasks(make_harness, [TaskSpec("piqa")], files, limit=2)
    assert dict(os.environ) == before


def test_half_of_chance_on_many_items_raises_suspicion_and_a_few_items_do_not():
    facts = {"chance": 0.25, "num_truncated": 0, "num_requests": 4, "num_unparsed": 0}
    check_message(suspicion(value=0.12, num_items=501, **facts))
    assert suspicion(value=0.13, num_items=501, **facts) is None
    assert suspicion(value=0.0, num_items=500, **facts) is None


def test_a_value_near_zero_on_many_generated_answers_raises_suspicion():
    """BBH had 0.0035 over 6,511 items whose answers were not recognized."""
    facts = {"num_truncated": 0, "num_requests": 4, "num_unparsed": 0}
    check_message(suspicion(value=0.0035, chance=None, num_items=6511, **facts))
    assert suspicion(value=0.02, chance=None, num_items=6511, **facts) is None
    assert suspicion(value=0.0, chance=None, num_items=500, **facts) is None
    check_message(suspicion(value=0.0, chance=None, num_items=600, num_truncated=0, num_requests=4, num_unparsed=301))


def test_truncated_prompts_and_unparsed_answers_raise_suspicion():
    facts = {"value": 0.5, "chance": None, "num_items": 10}
    check_message(suspicion(num_truncated=3, num_requests=5, num_unparsed=0, **facts))
    check_message(suspicion(num_truncated=0, num_requests=5, num_unparsed=6, **facts))
    assert suspicion(num_truncated=2, num_requests=4, num_unparsed=5, **facts) is None, "half of them"


def test_truncated_prompts_are_counted_for_their_task(tmp_path, files, make_harness):
    row = ROWS["boolq"](0) | {"passage": "the quick fox " * 200}
    (tmp_path / "boolq.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(ROWS['boolq'](1))}\n")
    long = TaskFiles({**files.scored, "boolq": str(tmp_path / "boolq.jsonl")}, files.fewshot)
    scores = run_tasks(make_harness, [TaskSpec("boolq"), TaskSpec("piqa")], long, limit=2).scores
    assert {score.task: score.num_truncated for score in scores} == {"boolq": 2, "piqa": 0}
