"""lm-eval's own definitions run on local rows, offline, and their scores come with what is needed to judge them."""

import dataclasses
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import jax.numpy as jnp
import pytest
from lm_eval.api.metrics import mean_stderr, pooled_sample_stderr
from lm_eval.evaluator import simple_evaluate
from tokenizers import Tokenizer

from runtime.evaluation.definitions import files_of
from runtime.evaluation.harness import GenerationError, LlamaHarness
from runtime.evaluation.loaded_tasks import FEWSHOT_SEED, LoadedTasks
from runtime.evaluation.placed_model import PlacedModel
from runtime.evaluation.registry import CHOICES, DefinitionError, definitions
from runtime.evaluation.run_tasks import ROUNDING, TaskRun, _is_close, _item_scores, _metrics, _scores, run_tasks
from runtime.evaluation.suites import LAPTOP_TASKS, TaskSpec, tasks_of
from runtime.evaluation.task_score import TaskScore, suspicion
from runtime.evaluation.tasks import (
    OFFLINE_ENVIRONMENT,
    TaskFiles,
    TaskItemsError,
    fewshot_from,
    read_rows,
    task_manager,
    write_definitions,
)
from runtime.interop.chat_template import ChatTemplate
from runtime.interop.huggingface import SpecialTokens
from runtime.model.config import LLAMA3_ROPE
from runtime.text.extraction.limits import DEFAULTS
from tests.catalogue import check_message, expect_error
from tests.runtime.evaluation.own_tasks import FILES, write_own_tasks
from tests.runtime.evaluation.rows import NUM_ROWS, ROWS, task_of, write_files
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


def run_specs(make_harness: Any, specs: Any, files: TaskFiles, **options: Any) -> TaskRun:
    return run_tasks(make_harness, [task_of(spec) for spec in specs], files, **options)


def test_all_laptop_tasks_run_and_score_every_row(files, make_harness):
    run = run_specs(make_harness, LAPTOP_TASKS, files, limit=None)
    assert {score.task for score in run.scores} == {spec.task for spec in LAPTOP_TASKS}
    assert all(score.num_items == NUM_ROWS and score.num_fewshot == 0 for score in run.scores)
    assert {(s.task, s.metric) for s in run.scores} >= {("arc_easy", "acc"), ("arc_easy", "acc_norm"), ("boolq", "acc")}
    assert all(0 <= score.value <= 1 and score.chance and score.fewshot_from == "none" for score in run.scores)


def test_a_score_is_the_mean_over_its_samples_and_limit_takes_the_first_rows(files, make_harness):
    run = run_specs(make_harness, [TaskSpec("boolq")], files, limit=5)
    (score,) = run.scores
    values = [sample["metrics"]["acc"] for sample in run.samples]
    assert score.num_items == len(values) == 5
    assert score.value == pytest.approx(sum(values) / 5)
    assert score.stderr == pytest.approx(mean_stderr(values))
    assert [sample["target"] for sample in run.samples] == [n % 2 for n in range(5)]
    (items,) = run.items
    assert (items.values, items.stderr) == (tuple(values), score.stderr)
    assert items.items[-1] == "boolq_0shot/4" and items.groups == (0, 1, 2, 3, 4)


def test_choices_within_rounding_are_counted():
    def item(*values: float) -> dict[str, Any]:
        arguments = [("Q:", f" {'x' * (1 + index)}") for index in range(len(values))]
        return {"arguments": arguments, "resps": [[(value, False)] for value in values], "metrics": ["acc"]}

    def is_close(sample: dict[str, Any], metric: str, dtype: str = "float32") -> bool:
        return _is_close(sample, metric, ROUNDING[dtype])

    assert is_close(item(-3.0, -1.0, -1.0005), "acc") and not is_close(item(-3.0, -1.0, -1.002), "acc")
    assert is_close(item(-1.0, -2.0005), "acc_norm") and not is_close(item(-1.0, -2.0005), "acc")
    doubled = item(-3.0, -1.0, -1.0, -1.0)
    doubled["metrics"] = ["acc", "acc_mutual_info"]
    assert not is_close(doubled, "acc") and not is_close(doubled, "acc_mutual_info")
    assert is_close({**item(-3.0, -1.0, -2.5, -0.5005), "metrics": doubled["metrics"]}, "acc_mutual_info")
    assert is_close(item(-1.0, -2.0005), "acc_bytes")
    assert not is_close(item(-1.0), "acc")
    assert is_close(item(-1.0, -1.1), "acc", "bfloat16") and not is_close(item(-1.0, -1.1), "acc")


