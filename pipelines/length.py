"""Length of a run: the recipe's parts in proportion to a number of tokens, and lengths as a user types them."""

import math
from typing import Any, NamedTuple

from marin_dag.errors import UserError
from marin_dag.quantities import LARGEST_COUNT, count_typed, in_short, typed_count
from pipelines.scales import BatchSize, Boundaries, Scale
from runtime.optim.ema import Ema
from runtime.optim.schedule import Cycles

LEAST_STEPS = 4
"""Fewest training steps of a part; with fewer, its rates and mixtures would jump."""
FIGURES = 3
"""Significant digits of a length computed from hours, so that `--tokens` can repeat it."""
KESTREL_CYCLES, MOST_CYCLE_STEPS = 6, 10_000
"""Cycles of kestrel, or a multiple where a cycle would be longer than the public run's.

After a third of kestrel, cycles are twice as long.
"""
WARMUP_SHARE, MOST_WARMUP_STEPS = 0.02, 1_000
"""Warm-up as a share of kestrel, and at most the public run's steps."""
AVERAGED_SHARE, MOST_AVERAGED_STEPS = 0.1, 200
"""Training steps that an average spans: a share of the last phase, at most those of the public run's 0.995."""
CHECKPOINTS, GOOD_CHECKPOINTS, VALIDATIONS = 50, 5, 50
"""Least counts over a run; the template's intervals stay where they give more."""


class Part(NamedTuple):
    """A part of the recipe between two of its `Boundaries`."""

    after: str | None
    """The boundary that it starts from."""
    batch: int = 1
    """Index in `Scale.batches`."""
    times: int = 1
    """Number of phases that train it in the scale's own dtype."""
    float32_times: int = 0
    is_branch: bool = False


PARTS = {
    "kestrel": Part(None, batch=0),
    "ocelot": Part("kestrel"),
    "jellyfish": Part("ocelot", times=2),  # and cooldown_v2
    "phoenix_warm": Part("jellyfish"),
    "phoenix": Part("phoenix_warm"),
    "starling": Part("phoenix", batch=2),
    "deeper_starling": Part("starling", batch=2),
    "dessert": Part("jellyfish", times=2, is_branch=True),  # and dessert_bad
    "raccoon_soft": Part("jellyfish", is_branch=True),
    "raccoon_softer": Part("raccoon_soft", is_branch=True),
    "spoonbill_half": Part("jellyfish", is_branch=True),
    "spoonbill": Part("spoonbill_half", times=2, float32_times=1, is_branch=True),
    "spoonbill_deeper": Part("spoonbill", is_branch=True),
}
"""The recipe's parts by the boundary that ends them."""


def tokens_by_part(scale: Scale) -> dict[str, int]:
    """Return the tokens of each part of a scale."""
    ends = scale.boundaries
    return {
        name: (getattr(ends, name) - (getattr(ends, part.after) if part.after else 0))
        * scale.batches[part.batch].global_batch_size
        * scale.sequence_length
        for name, part in PARTS.items()
    }


def main_line_tokens(scale: Scale) -> int:
    """Return the tokens of the main line, from kestrel to deeper_starling."""
    return sum(tokens for name, tokens in tokens_by_part(scale).items() if not PARTS[name].is_branch)


