"""Reference of `curves --against`: another phase of the recipe, or the metrics table of any run."""

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from marin_dag.errors import UserError
from marin_dag.store.prefix import open_store
from marin_dag.values.changes import nearest

if TYPE_CHECKING:
    from runtime.tracking.curves import Curves

TABLE = ".parquet"


class Reference(NamedTuple):
    """The run that phases are compared with, and the margin."""

    name: str
    curves: "Curves"
    """Curves of its run, from the start."""
    margin: float | None
    """Nats a token that a phase may be above it; None sets no limit."""

    def compare(self, curves: "Curves") -> tuple[list[str], bool | None]:
        """Return lines about a phase, and whether it is behind by more than the margin; None without a comparison."""
        from runtime.tracking.reference_curve import compare_losses

        found = compare_losses(curves, self.curves, margin=self.margin)
        if found is None:
            return [f"no tokens in common with {self.name}, which has {self.curves.consumed_tokens[-1]:,.0f}"], None
        side = "above" if found.difference > 0 else "below"
        lines = [
            f"{abs(found.difference):.4f} nats {side} {self.name} at {found.tokens:,} tokens: "
            f"{found.loss:.4f} and {found.reference_loss:.4f} over the last {found.num_tokens:,}"
        ]
        if found.behind_since is not None:
            lines.append(f"BEHIND by more than {self.margin:g} since {found.behind_since:,} tokens")
        return lines, found.behind_since is not None


def check_margin(against: str | None, margin: float | None) -> None:
    """Raise UserError for a margin that is no number of nats, or that has no reference."""
    if margin is not None and against is None:
        raise UserError("--margin: needs a reference; add --against PHASE or --against FILE.parquet.")
    if margin is not None and not (0 <= margin < math.inf):
        raise UserError(f"--margin is {margin:g}; use nats a token, 0 or more, such as 0.02.")


def read_reference(
    against: str, margin: float | None, phases: Iterable[str], read: "Callable[[str], Curves | None]"
) -> Reference:
    """Read the run that `--against` names; `read` returns the newest curves of a phase, from the start of its run.

    Raises:
        UserError: it is neither a phase nor a metrics table, or nothing of it is saved.
    """
    if against in phases:
        curves = read(against)
    elif against.endswith(TABLE):
        curves = _read_table(against)
    else:
        raise UserError(
            f"--against {against}: no such phase.{nearest(against, phases)} For another run, name the file "
            "metrics.parquet of one of its milestones."
        )
    if curves is None or not curves.step.size:
        raise UserError(f"--against {against}: nothing of it is saved as the recipe is now.")
    return Reference(against, curves, margin)


def _read_table(file: str) -> "Curves":
    import fsspec

    from runtime.tracking.curves import curves_of

    if file.startswith(("gs://", "s3://")):  # fsspec tries for a minute to reach an unreachable store
        open_store(file.rpartition("/")[0]).make_contact()
    try:
        with fsspec.open(file, "rb") as source:
            return curves_of(source.read(), after_step=0, file=file)
    except OSError as error:
        raise UserError(f"--against {file}: cannot be read ({error.strerror or error}).") from error
    except ValueError as error:  # from Arrow, or for a malformed address
        raise UserError(f"--against {file}: not a metrics table ({error}).") from error