def test_the_first_five_scored_rows_are_samples(files, make_harness):
    run = run_specs(make_harness, [TaskSpec("piqa")], files, limit=None)
    assert run.scores[0].num_items == NUM_ROWS > 5
    assert [sample["doc_id"] for sample in run.samples] == [0, 1, 2, 3, 4]


def test_worked_examples_are_drawn_by_lm_evals_own_seed():
    assert inspect.signature(simple_evaluate).parameters["fewshot_random_seed"].default == FEWSHOT_SEED


def test_a_group_has_worked_examples_of_their_own_only_if_each_of_its_tasks_has(files):
    of_mmlu = {name: path for name, path in files.scored.items() if name.startswith("mmlu_")}
    assert len(of_mmlu) > 1
    for num_own in range(len(of_mmlu) + 1):
        own = dict(list(of_mmlu.items())[:num_own])
        found = fewshot_from(task_of(TaskSpec("mmlu", 1)), TaskFiles(of_mmlu, own), Path())
        assert found == ("rows of their own" if num_own == len(of_mmlu) else "the scored rows")


def test_running_twice_gives_the_same_scores_and_samples(files, make_harness):
    specs = [TaskSpec("arc_easy", 2), TaskSpec("mmlu", 2), TaskSpec("hellaswag"), TaskSpec("hellaswag", 1)]
    assert run_specs(make_harness, specs, files, limit=4) == run_specs(make_harness, specs, files, limit=4)


def test_samples_have_the_prompts_of_lm_evals_definition(files, make_harness):
    run = run_specs(make_harness, [TaskSpec("arc_easy"), TaskSpec("mmlu_astronomy", 1)], files, limit=2)
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
    run = run_specs(make_harness, [TaskSpec("mmlu", 2), TaskSpec("arc_easy", 2)], files, limit=3)
    sources = {score.task: score.fewshot_from for score in run.scores}
    assert sources == {"mmlu": "rows of their own", "arc_easy": "the scored rows"}
    for sample in run.samples:
        if sample["task"].startswith("arc_easy"):
            prompt = sample["requests"][0][0]
            assert prompt.count("Question:") == 3
            assert prompt.count(f"jumps {sample['doc_id']}?") == 1  # the item itself is never its own example


def test_worked_examples_are_drawn_from_all_scored_rows_under_any_limit(files, make_harness):
    run = run_specs(make_harness, [TaskSpec("arc_easy", 4)], files, limit=2)
    assert {score.num_items for score in run.scores} == {2}
    assert all(prompt.count("Question:") == 5 for sample in run.samples for prompt, _ in sample["requests"])


def test_worked_examples_of_the_definition_are_its_prompt(tmp_path, files):
    """The examples of gsm8k_cot reason step by step (arXiv:2201.11903); a row of the set would show a bare number."""
    with_rows = TaskFiles(files.scored, {**files.fewshot, "gsm8k_cot": files.scored["gsm8k_cot"]})
    spec = TaskSpec("gsm8k_cot", 8)
    named = task_of(spec)
    write_definitions(tmp_path, [named], with_rows, tmp_path, limit=2)
    task = task_manager(tmp_path).load([named.label])["tasks"][named.label]
    task.set_fewshot_seed(seed=1234)
    prompt = str(task.fewshot_context(next(iter(task.eval_docs)), 8))
    assert prompt.startswith("Q: There are 15 trees in the grove.") and prompt.count("The answer is") == 8
    assert fewshot_from(named, with_rows, tmp_path) == "the definition"
    with expect_error(DefinitionError):
        task_of(TaskSpec("gsm8k_cot", 9))


