"""Refusals that the learning policies share: settings that could not work, with the cure."""

import math


def refuse_share(owner: str, field: str, value: float) -> None:
    """Raises unless `value` lies in [0, 1)."""
    if not 0 <= value < 1:
        raise ValueError(f"{owner}.{field} is {value}; it is the share of an average that is kept, so 0 <= it < 1.")


def refuse_not_positive(owner: str, field: str, value: float, why: str) -> None:
    """Raises unless `value` is finite and above zero."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{owner}.{field} is {value}; {why}")


def check_learning(owner: str, warmup_steps: int, sequences_per_draw: int, lag_steps: int) -> None:
    """Raises for what no policy that learns can be told."""
    if warmup_steps < 0:
        raise ValueError(f"{owner}.warmup_steps is {warmup_steps}; 0 goes live with the first update.")
    if sequences_per_draw < 1:
        raise ValueError(f"{owner}.sequences_per_draw is {sequences_per_draw}; a draw gives at least one sequence.")
    if lag_steps < 1:
        raise ValueError(
            f"{owner}.lag_steps is {lag_steps}; the losses of an update are known after it, so the least is 1."
        )
