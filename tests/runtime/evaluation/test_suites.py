"""Suites name real definitions, at the shots of the published recipe."""

import json
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from lm_eval.tasks._yaml_loader import load_yaml

from runtime.evaluation.definitions import find_definition, read_definition, read_facts
from runtime.evaluation.harness import generation_request
from runtime.evaluation.loaded_tasks import loaded_tasks
from runtime.evaluation.registry import (
    CHOICES,
    CLOZE,
    LETTERED,
    SETTINGS,
    DefinitionError,
    definitions,
    groups,
    installed,
    items_of,
    members,
)
from runtime.evaluation.run_tasks import run_tasks
from runtime.evaluation.suites import CORE_TASKS, MMLU_TASKS, SUITES, TaskSpec, tasks_of
from runtime.evaluation.tasks import TaskFiles, right_choice
from tests.catalogue import expect_error
from tests.runtime.evaluation.rows import OF_SUITES, task_of


def test_every_listed_definition_is_in_the_installed_package_under_its_name():
    for name, path in definitions().items():
        assert read_definition(installed() / path)["task"] in (name, items_of(name))
    assert {name: find_definition(name) for name in ("piqa", "gsm8k", "bbh_cot_fewshot_snarks")} == {
        name: definitions()[name] for name in ("piqa", "gsm8k", "bbh_cot_fewshot_snarks")
    }
    bbh = read_definition(installed() / "bbh/cot_fewshot/_bbh_cot_fewshot.yaml")
    assert groups()["bbh_cot_fewshot"] == tuple(bbh["task"])


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_has_legal_shots_and_no_task_twice(suite):
    tasks = [task for spec in SUITES[suite] for task in tasks_of(spec)]
    assert len({task.label for task in tasks}) == len(tasks)
    for task in tasks:
        facts = [read_facts(installed() / each.yaml) for each in task.definitions]
        assert len({(each.output_type, each.has_examples, each.runs_code) for each in facts}) == 1, task.name
        assert all(each.num_examples in (None, facts[0].num_examples) for each in facts), task.name
        is_choice = facts[0].output_type == "multiple_choice"
        assert is_choice == (items_of(task.name) in CHOICES or facts[0].num_choices is not None), task.name
        assert task.runs_code == (suite == "code")


TEXTS = {
    "bbh_cot_fewshot_navigate": "So the answer is 2.", "hendrycks_math_algebra": "It is $2$.",
    "nq_open": "Two", "triviaqa": "two", "humaneval": "    return a + b\n",
    "mbpp": "def add(a, b):\n    return a + b\n",
}  # fmt: skip
"""Right answers of item 1; other tasks that write text take TEXT."""
TEXT = "The answer is 2.\n#### 2"


def test_every_task_of_every_suite_runs_at_its_shots_with_its_metric(tmp_path):
    files, num_rows = {}, 12  # more than the most worked examples
    for name, row in OF_SUITES.items():
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row(number)) + "\n" for number in range(num_rows)))
        files[name] = str(path)
    harness = SimpleNamespace(
        num_truncated={}, rank=0, world_size=1, check_requests=lambda _: None,
        loglikelihood=lambda asked: [(-float(len(each.args[1])), False) for each in asked],
        generate_until=lambda asked: [TEXTS.get(each.task_name.rpartition("_")[0], TEXT) for each in asked],
    )  # fmt: skip
    specs = dict.fromkeys(spec for suite in SUITES.values() for spec in suite if spec.task != "ifeval")
    tasks = [task_of(spec) for spec in specs]
    unique = list({task.label: task for task in tasks}.values())
    run = run_tasks(lambda: harness, unique, TaskFiles(files), limit=2, run_generated_code=True)
    assert {(score.task, score.num_fewshot) for score in run.scores} == {
        (task.name, task.num_fewshot) for task in unique
    }
    for score in run.scores:
        assert score.num_items == (6 if score.task in ("mmlu", "mmlu_continuation") else 2), score
        if score.chance is None and score.task != "lambada_openai":
            assert score.value >= 0.5, score
    prompt = next(sample["requests"][0][0] for sample in run.samples if sample["task"] == "agieval_lsat_ar_3shot")
    assert len(re.findall(r"A: \([A-E]\) \d", prompt)) == 3