def scores_of(name: str, labels: list[str], output: dict[str, Any], truncated: dict[str, int]) -> list[Any]:
    task = task_of(TaskSpec(name, 0))
    choosing = SimpleNamespace(OUTPUT_TYPE="multiple_choice", aggregation=dict)
    loaded = LoadedTasks({task.label: labels}, dict.fromkeys(labels, choosing), {task.label: "none"})
    return list(_scores(task, loaded, output, [*_item_scores(task, loaded, output)], truncated, 1e-3))


def an_answer(number: int, answer_filter: str, value: float, *, found: str = "7") -> dict[str, Any]:
    return {
        "doc_id": number, "doc": {}, "filter": answer_filter, "exact_match": value, "acc": value, "metrics": ["acc"],
        "filtered_resps": [found], "arguments": [("a prompt", "one choice"), ("a prompt", "another")],
        "resps": [[(-1.0, False)], [(-2.0, False)]],
    }  # fmt: skip


def test_each_answer_filter_is_scored_over_its_own_answers():
    strict = [an_answer(number, "strict-match", 0.0, found="[invalid]") for number in range(4)]
    flexible = [an_answer(number, "flexible-extract", 1.0) for number in range(4)]
    keys = {"exact_match,strict-match": 0.0, "exact_match,flexible-extract": 1.0}
    output = {"samples": {"gsm8k_cot_0shot": [*strict, *flexible]}, "results": {"gsm8k_cot_0shot": keys}}
    found = scores_of("gsm8k_cot", ["gsm8k_cot_0shot"], output, {})
    reported = [(score.metric, score.value, score.num_items, score.num_unparsed) for score in found]
    assert reported == [("exact_match,strict-match", 0.0, 4, 4), ("exact_match,flexible-extract", 1.0, 4, 0)]


@pytest.mark.parametrize(("num_truncated", "is_suspicious"), [(4, False), (5, True)])
def test_suspicion_counts_requests_of_which_an_item_makes_several(num_truncated, is_suspicious):
    output = {
        "samples": {"piqa_0shot": [an_answer(number, "none", 0.5) for number in range(4)]},
        "results": {"piqa_0shot": {"acc,none": 0.5, "acc_stderr,none": 0.1}},
    }  # fmt: skip
    (score,) = scores_of("piqa", ["piqa_0shot"], output, {"piqa_0shot": num_truncated})
    assert (score.warning is not None) == is_suspicious


def test_a_group_counts_the_truncated_prompts_of_its_tasks():
    subjects = ["mmlu_astronomy_0shot", "mmlu_world_religions_0shot"]
    output = {
        "samples": {subject: [an_answer(number, "none", 0.5) for number in range(4)] for subject in subjects},
        "results": {subjects[0]: {"acc,none": 0.5, "acc_norm,none": 0.5}, subjects[1]: {"acc,none": 0.5}},
    }
    lost = {subjects[0]: 1, subjects[1]: 2, "another_0shot": 4}
    (score,) = scores_of("mmlu", subjects, output, lost)
    assert (score.metric, score.num_truncated, score.num_items) == ("acc", 3, 8), "acc_norm is not of all its tasks"
    with expect_error(ValueError):
        scores_of("mmlu", subjects, output | {"results": {subjects[0]: {"f1,none": 1}, subjects[1]: {}}}, lost)


def test_a_group_scores_all_items_of_its_tasks_together(files, make_harness):
    subjects = ("mmlu_astronomy", "mmlu_high_school_biology", "mmlu_world_religions")
    (group,) = run_specs(make_harness, [TaskSpec("mmlu")], files, limit=None).scores
    parts = run_specs(make_harness, [TaskSpec(subject) for subject in subjects], files, limit=None).scores
    assert group.num_items == sum(part.num_items for part in parts) == 3 * NUM_ROWS
    assert group.value == pytest.approx(sum(part.value * part.num_items for part in parts) / group.num_items)
    pooled = pooled_sample_stderr([part.stderr for part in parts], [part.num_items for part in parts])
    assert group.stderr == pytest.approx(pooled, rel=0.1)
    check_message(group.warning)
    assert [part.warning for part in parts] == [None] * 3


