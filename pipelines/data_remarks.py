"""Data remarks: phases that skip batches of their data."""

from collections.abc import Mapping

from marin_dag.plan.lint import LintWarning
from marin_dag.quantities import in_short
from runtime.training.timeline import Leg


def data_remarks(legs: Mapping[str, Leg]) -> dict[str, list[LintWarning]]:
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
