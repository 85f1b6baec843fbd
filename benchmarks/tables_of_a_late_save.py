"""Claim: a save at step 1.4 million blocks the run as long, and writes as much of its tables, as one at step 10,000.

One table has a row for each step, the other a row for each step and each of seven sources. A save of a milestone or a
temporary checkpoint links the full blocks of rows that the attempt has written, and writes the rows after them. The
benchmark compares this save with writing whole tables, in 20 seconds on one core. The last line is JSON.

    python benchmarks/tables_of_a_late_save.py
"""

import tempfile
import time
from typing import NamedTuple

import numpy as np

from benchmarks.verdict import conclude
from runtime.tables.column import BLOCK_ROWS, BlockedTable
from runtime.tracking.metrics import INTEGERS, MetricsTable
from runtime.tracking.source_losses import SourceLossesTable
from runtime.training.checkpoint_files import CheckpointFiles
from runtime.training.run_state import METRICS, SOURCE_LOSSES
from runtime.training.temporary import Segments

EARLY, LATE = 10_000, 1_400_000
NUM_SOURCES = 7
STEPS_BETWEEN_SAVES = 600
MOST_LINK_SECONDS = 1.0
MOST_BYTES = 2 * 100 * BLOCK_ROWS
"""Bytes of two blocks, one a table, which no compression has made smaller."""


class Save(NamedTuple):
    """Cost of a save."""

    blocked_seconds: float
    link_seconds: float
    num_links: int
    encode_seconds: float
    written_bytes: int


def tables(steps: int) -> tuple[MetricsTable, SourceLossesTable]:
    """Return tables of `steps` steps, with figures that no compression makes smaller."""
    rng = np.random.default_rng(0)
    metrics, losses = MetricsTable(), SourceLossesTable()
    for name, column in metrics._columns.items():
        column.extend(np.arange(1, steps + 1) if name in INTEGERS else rng.random(steps))
    losses._sources = [(f"source_{index}", f"{index:064x}") for index in range(NUM_SOURCES)]
    size = steps * NUM_SOURCES
    values = {"step": np.repeat(np.arange(1, steps + 1), NUM_SOURCES), "source": np.arange(size) % NUM_SOURCES}
    values |= {"num_sequences": rng.integers(0, 500, size), "num_targets": rng.integers(0, 2_000_000, size)}
    for name, column in losses._columns.items():
        column.extend(values.get(name, rng.random(size)))
    return metrics, losses


def saved(metrics: MetricsTable, losses: SourceLossesTable, segments: Segments, folder: str) -> Save:
    """Return what the tables of one save to `folder` cost."""
    began = time.perf_counter()
    kept: dict[str, BlockedTable] = {METRICS: metrics.copy(), SOURCE_LOSSES: losses.copy()}
    copied = time.perf_counter()
    links = segments.link(kept, CheckpointFiles(folder))
    linked = time.perf_counter()
    parts = [table.newest_to_parquet() for table in kept.values()]
    size = sum(map(len, parts))
    return Save(copied - began, linked - copied, len(links), time.perf_counter() - linked, size)


def main() -> None:
    """Save early and late, and compare with tables that are written whole."""
    found: dict[str, Save] = {}
    for name, steps in (("early", EARLY), ("late", LATE)):
        every = tables(steps)
        with tempfile.TemporaryDirectory() as folder:
            segments = Segments(f"{folder}/segments")
            saved(*every, segments, f"{folder}/first")  # the attempt's first save writes all blocks
            found[name] = saved(*every, segments, f"{folder}/second")
        began = time.perf_counter()
        whole = sum(len(table.to_parquet()) for table in every)
        print(f"{name:6} whole: encodes {1000 * (time.perf_counter() - began):.0f} ms, writes {whole / 1e6:.1f} MB")
    for name, save in found.items():
        blocked, linked, encode = (1000 * seconds for seconds in (save[0], save[1], save[3]))
        print(
            f"{name:6} blocks {blocked:.1f} ms, links {save.num_links} files in {linked:.1f} ms, "
            f"encodes {encode:.1f} ms, writes {save.written_bytes / 1e6:.1f} MB"
        )
    late = found["late"]
    conclude(
        {
            "claim": "the tables of any save at step 1.4 million block less than 10 ms, write at most two blocks, and "
            "link the others in less than a second",
            "holds": late.blocked_seconds < 0.01
            and late.written_bytes < MOST_BYTES
            and late.link_seconds < MOST_LINK_SECONDS,
            **{name: save._asdict() for name, save in found.items()},
        }
    )


if __name__ == "__main__":
    main()