def test_a_metric_that_is_no_mean_over_items_has_no_standard_error(files, make_harness):
    scores = run_specs(make_harness, [TaskSpec("lambada_openai")], files, limit=2).scores
    perplexity = next(score for score in scores if score.metric == "perplexity")
    assert perplexity.value > 1 and perplexity.stderr is None and perplexity.chance is None


def test_the_listed_chance_is_that_of_the_scored_items(files, make_harness):
    names = sorted(CHOICES.keys() & files.scored.keys())
    found = run_specs(make_harness, [TaskSpec(name, 0) for name in names], files, limit=2).scores
    assert {score.task: score.chance for score in found} == {name: 1 / CHOICES[name] for name in names}


def test_a_task_without_items_is_an_error(files, make_harness):
    with expect_error(TaskItemsError):
        run_specs(make_harness, [TaskSpec("wsc273")], files, limit=None)


@pytest.mark.parametrize("line", [b"[" * 100_000, b" " * (DEFAULTS.max_document_bytes + 1)], ids=["deep", "long"])
def test_a_line_of_items_has_limits(tmp_path, line):
    (tmp_path / "items.jsonl").write_bytes(line)
    with expect_error(ValueError):
        read_rows({"test": str(tmp_path / "items.jsonl")}, {"test": None})


def test_answers_as_long_as_the_context_are_an_error_before_any_score(files, make_harness):
    harness = make_harness()
    harness.loglikelihood = None
    with expect_error(GenerationError):
        run_specs(lambda: harness, [TaskSpec("piqa"), TaskSpec("gsm8k_cot")], files, limit=2)


def test_the_same_task_twice_is_an_error(files, make_harness):
    with expect_error(TaskItemsError):
        run_specs(make_harness, [TaskSpec("piqa"), TaskSpec("piqa", 0)], files, limit=None)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = write_own_tasks(tmp_path_factory.mktemp("own"))
    scored = {path.stem: str(path) for path in sorted((folder / "items").iterdir())}
    return folder, TaskFiles(scored, {}, {name: str(folder / name) for name in FILES})


def test_a_group_of_ones_own_is_scored_by_its_yaml_with_its_code_and_its_own_number_of_examples(own, make_harness):
    folder, files = own
    task = task_of(TaskSpec(str(folder / "animals.yaml"), items="items"))
    assert (task.label, [each.yaml for each in task.definitions]) == ("animals_1shot", ["dogs.yaml", "foxes.yaml"])
    assert [str(path) for path in files_of(folder / "animals.yaml")] == [
        "_template", "animals.yaml", "dogs.yaml", "foxes.yaml", "rows.py",
    ]  # fmt: skip
    run = run_tasks(make_harness, [task], files, limit=None)
    accuracy = next(score for score in run.scores if score.metric == "acc")
    assert (accuracy.num_items, accuracy.fewshot_from, accuracy.chance) == (12, "the scored rows", pytest.approx(1 / 3))
    prompts = {sample["task"]: sample["requests"][0][0] for sample in run.samples}
    assert prompts["foxes_1shot"].startswith("Foxes follow.") and prompts["dogs_1shot"].count("Q:") == 2


def test_prompts_are_conversations_with_worked_examples_as_turns_where_a_run_asks_for_it(own, make_harness):
    folder, files = own
    harness = make_harness()
    harness._template = ChatTemplate("{% for each in messages %}<{{ each.role }}>{{ each.content }}{% endfor %}", {})
    task = task_of(TaskSpec(str(folder / "foxes.yaml"), items="items"))
    sample = run_tasks(lambda: harness, [task], files, limit=2, apply_chat_template=True).samples[0]
    prompt, choice = sample["requests"][0]
    turns = r"<system>Foxes follow\.<user>Q: Which foxes is \d\?\nA:<assistant>(the|fox|dog)"
    turns += r"<user>Q: Which foxes is 0\?\nA:"
    assert re.fullmatch(turns, prompt)
    assert choice == "the", "a turn begins without a blank"


