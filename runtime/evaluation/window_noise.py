"""Window noise: how much of a difference in bits per byte may come from the choice of held-out windows.

Two models that predicted the same windows are compared window by window, so that hard windows do not count as noise.
"""

import math
import statistics
from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

COLUMNS = ("weights", "domain", "window", "log_prob")
Losses = Mapping[tuple[str, str], tuple[float, int]]
"""Mean loss in nats a token, and number of predicted tokens, of each window by domain and digest."""


class StandardError(NamedTuple):
    """A standard error, and how well it is known."""

    value: float
    degrees: int
    """Degrees of freedom, by Welch and Satterthwaite."""


def window_losses(predictions: pa.Table, weights: str) -> Losses:
    """Return the losses of the windows in a table of predictions under one set of weights; {} without these."""
    rows = predictions.select(COLUMNS).filter(pc.field("weights") == weights)
    windows = rows.group_by(["domain", "window"]).aggregate([("log_prob", "mean"), ("log_prob", "count")])
    return {
        (row["domain"], row["window"]): (-row["log_prob_mean"], row["log_prob_count"])
        for row in windows.to_pylist()
        if row["log_prob_count"]
    }


def difference_stderr(
    first: Losses, second: Losses, *, num_tokens: Mapping[str, int], num_bytes: Mapping[str, int]
) -> StandardError | None:
    """Return the standard error of the difference of two means over domains, in bits per byte.

    The variance within a domain is estimated from the windows that both models kept, and holds for all windows of the
    domain.

    Args:
        first: windows of one model.
        second: windows of the other.
        num_tokens: held-out tokens that both were measured on, by domain.
        num_bytes: UTF-8 bytes of these tokens.

    Returns:
        None where no domain has two windows in common.
    """
    variances, squares, most_degrees = [], 0.0, 0
    for domain in num_tokens:
        scale = num_tokens[domain] / (num_bytes[domain] * math.log(2))
        shared = [key for key in first if key[0] == domain and key in second]
        if len(shared) > 1:
            spread = statistics.variance(scale * (first[key][0] - second[key][0]) for key in shared)
            num_windows = num_tokens[domain] / statistics.fmean(first[key][1] for key in shared)
            variances.append(spread / num_windows)
            squares += variances[-1] ** 2 / (len(shared) - 1)
            most_degrees += len(shared) - 1
    if not variances:
        return None
    total = math.fsum(variances)
    degrees = max(1, math.floor(total**2 / squares + 1e-9)) if squares else most_degrees
    return StandardError(math.sqrt(total) / len(variances), degrees)