def lengths_at(template: Scale, tokens: float, batches: tuple[BatchSize, ...], sequence_length: int) -> dict[str, Any]:
    """Return the fields of a scale whose main line has `tokens`, with parts in proportion to the template's.

    Raises:
        UserError: a part would have fewer than `LEAST_STEPS` training steps.
    """
    ratio = tokens / main_line_tokens(template)
    exact = {
        name: of_part * ratio / (batches[PARTS[name].batch].global_batch_size * sequence_length)
        for name, of_part in tokens_by_part(template).items()
    }
    shortest = min(exact, key=lambda name: exact[name])
    if exact[shortest] < LEAST_STEPS:
        least = _rounded(tokens * LEAST_STEPS / exact[shortest], up=True)
        raise UserError(
            f"a main line of {in_short(tokens)} tokens is too short for its batches: {shortest} would have "
            f"{exact[shortest]:.2g} training steps, and a part takes at least {LEAST_STEPS}. Use at least "
            f"--tokens {typed_count(round(least))}, or a smaller --scale."
        )
    num_cycles = KESTREL_CYCLES * math.ceil(exact["kestrel"] / (KESTREL_CYCLES * MOST_CYCLE_STEPS))
    cycle_steps = max(LEAST_STEPS, round(exact["kestrel"] / num_cycles))
    # As at full size, kestrel ends one step into a cycle, at the peak rate.
    ends: dict[str, int] = {"kestrel": num_cycles * cycle_steps + 1}
    for name, part in PARTS.items():
        if part.after is not None:
            ends[name] = ends[part.after] + round(exact[name])
    total = ends["deeper_starling"]
    averaged_steps = min(MOST_AVERAGED_STEPS, max(2.0, AVERAGED_SHARE * exact["deeper_starling"]))
    return {
        "boundaries": Boundaries(**ends),
        "warmup_steps": min(MOST_WARMUP_STEPS, math.ceil(WARMUP_SHARE * ends["kestrel"])),
        "kestrel_cycles": tuple(
            Cycles(start * cycle_steps, length * cycle_steps, max(1, length * cycle_steps // 10))
            for start, length in ((0, 1), (num_cycles // 3, 2))
        ),
        "rewarm_steps": ends["phoenix_warm"] - ends["jellyfish"],
        "average": Ema(round(1 - 1 / averaged_steps, 4)),
        "checkpoint_every_steps": min(template.checkpoint_every_steps, math.ceil(total / CHECKPOINTS)),
        "keep_good_every_steps": min(template.keep_good_every_steps, math.ceil(total / GOOD_CHECKPOINTS)),
        "validate_every_steps": min(template.validate_every_steps, math.ceil(total / VALIDATIONS)),
    }


def evaluated_tokens(scale: Scale, num_sources: int) -> int:
    """Return the held-out tokens that all phases read, while they train and at their ends, for all their weights.

    Each part counts as many phases as train it: phoenix has two parts, and spoonbill_hypnotic and spoonbill_norms are
    one.
    """
    total = 0
    for name, of_part in tokens_by_part(scale).items():
        part = PARTS[name]
        steps = of_part // (scale.batches[part.batch].global_batch_size * scale.sequence_length)
        validations = steps // scale.validate_every_steps + 2
        of_a_source = scale.evaluation_tokens + validations * scale.validation_tokens_per_source
        weights = 1 if part.after is None else 2  # kestrel keeps no average
        total += (part.times + part.float32_times) * weights * of_a_source * num_sources
    return total


def in_figures(tokens: float) -> int:
    """Return a number of tokens in `FIGURES` figures, at least 1."""
    return round(_rounded(max(1.0, tokens)))


def _rounded(tokens: float, *, up: bool = False) -> float:
    unit = 10.0 ** (math.floor(math.log10(tokens)) - FIGURES + 1)
    return (math.ceil if up else round)(tokens / unit) * unit


def tokens_named(text: str) -> int:
    """Return the tokens that a user typed: 3B, 300M, 1.5T, 2e9.

    Raises:
        UserError: the text is no number of tokens.
    """
    tokens = count_typed(text)
    if tokens is None:
        raise UserError(
            f"--tokens {text}: no number of tokens from 1 to {LARGEST_COUNT:.0e}. Write one such as 300M, 1.5B or "
            "3,000,000."
        )
    return tokens


def hours_named(text: str) -> float:
    """Return the hours that a user typed; raise UserError unless they are a finite number above 0."""
    try:
        hours = float(text)
    except ValueError:
        hours = math.nan
    if not 0 < hours < math.inf:
        raise UserError(f"--hours {text}: no number of hours. Write one such as 0.5 or 24.")
    return hours