def test_a_groups_settings_for_its_tasks_replace_those_of_their_definitions(own, make_harness):
    folder, files = own
    entries = "  - foxes\n  - {task: dogs, num_fewshot: 2, task_alias: hounds, description: 'Dogs! '}\n"
    (folder / "mixed.yaml").write_text(f"group: mixed\ntask:\n{entries}")
    spec = TaskSpec(str(folder / "mixed.yaml"), items="items")
    tasks = tasks_of(spec)
    assert [task.label for task in tasks] == ["foxes_1shot", "dogs_2shot"], "one score for each number of examples"
    samples = run_tasks(make_harness, tasks, files, limit=2).samples
    assert samples[-1]["requests"][0][0].startswith("Dogs! Q:") and samples[-1]["requests"][0][0].count("Q:") == 3
    together = tasks_of(dataclasses.replace(spec, num_fewshot=0))
    assert [(task.label, len(task.definitions)) for task in together] == [("mixed_0shot", 2)]


def test_settings_of_a_group_reach_the_tasks_of_groups_inside_it(tmp_path):
    for name, number in (("a", 1), ("b", 1), ("c", 3)):
        (tmp_path / f"{name}.yaml").write_text(f"task: {name}\nnum_fewshot: {number}\noutput_type: multiple_choice\n")
    (tmp_path / "inner.yaml").write_text("group: inner\ntask: [{task: a, num_fewshot: 5}, b]\n")
    (tmp_path / "outer.yaml").write_text("group: outer\ntask: [inner, c]\n")
    (tmp_path / "top.yaml").write_text("group: top\nnum_fewshot: 7\ndescription: Hi\ntask: [c, inner]\n")

    def labels(group, **options):
        return [task.label for task in tasks_of(TaskSpec(str(tmp_path / f"{group}.yaml"), items="rows", **options))]

    assert labels("outer") == ["a_5shot", "b_1shot", "c_3shot"]
    assert labels("top") == ["c_7shot", "a_5shot", "b_7shot"]
    assert labels("top", num_fewshot=2) == ["top_2shot"]
    (task,) = tasks_of(TaskSpec(str(tmp_path / "top.yaml"), num_fewshot=2, items="rows"))
    assert {each.settings for each in task.definitions} == {'{"description": "Hi"}'}


def test_groups_of_lm_eval_with_settings_have_their_tasks():
    assert [task.label for task in tasks_of(TaskSpec("tinyBenchmarks"))][:2] == ["tinyArc_25shot", "tinyGSM8k_5shot"]
    (task,) = tasks_of(TaskSpec("multimedqa"))
    assert task.definitions[-1].yaml == definitions()["mmlu_college_biology"]


def test_filters_and_metrics_of_an_own_definition_score_generated_text(own):
    folder, files = own
    harness = SimpleNamespace(
        num_truncated={}, rank=0, world_size=1, check_requests=lambda _: None,
        generate_until=lambda asked: [f"it is {index % 3}" for index, _ in enumerate(asked)],
    )  # fmt: skip
    task = task_of(TaskSpec(str(folder / "written.yaml"), items="items"))
    (score,) = run_tasks(lambda: harness, [task], files, limit=6).scores
    assert (score.metric, score.value, score.num_items) == ("exact_match,number", 1.0, 6)


