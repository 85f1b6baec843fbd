"""Suites name real definitions, at the shots of the published recipe."""

import json
import subprocess
import sys
from pathlib import Path

import lm_eval.tasks
import pytest
from lm_eval.tasks._yaml_loader import load_yaml

from runtime.evaluation.harness import generation_request
from runtime.evaluation.suites import (
    CORE_TASKS,
    DEFINITIONS,
    FINAL_TASKS,
    LAPTOP_TASKS,
    MMLU_SUBJECTS,
    MMLU_TASKS,
    TaskSpec,
    members,
)
from tests.catalogue import expect_error

INSTALLED = Path(lm_eval.tasks.__file__).parent


@pytest.mark.parametrize("name", [name for name in DEFINITIONS if not name.startswith("mmlu_")])
def test_every_definition_exists_in_the_installed_package(name):
    config = load_yaml(INSTALLED / DEFINITIONS[name].yaml, resolve_func=False)
    assert config["task"] == name
    assert (DEFINITIONS[name].chance is None) == (config["output_type"] != "multiple_choice")
    way = generation_request(config["generation_kwargs"]) if config["output_type"] == "generate_until" else None
    assert DEFINITIONS[name].max_new_tokens == (way and way.max_new_tokens)


def test_mmlu_has_the_57_subjects_of_the_installed_package():
    there = {path.stem.removeprefix("mmlu_") for path in (INSTALLED / "mmlu" / "default").glob("mmlu_*.yaml")}
    assert set(MMLU_SUBJECTS) == there and len(MMLU_SUBJECTS) == 57
    assert members("mmlu") == tuple(f"mmlu_{subject}" for subject in MMLU_SUBJECTS)
    assert members("piqa") == ("piqa",)


def test_core_tasks_have_the_shots_of_the_published_recipe():
    published = (
        "agieval_lsat_ar 3, arc_easy 10, arc_challenge 10, boolq 10, commonsense_qa 10, copa 0, hellaswag 0, "
        "hellaswag 10, lambada_openai 0, openbookqa 0, piqa 10, wsc273 0, winogrande 0"
    )
    assert ", ".join(f"{spec.task} {spec.num_fewshot}" for spec in CORE_TASKS) == published
    assert [(spec.task, spec.num_fewshot) for spec in MMLU_TASKS] == [("mmlu", 0), ("mmlu", 5)]


def test_no_suite_has_a_task_twice():
    for suite in (CORE_TASKS, MMLU_TASKS, FINAL_TASKS, LAPTOP_TASKS):
        assert len({spec.label for spec in suite}) == len(suite)


def test_an_unknown_task_is_an_error():
    with expect_error(ValueError):
        TaskSpec("arc_esay")
    with expect_error(ValueError):
        TaskSpec("piqa", -1)


def test_suites_need_no_heavy_import():
    code = (
        "import json, sys, runtime.evaluation.suites, runtime.evaluation.task_score, runtime.model.architectures;"
        "heavy = {'jax', 'numpy', 'lm_eval', 'datasets', 'tokenizers', 'safetensors'};"
        "print(json.dumps(sorted(heavy & set(sys.modules))))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(output) == []
