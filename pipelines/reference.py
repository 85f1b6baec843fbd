"""A reference for `curves --against`: another phase of the recipe, or the table of metrics of any run."""

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
    """What phases are held against, and how."""

    name: str
    curves: "Curves"
    """Of its run, from the start."""
    margin: float | None
    """Nats a token by which a phase may be above it; None judges nothing."""

    def said(self, curves: "Curves") -> tuple[list[str], bool | None]:
        """How a phase compares, in lines, and whether it is behind by more than the margin; None where nothing is to
        compare."""
        from runtime.tracking.reference_curve import compared

        found = compared(curves, self.curves, margin=self.margin)
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


def refuse_wrong_margin(against: str | None, margin: float | None) -> None:
    """Raises UserError for a margin that is none, or that stands alone."""
    if margin is not None and against is None:
        raise UserError("--margin: of what? Name a reference too: --against PHASE, or --against FILE.parquet.")
    if margin is not None and not (0 <= margin < math.inf):
        raise UserError(f"--margin is {margin:g}; it is in nats a token, 0 or more, as 0.02.")


def reference_of(
    against: str, margin: float | None, phases: Iterable[str], read: "Callable[[str], Curves | None]"
) -> Reference:
    """Reads what `--against` names.

    Args:
        phases: of the recipe.
        read: reads the newest saved curves of one of them, from the start of its run.

    Raises:
        UserError: it is neither a phase nor a table of metrics, or nothing of it is saved.
    """
    if against in phases:
        curves = read(against)
    elif against.endswith(TABLE):
        curves = _read_table(against)
    else:
        raise UserError(
            f"--against {against}: there is no such phase.{nearest(against, phases)} Of another run, name the file "
            "metrics.parquet beside one of its checkpoints."
        )
    if curves is None or not curves.step.size:
        raise UserError(f"--against {against}: nothing of it is saved as the recipe stands now.")
    return Reference(against, curves, margin)


def _read_table(file: str) -> "Curves":
    import fsspec

    from runtime.tracking.curves import curves_of

    if file.startswith(("gs://", "s3://")):  # fsspec looks for a minute for one that cannot be reached
        open_store(file.rpartition("/")[0]).make_contact()
    try:
        with fsspec.open(file, "rb") as source:
            return curves_of(source.read(), after_step=0)
    except OSError as error:
        raise UserError(f"--against {file}: it could not be read ({error.strerror or error}).") from error
    except (KeyError, ValueError) as error:  # of what Arrow refuses, and of an address that is none
        raise UserError(f"--against {file}: no table of metrics ({error}).") from error