@pytest.mark.parametrize("num_fewshot", [0, 2])
def test_a_python_class_is_scored_over_local_rows_with_requests_of_two_kinds(own, num_fewshot):
    folder, files = own
    asked: dict[str, list[str]] = {}

    def answers(kind: str, answer: Any) -> Any:
        return lambda requests: (
            asked.setdefault(kind, [each.args[0] for each in requests])
            and [answer(index) for index, _ in enumerate(requests)]
        )

    harness = SimpleNamespace(
        num_truncated={}, rank=0, world_size=1, check_requests=lambda _: None,
        generate_until=answers("generate_until", lambda index: f"it is {index % 2}"),
        loglikelihood=answers("loglikelihood", lambda index: (-float(index), False)),
    )  # fmt: skip
    spec = TaskSpec(str(folder / "classed.yaml"), num_fewshot, items="items")
    scores = {score.metric: score for score in run_tasks(lambda: harness, [task_of(spec)], files, limit=6).scores}
    assert scores["right"].value == pytest.approx(2 / 6) and scores["right"].stderr is not None
    assert scores["none"].value == pytest.approx(-2.5)
    assert all(score.num_items == 6 and score.num_fewshot == num_fewshot for score in scores.values())
    prompts = asked["generate_until"]
    assert prompts == asked["loglikelihood"] and len(prompts) == 6
    for number, prompt in enumerate(prompts):
        assert prompt.endswith(f"Which classed is {number}?")
        assert prompt.count("?") == 1 + num_fewshot - ("no item" in prompt)


@pytest.mark.parametrize(("name", "is_refused"), [("swde", False), ("squad_completion", False), ("squadv2", True)])
def test_a_python_class_of_lm_eval_is_scored_unless_it_fetches_its_metric(tmp_path, name, is_refused):
    if is_refused:
        with expect_error(DefinitionError):
            task_of(TaskSpec(name))
        return
    rows = [{"text": f"Fox {number} is", "value": "quick"} for number in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    harness = SimpleNamespace(
        num_truncated={}, rank=0, world_size=1, check_requests=lambda _: None,
        generate_until=lambda asked: ["quick" if index else "slow" for index, _ in enumerate(asked)],
    )  # fmt: skip
    (score,) = run_specs(
        lambda: harness, [TaskSpec(name)], TaskFiles({name: str(tmp_path / "rows.jsonl")}), limit=None
    )[0]
    assert (score.metric, score.value, score.num_items) == ("contains", 0.75, 4)


def test_more_examples_than_rows_are_an_error_that_counts_copies_of_an_item(tmp_path, files, make_harness):
    rows = Path(files.scored["arc_easy"]).read_text().splitlines()
    (tmp_path / "copies.jsonl").write_text("\n".join([*rows[:3], rows[0]]) + "\n")
    few = TaskFiles({"arc_easy": str(tmp_path / "copies.jsonl")})
    assert run_specs(make_harness, [TaskSpec("arc_easy", 2)], few, limit=2).scores
    with expect_error(TaskItemsError):
        run_specs(make_harness, [TaskSpec("arc_easy", 3)], few, limit=2)


def test_a_class_that_draws_examples_from_its_scored_rows_needs_more_rows_than_examples(own):
    folder, files = own
    num_rows = len(Path(files.scored["classed"]).read_text().splitlines())
    spec = TaskSpec(str(folder / "classed.yaml"), num_rows, items="items")
    harness = SimpleNamespace(num_truncated={}, rank=0, world_size=1, check_requests=lambda _: None)
    with expect_error(TaskItemsError):
        run_tasks(lambda: harness, [task_of(spec)], files, limit=2)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.yaml", "include: a.yaml\n"),
        ("b.yaml", "- a\n"),
        ("c.yaml", "group: c\ntask: [d]\n"),
        ("e.yaml", "output_type: generate_until\n"),
        ("f.yaml", "task: f\nclass: !function fetches.F\n"),
        ("g.yaml", "include: ../g.yaml\ntask: g\n"),
        ("h.yaml", "group: h\ntask: [{num_fewshot: 2}]\n"),
        ("i.yaml", "group: i\ntask: [i]\n"),
        ("j.yaml", "task: j\nprocess_docs: !function needs.prepare\n"),
        ("k.yaml", "group: k\ntask: [zero, one]\n"),
        ("l.yaml", "group: l\ntask: [zero, choice]\n"),
        ("m.yaml", "task: m\ngeneration_kwargs: [do_sample]\n"),
    ],
)
def test_a_definition_of_ones_own_that_cannot_be_used_is_an_error(tmp_path, name, content):
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / name).write_text(content)
    (tmp_path / "g.yaml").write_text("output_type: multiple_choice\n")
    (folder / "zero.yaml").write_text("task: zero\n")
    (folder / "choice.yaml").write_text("task: choice\noutput_type: multiple_choice\n")
    (folder / "one.yaml").write_text("task: one\nnum_fewshot: 1\n")
    (folder / "fetches.py").write_text("def score():\n    import evaluate\n")
    (folder / "needs.py").write_text("try:\n    import math_verify\nexcept ImportError as error:\n    raise error\n")
    with expect_error(DefinitionError):
        task_of(TaskSpec(str(folder / name), items="rows.jsonl"))
        files_of(folder / name)