def test_the_lettered_form_of_a_task_lists_the_choices_of_the_other_form_and_has_the_same_right_one(tmp_path):
    pairs = {name: items_of(name) for name in SETTINGS if name.endswith(LETTERED)}
    pairs |= {"commonsense_qa": f"commonsense_qa{CLOZE}"}
    rows = {items_of(name): OF_SUITES[items_of(name)] for name in pairs}
    for name, row in rows.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row(number)) + "\n" for number in range(4)))
    files = TaskFiles({name: str(tmp_path / f"{name}.jsonl") for name in rows})
    tasks = [task_of(TaskSpec(name, 0)) for pair in pairs.items() for name in pair]
    with loaded_tasks(tasks, files, limit=None) as loaded:
        prompts = {}
        for pair in pairs.items():
            lettered, cloze = (loaded.by_label[f"{name}_0shot"] for name in pair)
            for doc, other in zip(lettered.eval_docs, cloze.eval_docs, strict=True):
                assert right_choice("", lettered, doc) == right_choice("", cloze, other)
                texts, letters = cloze.doc_to_choice(other), lettered.doc_to_choice(doc)
                assert letters == list("ABCDE")[: len(texts)]
                if pair[1] == "winogrande":  # whose choices are prompts
                    texts = [doc["option1"], doc["option2"]]
                listed = "".join(f"{letter}. {text}\n" for letter, text in zip(letters, texts, strict=True))
                prompt = prompts[pair[0]] = lettered.doc_to_text(doc)
                assert prompt.replace("\n ", "\n").endswith(f"\n{listed}Answer:"), prompt
    assert prompts["arc_easy_lettered"] == (
        "Question: Which of them jumps 3?\n A. the fox\n B. a dog 3\n C. fish\n D. nothing\nAnswer:"
    )


def test_facts_are_those_that_lm_eval_reads():
    for name in ("gsm8k_cot", "ifeval", "boolq", "lambada_openai", "bbh_cot_fewshot_snarks"):
        config = load_yaml(installed() / definitions()[name], resolve_func=False)
        facts = read_facts(installed() / definitions()[name])
        assert facts.output_type == config["output_type"]
        way = generation_request(config["generation_kwargs"]) if facts.output_type == "generate_until" else None
        assert facts.max_new_tokens == (way.max_new_tokens if way else 0)
        samples = (config.get("fewshot_config") or {}).get("samples")
        assert facts.num_examples == (None if samples is None else len(samples))


def test_groups_have_the_tasks_of_the_installed_package():
    assert {group: len(names) for group, names in groups().items()} == {
        "mmlu": 57, "mmlu_continuation": 57, "bbh_cot_fewshot": 27, "hendrycks_math": 7,
    }  # fmt: skip
    assert members("mmlu")[:2] == ("mmlu_abstract_algebra", "mmlu_anatomy")
    assert members("piqa") == ("piqa",)


def test_a_package_without_the_tasks_of_a_group_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("runtime.evaluation.registry.installed", lambda: tmp_path / "tasks")
    with expect_error(DefinitionError):
        groups.__wrapped__()


def test_core_tasks_have_the_shots_of_the_published_recipe():
    published = (
        "agieval_lsat_ar 3, arc_easy 10, arc_challenge 10, boolq 10, commonsense_qa 10, copa 0, hellaswag 0, "
        "hellaswag 10, lambada_openai 0, openbookqa 0, piqa 10, wsc273 0, winogrande 0"
    )
    assert ", ".join(f"{spec.task} {spec.num_fewshot}" for spec in CORE_TASKS) == published
    assert [(spec.task, spec.num_fewshot) for spec in MMLU_TASKS] == [("mmlu", 0), ("mmlu", 5)]


def test_an_unknown_task_is_an_error():
    with expect_error(DefinitionError):
        tasks_of(TaskSpec("arc_esay"))
    with expect_error(ValueError):
        TaskSpec("piqa", -1)
    for fields in ({"task": "a.yaml"}, {"task": "piqa", "fewshot_items": "a.jsonl"}):
        with expect_error(ValueError):
            TaskSpec(**fields)


def test_suites_need_no_heavy_import():
    code = (
        "import json, sys, runtime.evaluation.suites, runtime.evaluation.task_score, runtime.model.architectures;"
        "heavy = {'jax', 'numpy', 'lm_eval', 'datasets', 'tokenizers', 'safetensors'};"
        "print(json.dumps(sorted(heavy & set(sys.modules))))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(output) == []
