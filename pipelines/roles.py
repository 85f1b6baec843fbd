"""Roles of a recipe's components, so that smaller sources can stand in for them.

The recipe names about thirty data sets; a laptop has seven sources and a user's folder may have two. Each source
declares its role, and a mixture is the recipe's mixture with the weights of a role added up.
"""

import re
from collections.abc import Iterable, Mapping

from pipelines.mixtures import Weights, stand_in

COMPONENT_ROLES = {
    "dclm_baseline": "web",
    "dolmino_dclm": "web",
    "nemotron_hq_actual": "web",
    "nemotron_hq_synth": "web",
    "nemotron_medium_high": "web",
    "nemotron_medium": "web",
    "nemotron_medium_low": "web",
    "nemotron_low_actual": "web",
    "nemotron_low_synth": "web",
    "starcoderdata": "code",
    "proofpile_2": "math",
    "algebraic_stack": "math",
    "open_web_math": "math",
    "finemath_3_plus": "math",
    "all_math": "math",
    "arxiv": "papers",
    "arxiv_markdownified": "papers",
    "pes2o": "papers",
    "wiki": "encyclopedia",
    "wikipedia_markdown": "encyclopedia",
    "megawika": "encyclopedia",
    "stackexchange": "questions",
    "stackexchange_custom": "questions",
    "medu_science_qa": "textbook",
    "flan": "textbook",
    "tulu_sft": "questions",
}

ROLES = tuple(sorted(set(COMPONENT_ROLES.values())))

PRIORITY = ("textbook", "encyclopedia", "papers", "math", "questions", "code", "web")
"""The order in which sources keep a text that several have: texts written to teach first, the web last."""

# The first word of a file's name in a user's folder, and the role that it gives.
ROLE_WORDS = {role: role for role in ROLES} | {
    "c4": "web",
    "crawl": "web",
    "lean": "math",
    "arxiv": "papers",
    "plos": "papers",
    "wiki": "encyclopedia",
    "wikipedia": "encyclopedia",
    "factbook": "encyclopedia",
    "stackexchange": "questions",
    "qa": "questions",
    "howto": "questions",
    "textbooks": "textbook",
    "books": "textbook",
    "flan": "textbook",
    "instructions": "textbook",
}


def role_of_file(stem: str) -> str:
    """Return the role of a user's source by the first word of its file's name; web for an unknown word."""
    return ROLE_WORDS.get(re.split("[^a-z0-9]", stem.lower())[0], "web")


def weights_by_source(weights: Mapping[str, float], sources: Mapping[str, tuple[str, float]]) -> Weights:
    """Return the recipe's `weights` by the given sources, each of which is (role, size in bytes).

    Sources of one role share its weight by size. The weight of a role without a source goes to the web sources, or
    without any to all sources by size.
    """
    by_role = stand_in(weights, COMPONENT_ROLES)
    total: Weights = {}
    for role, weight in by_role.items():
        for source, share in _shares(_players(role, sources)):
            total[source] = total.get(source, 0.0) + weight * share
    return total


def _players(role: str, sources: Mapping[str, tuple[str, float]]) -> dict[str, float]:
    for wanted in (role, "web"):
        players = {name: size for name, (played, size) in sources.items() if played == wanted}
        if players:
            return players
    return {name: size for name, (_, size) in sources.items()}


def _shares(sizes: Mapping[str, float]) -> Iterable[tuple[str, float]]:
    total = sum(sizes.values())
    return [(name, size / total) for name, size in sorted(sizes.items())]
