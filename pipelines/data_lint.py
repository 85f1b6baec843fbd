"""Lint rule of data: phases that skip batches of their data."""

from collections.abc import Mapping

from marin_dag.plan.lint import LintWarning
from marin_dag.quantities import in_short
from steps.phase_timeline import RunPhase


def lint_data(legs: Mapping[str, RunPhase]) -> dict[str, list[LintWarning]]:
    """Return, by phase, a warning for each phase that skips batches."""
    return {
        name: [
            LintWarning(
                f"skip_batches is {leg.settings.skip_batches:,}: the phase skips {in_short(leg.skipped_tokens)} tokens "
                "of its data at its start; they count as read and make no training step",
                {"skip_batches": "0"},
            )
        ]
        for name, leg in legs.items()
        if leg.settings.skip_batches
    }
