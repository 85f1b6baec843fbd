"""Figures of a run of the flagship at laptop scale, of each training step: those that monitors read.

After a change of the recipe, train it with `--set deeper_starling.until_step=1500`, which extends it, and record it:

    python -m tests.pipelines.flagship_figures PREFIX > tests/pipelines/flagship_figures.csv
"""

import csv
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.store.prefix import open_store
from pipelines import tootsie
from pipelines.corpus import laptop_corpus
from pipelines.phases import phases_in
from pipelines.saved_curves import read_newest
from pipelines.scales import LAPTOP
from runtime.tracking.metrics import MetricsRow

FILE = Path(__file__).with_name("flagship_figures.csv")
EXTENDED, EXTENDED_UNTIL_STEP = "deeper_starling", 1_500


class Figures(NamedTuple):
    """Figures of a training step."""

    loss: float
    grad_norm: float
    update_norm: float


def flagship_phases() -> dict[str, Step[Any]]:
    """Return each phase after the one that it starts from; the last of the main line is extended."""
    graph = Graph([tootsie.tootsie(LAPTOP, laptop_corpus(LAPTOP))[0]])
    phases = phases_in(graph.steps)
    longer = phases[EXTENDED].config.model_copy(update={"until_step": EXTENDED_UNTIL_STEP})
    return phases | {EXTENDED: dataclasses.replace(phases[EXTENDED], config=longer)}


def read_figures() -> dict[str, dict[int, Figures]]:
    """Return the recorded figures of each phase by training step."""
    found: dict[str, dict[int, Figures]] = {}
    with FILE.open(newline="") as file:
        for row in csv.DictReader(file):
            figures = Figures(*(float(row[name]) for name in Figures._fields))
            found.setdefault(row["phase"], {})[int(row["step"])] = figures
    return found


def rows_of(phase: Step[Any], figures: dict[int, Figures]) -> Iterator[MetricsRow]:
    """Yield the rows of a phase's metrics table that these figures were in."""
    for step, found in figures.items():
        yield MetricsRow(
            step=step, consumed_tokens=step, global_batch_size=phase.config.global_batch_size, num_targets=1,
            learning_rate=phase.config.learning_rate(step - 1), z_loss=0.0, param_norm=1.0, mean_log_normalizer=1.0,
            **found._asdict(),
        )  # fmt: skip


def _record(prefix: str) -> None:
    written = csv.writer(sys.stdout, lineterminator="\n")
    written.writerow(["phase", "step", *Figures._fields])
    for name, phase in flagship_phases().items():
        curves = read_newest(open_store(prefix), phase.digest, after_step=phase.config.begin_step, by_source=False)
        if curves is None:
            raise SystemExit(f"{prefix}: nothing of {name} is saved as the recipe is now; train it first.")
        assert not curves.figures["train/is_skipped"].any(), f"{name}: skipped steps are not recorded"
        columns = [curves.figures[f"train/{field}"] for field in Figures._fields]
        for step, *values in zip(curves.step.tolist(), *columns, strict=True):
            if step <= phase.config.until_step:
                written.writerow([name, step, *(f"{value:.6g}" for value in values)])


if __name__ == "__main__":
    _record(sys.argv[1])