CHOOSING = """
task: t
output_type: multiple_choice
doc_to_text: "Q: {{question}}"
doc_to_choice: [a, b]
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}]
"""


@pytest.mark.parametrize(
    ("change", "row"),
    [
        (("", ""), {"answer": 1}),
        (("", ""), {"question": "?", "answer": "c"}),
        (("", ""), {"question": "?", "answer": None}),
        (("", ""), {"question": "?", "answer": -1}),
        (("", ""), {"question": 3, "answer": 1}),
        (("metric: acc", "metric: accurcy"), {"question": "?", "answer": 1}),
        (("[{metric: acc}]", "[acc]"), {"question": "?", "answer": 1}),
        (("[{metric: acc}]", "acc"), {"question": "?", "answer": 1}),
        (("question}}", "question"), {"question": "?", "answer": 1}),
        (("task: t", "task: t\nshots: 2"), {"question": "?", "answer": 1}),
        (("task: t", "task: t\nprocess_results: !function rows.fail"), {"question": "?", "answer": 1}),
    ],
    ids=["column", "choice", "none", "negative", "types", "metric", "name", "text", "template", "key", "function"],
)
def test_a_definition_or_row_that_lm_eval_cannot_use_is_an_error_that_names_the_task(tmp_path, change, row):
    (tmp_path / "t.yaml").write_text(CHOOSING.replace(*change) if change[0] else CHOOSING)
    (tmp_path / "rows.py").write_text("def fail(doc, results):\n    return {'acc': doc['other']}\n")
    (tmp_path / "t.jsonl").write_text(
        "".join(json.dumps(each) + "\n" for each in ({"question": "!", "answer": 0}, row))
    )
    own = {path: str(tmp_path / path) for path in ("t.yaml", "rows.py")}
    harness = SimpleNamespace(
        num_truncated={}, rank=0, world_size=1, check_requests=lambda _: None,
        loglikelihood=lambda asked: [(-1.0, False) for _ in asked],
    )  # fmt: skip
    make_harness = Mock(return_value=harness)
    if "question" not in row:
        (tmp_path / "t.jsonl").write_text(f"{json.dumps(row)}\n" * 2)
    task = task_of(TaskSpec(str(tmp_path / "t.yaml"), items="items"))
    with expect_error(TaskItemsError):
        run_tasks(make_harness, [task], TaskFiles({"t": str(tmp_path / "t.jsonl")}, {}, own), limit=None)
    assert make_harness.called == ("process_results" in change[1]), "only an answer needs the model"


def test_a_column_that_only_later_rows_have_is_read(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"a": 1}\n{"a": 2, "b": "x"}\n')
    rows = read_rows({"test": str(tmp_path / "t.jsonl")}, {"test": None})["test"]
    assert [*rows] == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


def test_a_task_without_a_metric_is_an_error():
    with expect_error(ValueError):
        _metrics(["own_0shot"], {"results": {"own_0shot": {"alias": "own"}}})


CODE = {
    "humaneval": {
        "prompt": "def add(a, b):\n", "test": "def check(f):\n    assert f(1, 2) == 3\n", "entry_point": "add",
    },
    "mbpp": {"text": "Add two.", "code": "", "test_list": ["assert add(1, 2) == 3"] * 3},
}  # fmt: skip


