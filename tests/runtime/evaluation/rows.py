"""A few rows of each task, in the columns that lm-eval's own definitions read."""

import json
from pathlib import Path

from runtime.evaluation.suites import TaskSpec, tasks_of
from runtime.evaluation.task import Task
from runtime.evaluation.tasks import TaskFiles

NUM_ROWS = 8


def arc(number: int) -> dict[str, object]:
    choices = {"text": ["the fox", f"a dog {number}", "fish", "nothing"], "label": ["A", "B", "C", "D"]}
    return {"id": str(number), "question": f"Which of them jumps {number}?", "choices": choices, "answerKey": "B"}


def mmlu(number: int) -> dict[str, object]:
    return {
        "question": f"How many dogs are {number}?", "choices": ["0", "1", "2", "3"], "answer": number % 4,
    }  # fmt: skip


ROWS = {
    "arc_easy": arc,
    "arc_challenge": arc,
    "boolq": lambda n: {"question": f"is {n} a fox", "passage": f"Foxes are {n} foxes.", "label": n % 2},
    "commonsense_qa": lambda n: {
        "question": f"Where is dog {n}?", "answerKey": "C",
        "choices": {"label": list("ABCDE"), "text": ["a", "b", "c", "d", "e"]},
    },
    "copa": lambda n: {
        "premise": f"The fox {n} fell.", "choice1": "It was lazy.", "choice2": "It jumped.", "question": "cause",
        "label": n % 2, "idx": n,
    },
    "gsm8k_cot": lambda n: {"question": f"What is {n} and {n}?", "answer": f"It is so. #### {2 * n}"},
    "hellaswag": lambda n: {
        "ind": n, "activity_label": "Jumping", "ctx_a": "A fox is there.", "ctx_b": "it", "label": str(n % 4),
        "ctx": "A fox is there. it", "endings": ["jumps.", "sleeps.", "eats [title] a dog.", "goes."],
    },
    "lambada_openai": lambda n: {"text": f"the quick brown fox {n} jumps over the lazy dog"},
    "openbookqa": lambda n: {
        "id": str(n), "question_stem": f"Fox {n} is", "answerKey": "A",
        "choices": {"text": ["quick", "lazy", "blue", "old"], "label": ["A", "B", "C", "D"]},
    },
    "piqa": lambda n: {"goal": f"Catch fox {n}", "sol1": "run", "sol2": "wait for it", "label": n % 2},
    "sciq": lambda n: {
        "question": f"Who is {n}?", "support": "The fox is.", "correct_answer": "fox", "distractor1": "dog",
        "distractor2": "cat", "distractor3": "cow",
    },
    "social_iqa": lambda n: {
        "context": f"Fox {n} ran.", "question": "Why?", "answerA": "fun", "answerB": "fear", "answerC": "food",
        "label": str(n % 3 + 1),
    },
    "winogrande": lambda n: {
        "sentence": f"The fox {n} beat the dog since _ was quick.", "option1": "the fox", "option2": "the dog",
        "answer": str(n % 2 + 1),
    },
    **{f"mmlu_{subject}": mmlu for subject in ("astronomy", "high_school_biology", "world_religions")},
}  # fmt: skip

OF_SUITES = {
    **ROWS,
    "agieval_lsat_ar": lambda n: {"query": f"Who {n}? A:", "choices": [f"({c}) {n}" for c in "ABCDE"], "gold": [n % 5]},
    "bbh_cot_fewshot_navigate": lambda n: {"input": f"Turn {n} times.", "target": "2"},
    "gsm8k": ROWS["gsm8k_cot"],
    "hendrycks_math_algebra": lambda n: {
        "problem": f"{n} + {n}?", "solution": f"It is $\\boxed{{{2 * n}}}$.", "level": "Level 1", "type": "Algebra",
    },
    "humaneval": lambda n: {
        "prompt": "def add(a, b):\n", "test": "def check(f):\n    assert f(1, 2) == 3\n", "entry_point": "add",
    },
    "leaderboard_mmlu_pro": lambda n: {
        "question": f"How many are {n}?", "options": list("0123456789"), "answer": "B", "answer_index": 1,
    },
    "mbpp": lambda n: {"text": "Add two.", "code": "", "test_list": ["assert add(1, 2) == 3"] * 3},
    "nq_open": lambda n: {"question": f"how many are {n}", "answer": ["2", "two"]},
    "triviaqa": lambda n: {"question": f"How many are {n}", "answer": {"aliases": ["2", "two"]}},
    "wsc273": lambda n: {
        "text": f"The fox {n} chased the dog since it was quick.", "pronoun": "it", "pronoun_loc": 32,
        "quote": "it was", "options": ["The fox", "The dog"], "label": n % 2,
    },
}  # fmt: skip
"""A row of each task of the suites, or of one of its group."""


def write_files(folder: Path) -> TaskFiles:
    """Write a jsonl file for each task, and worked examples for MMLU."""
    folder.mkdir(parents=True, exist_ok=True)

    def write(name: str, make: object, first: int) -> str:
        path = folder / f"{name}.jsonl"
        lines = [json.dumps(make(number)) for number in range(first, first + NUM_ROWS)]  # type: ignore[operator]
        path.write_text("\n".join(lines) + "\n")
        return str(path)

    return TaskFiles(
        scored={name: write(name, make, 0) for name, make in ROWS.items()},
        fewshot={name: write(f"{name}.fewshot", mmlu, 100) for name in ROWS if name.startswith("mmlu_")},
    )


def task_of(spec: TaskSpec) -> Task:
    (task,) = tasks_of(spec)
    return task
