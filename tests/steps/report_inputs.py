"""Inputs of a report as a running step sees them: results, and a phase with its metrics and its log of draws."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from marin_dag.step import Input
from runtime.optim.ema import Ema
from runtime.tracking.source_losses import SourceLosses, SourceLossesTable
from steps.phase_result import TrainPhaseResult


def made(folder, name, result):
    path = folder / name
    path.mkdir(parents=True, exist_ok=True)
    return Input(None, name=f"label of {name}", digest=f"{abs(hash_of(name)):016x}" * 4, path=str(path), result=result)


def hash_of(name):
    return sum(ord(letter) * 31**place for place, letter in enumerate(name)) % 2**60


def phase(folder, name, first, last, tokens_before=0, batch=8, drawn=None, batches=(), skipped=()):
    """`drawn`: sequences of each update by source; the `batches` are (until step, drawn) of the phases before it.

    Updates of the steps `skipped` were left out by a skip rule.
    """
    steps = np.arange(first, last + 1)
    tokens = tokens_before + batch * 256 * np.arange(1, len(steps) + 1)
    columns = {
        "step": steps, "consumed_tokens": tokens,
        "loss": np.where(np.isin(steps, skipped), np.nan, 5 - 0.01 * steps),
        "is_skipped": np.isin(steps, skipped).astype(np.int32), "z_loss": 0.0 * steps,
        "num_targets": batch * 250 + 0 * steps,
        "learning_rate": 1e-3 + 0.0 * steps, "global_batch_size": np.full(len(steps), batch),
    }  # fmt: skip
    result = TrainPhaseResult(
        step=last, consumed_tokens=int(tokens[-1]), checkpoint="checkpoint", metrics="metrics.parquet",
        final_loss=5 - 0.01 * last, averages=() if name == "kestrel" else (Ema(0.995),),
    )  # fmt: skip
    found = made(folder, name, result)
    pq.write_table(pa.table(columns), f"{found.path}/metrics.parquet")
    table = SourceLossesTable()
    ends = [*batches, (last, drawn or {"code": batch // 4, "web": batch - batch // 4})]
    for step in range(1, last + 1):
        counts = next(counts for end, counts in ends if step <= end)
        losses = {"code": 2.0, "web": 5 - 0.01 * step}
        table.append(
            SourceLosses(step, name, name, 0.5, count, 255 * count, 255 * count * losses[name], 255 * count * 6.0)
            for name, count in sorted(counts.items())
        )
    (folder / name / "source_losses.parquet").write_bytes(table.to_parquet())
    return found
