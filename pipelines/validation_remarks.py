"""Validation remarks: phases whose held-out text is measured as they begin and end, and never between.

One number for all phases of a recipe leaves a short one so, and rightly: of a phase that takes over the number of one
before it that is measured on its way there is nothing to say. Nor is there of a phase of one update, in which no number
finds a step between, or of one whose number is its length.
"""

from collections.abc import Mapping

from marin_dag.plan.lint import LintWarning
from runtime.training.timeline import Leg

MEASUREMENTS = 10
"""That many a phase has by what is proposed instead."""


def validation_remarks(legs: Mapping[str, Leg]) -> dict[str, list[LintWarning]]:
    """By phase; of those that are measured on their way, or not at all, there is no entry."""
    return {
        name: [_of(leg)]
        for name, leg in legs.items()
        if leg.steps > 1 and _is_never_due(leg) and not _is_taken_over(leg, legs)
    }


def _is_never_due(leg: Leg) -> bool:
    every = leg.settings.validate_every_steps
    has_multiple = every > 0 and (leg.settings.until_step - 1) // every > leg.begin_step // every
    return every > leg.steps and not has_multiple


def _is_taken_over(leg: Leg, legs: Mapping[str, Leg]) -> bool:
    """Whether a phase before it, and each between the two, has the same number, and is measured on its way."""
    every, parent = leg.settings.validate_every_steps, leg.parent
    while parent is not None and legs[parent].settings.validate_every_steps == every:
        if not _is_never_due(legs[parent]):
            return True
        parent = legs[parent].parent
    return False


def _of(leg: Leg) -> LintWarning:
    return LintWarning(
        f"validate_every_steps is {leg.settings.validate_every_steps:,}, and the phase goes from step "
        f"{leg.begin_step:,} to {leg.settings.until_step:,}: held-out text is measured as it begins and as it ends",
        {"validate_every_steps": str(max(leg.steps // MEASUREMENTS, 1))},
    )
