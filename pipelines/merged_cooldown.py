"""Merged cooldown: Tootsie's starling against merges of the same steps at a constant rate, after equal tokens.

    python pipelines/merged_cooldown.py
    python pipelines/merged_cooldown.py scores

The main line is that of pipelines/tootsie.py, with which it shares its outputs. docs/how-to/merge-checkpoints.md has
the results of one run.
"""

import argparse
import sys
from collections.abc import Sequence

from marin_dag.graph.step import Step
from pipelines import recipe
from pipelines.corpus import laptop_corpus
from pipelines.scales import LAPTOP
from pipelines.tootsie import phases
from runtime.optim.schedule import Constant, Linear

EVERY_STEPS = 5
"""Training steps between the milestones."""
SHARES = (0.25, 0.5, 1.0)
"""Shares of the phase, counted from its end, whose milestones are merged."""


def build(arguments: argparse.Namespace) -> Sequence[Step]:
    """Return the evaluations of starling, of starling at a constant rate, and of merges of its milestones."""
    corpus = laptop_corpus(LAPTOP)
    main_line = phases(LAPTOP, corpus)
    phoenix, starling = main_line["phoenix"], main_line["starling"]
    begin, end = phoenix.config.until_step, starling.config.until_step
    peak = phoenix.config.learning_rate(begin)
    to_zero = starling.fork("to_zero", learning_rate=Linear(peak, 0.0, decay_steps=end - begin))
    stable = starling.fork("stable", learning_rate=Constant(peak))
    merges = []
    for share in SHARES:
        first = end - round((end - begin) * share)
        milestones = range(first + EVERY_STEPS, end + 1, EVERY_STEPS)
        merges.append(recipe.merge(f"merge/last_{end - first}", [stable.at(step=step) for step in milestones]))
    return recipe.evaluate(
        [starling, to_zero, stable, *merges],
        caches=corpus.caches,
        max_tokens_per_domain=LAPTOP.evaluation_tokens,
        compute_dtype=LAPTOP.compute_dtype,
    )


if __name__ == "__main__":
    sys.exit(recipe.main(build, name="merged_cooldown"))
