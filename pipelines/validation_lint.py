"""Lint rule of validation: phases whose held-out text is measured at both ends, and never between.

One value for all phases of a recipe is often too large for a short phase. A phase that inherits the value of a phase
before it, which is measured on its way, gets no warning. Nor does a phase of one step, or one
whose value is its length.
"""

from collections.abc import Mapping

from marin_dag.plan.lint import LintWarning
from steps.phase_timeline import RunPhase

MEASUREMENTS = 10
"""Measurements of a phase with the proposed value."""


def lint_validation(legs: Mapping[str, RunPhase]) -> dict[str, list[LintWarning]]:
    """Return the warnings of each phase that has one."""
    return {
        name: [_warning(phase)]
        for name, phase in legs.items()
        if phase.steps > 1 and _is_never_due(phase) and not _is_inherited(phase, legs)
    }


def _is_never_due(phase: RunPhase) -> bool:
    every = phase.settings.validate_every_steps
    has_multiple = every > 0 and (phase.settings.until_step - 1) // every > phase.begin_step // every
    return every > phase.steps and not has_multiple


def _is_inherited(phase: RunPhase, phases: Mapping[str, RunPhase]) -> bool:
    """Return whether an earlier phase with this value, and all between, is measured on its way."""
    every, parent = phase.settings.validate_every_steps, phase.parent
    while parent is not None and phases[parent].settings.validate_every_steps == every:
        if not _is_never_due(phases[parent]):
            return True
        parent = phases[parent].parent
    return False


def _warning(phase: RunPhase) -> LintWarning:
    return LintWarning(
        f"validate_every_steps is {phase.settings.validate_every_steps:,}, and the phase goes from step "
        f"{phase.begin_step:,} to {phase.settings.until_step:,}, so held-out text is measured only at both ends",
        {"validate_every_steps": str(max(phase.steps // MEASUREMENTS, 1))},
    )
