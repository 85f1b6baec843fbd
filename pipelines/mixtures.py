"""Mixtures of the Tootsie 8B run, by the component names of the public recipe.

Weights are written as in the recipe (TiB, billions of tokens, shares); only their ratios count. The public loader
truncated shares to whole samples in blocks of 2,048, so three sources of the first dessert mixture were never drawn.
Shares are exact here, deliberately.
"""

import math
from collections.abc import Mapping

Weights = dict[str, float]


def scaled(weights: Mapping[str, float], share: float) -> Weights:
    """Return `weights` scaled to sum to `share`."""
    total = math.fsum(weights.values())
    return {name: share * weight / total for name, weight in weights.items()}


# Phase 1 and 2: DCLM's own recipe, in trillions of tokens.
DCLM: Weights = {"dclm_baseline": 3.8, "starcoderdata": 0.25, "proofpile_2": 0.055}

# The seven Nemotron-CC splits by their size in TiB.
NEMOTRON: Weights = {
    "nemotron_hq_actual": 935.43 / 1024,
    "nemotron_hq_synth": 2.72,
    "nemotron_medium_high": 844.51 / 1024,
    "nemotron_medium": 3.38,
    "nemotron_medium_low": 1.54,
    "nemotron_low_actual": 718.06 / 1024,
    "nemotron_low_synth": 642.78 / 1024,
}

# High-quality sources of the first cooldown, in billions of tokens.
HIGH_QUALITY: Weights = {
    "algebraic_stack": 11.5,
    "arxiv": 27.9,
    "megawika": 4.44,
    "open_web_math": 5.06,
    "pes2o": 58.1,
    "stackexchange": 17.1,
    "wiki": 3.65,
    "finemath_3_plus": 34.0,
}

COOLDOWN_WEB: Weights = {"dolmino_dclm": 700.0, "starcoderdata": 23.0}

# Jellyfish: 70 % web, 30 % high quality.
COOLDOWN_V1: Weights = scaled(COOLDOWN_WEB, 0.7) | scaled(HIGH_QUALITY, 0.3)

DESSERT: Weights = {"flan": 17.0, "all_math": 4.217}

# The first dessert swapped the shares of the dessert and of high quality, which was found after the run. The branch
# stays in the recipe.
DESSERT_BAD: Weights = scaled(COOLDOWN_WEB, 0.7) | scaled(HIGH_QUALITY, 0.1) | scaled(DESSERT, 0.2)
DESSERT_REPAIRED: Weights = scaled(COOLDOWN_WEB, 0.7) | scaled(HIGH_QUALITY, 0.2) | scaled(DESSERT, 0.1)

COOLDOWN_V2: Weights = scaled(COOLDOWN_WEB, 0.7) | scaled(HIGH_QUALITY | {"all_math": 4.217}, 0.25) | {"flan": 0.05}

# Spoonbill: a little instruction data. The retrospective has 0.3 % and 1 %; the code that ran has 0.1 % and 2.9 %.
SPOONBILL: Weights = scaled(COOLDOWN_V1, 0.97) | {"tulu_sft": 0.001, "flan": 0.029}

# Phoenix: 2,000 steps on both, then Nemotron and code.
PHOENIX_WARM: Weights = DCLM | NEMOTRON
PHOENIX: Weights = NEMOTRON | {"starcoderdata": 0.25}

STARLING: Weights = scaled(NEMOTRON, 0.7) | scaled(
    {
        "starcoderdata": 0.25,
        "proofpile_2": 0.25,
        "flan": 0.17,
        "pes2o": 0.2905,
        "stackexchange": 0.0855,
        "wiki": 0.01825,
        "all_math": 0.0422,
        "arxiv_markdownified": 0.2905,
        "stackexchange_custom": 0.0855,
        "wikipedia_markdown": 0.01825,
        "medu_science_qa": 0.006,
        # The public recipe reads this corpus under a second name (finemath-3-plus), which restarted its read position.
        "finemath_3_plus": 0.17,
    },
    0.3,
)