def test_generated_code_runs_only_if_allowed_and_passes_if_its_tests_pass(tmp_path):
    for name, row in CODE.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row) + "\n")
    files = TaskFiles({name: str(tmp_path / f"{name}.jsonl") for name in CODE})
    right, wrong = "def add(a, b):\n    return a + b\n", "def add(a, b):\n    return a - b\n"
    harness = SimpleNamespace(
        num_truncated={}, rank=0, world_size=1, check_requests=lambda _: None,
        generate_until=lambda asked: [
            (right if number % 2 else wrong).removeprefix("" if "Add two" in each.args[0] else "def add(a, b):\n")
            for number, each in enumerate(asked)
        ],
    )  # fmt: skip
    specs = [TaskSpec(name) for name in CODE]
    with expect_error(ValueError):
        run_specs(lambda: harness, specs, files, limit=None)
    scores = run_specs(lambda: harness, specs, files, limit=None, run_generated_code=True).scores
    assert {(score.task, score.value, score.num_items) for score in scores} == {("humaneval", 0.5, 2), ("mbpp", 0.5, 2)}


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
from runtime.evaluation.run_tasks import run_tasks
from runtime.evaluation.suites import TaskSpec, tasks_of
from runtime.evaluation.tasks import TaskFiles

class Constant:
    def make(self):
        from lm_eval.api.model import LM
        import collections
        class Shortest(LM):
            num_truncated = collections.Counter()
            def loglikelihood(self, requests):
                return [(-float(len(request.args[1])), False) for request in requests]
            def check_requests(self, requests):
                assert all(request.args[1]["until"] for request in requests if request.request_type == "generate_until")
            def loglikelihood_rolling(self, requests):
                raise NotImplementedError
            def generate_until(self, requests):
                return ["The answer is 2." for request in requests]
        return Shortest()

files = TaskFiles(*json.loads({json.dumps(json.dumps(files))}))
specs = [TaskSpec(name) for name in {sorted(ROWS)!r}]
run = run_tasks(Constant().make, [tasks_of(spec)[0] for spec in specs], files, limit=2)
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
    run_specs(make_harness, [TaskSpec("piqa")], files, limit=2)
    assert dict(os.environ) == before


def a_score(value: float, num_items: int, **facts: object) -> TaskScore:
    known = {"stderr": None, "chance": None, "fewshot_from": "none", "num_truncated": 0, "num_unparsed": 0} | facts
    return TaskScore("piqa", 0, "acc", value, num_items=num_items, **known)


def test_half_of_chance_on_many_items_raises_suspicion_and_a_few_items_do_not():
    check_message(suspicion(a_score(0.12, 501, chance=0.25), num_requests=4))
    assert suspicion(a_score(0.13, 501, chance=0.25), num_requests=4) is None
    assert suspicion(a_score(0.0, 500, chance=0.25), num_requests=4) is None


def test_a_value_near_zero_on_many_generated_answers_raises_suspicion():
    """BBH had 0.0035 over 6,511 items whose answers were not recognized."""
    check_message(suspicion(a_score(0.0035, 6511), num_requests=4))
    assert suspicion(a_score(0.02, 6511), num_requests=4) is None
    assert suspicion(a_score(0.0, 500), num_requests=4) is None
    check_message(suspicion(a_score(0.0, 600, num_unparsed=301), num_requests=4))


def test_truncated_prompts_and_unparsed_answers_raise_suspicion():
    check_message(suspicion(a_score(0.5, 10, num_truncated=3), num_requests=5))
    check_message(suspicion(a_score(0.5, 10, num_unparsed=6), num_requests=5))
    assert suspicion(a_score(0.5, 10, num_truncated=2, num_unparsed=5), num_requests=4) is None, "half of them"


def test_truncated_prompts_are_counted_for_their_task(tmp_path, files, make_harness):
    row = ROWS["boolq"](0) | {"passage": "the quick fox " * 200}
    (tmp_path / "boolq.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(ROWS['boolq'](1))}\n")
    long = TaskFiles({**files.scored, "boolq": str(tmp_path / "boolq.jsonl")}, files.fewshot)
    scores = run_specs(make_harness, [TaskSpec("boolq"), TaskSpec("piqa")], long, limit=2).scores
    assert {score.task: score.num_truncated for score in scores} == {"boolq": 2, "piqa": 0}
