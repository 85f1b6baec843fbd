"""Inputs of a report as a running step sees them: results, and a phase with its metrics and its log of draws."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from marin_dag.graph.step import Input
from runtime.data.mixture import MixtureSchedule
from runtime.evaluation.task_score import TaskScore
from runtime.optim.ema import Ema
from runtime.report.recipe import Change
from runtime.tracking.source_losses import SourceLosses, SourceLossesTable
from steps.decontaminate import DecontaminateResult
from steps.documents import DocumentsResult
from steps.ema_eval import AverageResult, EmaEvalResult
from steps.hf_export import HfExportResult
from steps.lm_eval import LmEvalResult
from steps.phase_result import TrainPhaseResult
from steps.report_config import ReportConfig
from steps.sample import SampleResult, SampleText
from steps.tokenize import TokenizeResult


def made(folder, name, result):
    path = folder / name
    path.mkdir(parents=True, exist_ok=True)
    return Input(name=f"label of {name}", digest=f"{abs(hash_of(name)):016x}" * 4, path=str(path), result=result)


def hash_of(name):
    return sum(ord(letter) * 31**place for place, letter in enumerate(name)) % 2**60


def phase(folder, name, first, last, batch=8, drawn=None, batches=(), skipped=()):
    """`drawn`: sequences of each update by source; the `batches` are (until step, drawn) of the phases before it.

    The first 40 updates of every run have 8 sequences. Updates of the steps `skipped` were left out by a skip rule.
    """
    steps = np.arange(1, last + 1)
    sizes = np.where(steps <= 40, 8, batch)
    tokens = 256 * np.cumsum(sizes)
    columns = {
        "step": steps, "consumed_tokens": tokens,
        "loss": np.where(np.isin(steps, skipped), np.nan, 5 - 0.01 * steps),
        "is_skipped": np.isin(steps, skipped).astype(np.int32), "z_loss": 0.0 * steps,
        "num_targets": sizes * 250, "learning_rate": 1e-3 + 0.0 * steps, "global_batch_size": sizes,
    }  # fmt: skip
    result = TrainPhaseResult(
        begin_step=first - 1, step=last, consumed_tokens=int(tokens[-1]), checkpoint="checkpoint",
        metrics="metrics.parquet", final_loss=5 - 0.01 * last, averages=() if name == "kestrel" else (Ema(0.995),),
    )  # fmt: skip
    found = made(folder, name, result)
    columns |= {norm: np.ones(len(steps)) for norm in ("grad_norm", "update_norm", "param_norm", "mean_log_normalizer")}
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


def evaluation(folder, name, **averages):
    hot = {"code": 1.5, "web": 1.25}
    measured = (
        AverageResult(average=Ema(0.995, average), by_domain=values, mean=sum(values.values()) / 2)
        for average, values in averages.items()
    )
    result = EmaEvalResult(
        step=1, consumed_tokens=1, hot=hot, hot_mean=1.375, averages=tuple(measured),
        num_bytes={"code": 9, "web": 9}, num_tokens={"code": 3, "web": 3},
    )  # fmt: skip
    return made(folder, f"ema_eval/{name}", result)


def example(folder, **changes):
    tokens = 40 * 8 * 256
    tail = tokens + 20 * 24 * 256
    kept = DocumentsResult(
        shards=(), num_documents=90, num_bytes=9_000, dropped={"too short": 10}, dropped_samples="dropped.jsonl"
    )
    filtered = made(folder, "filter/web", kept)
    sample = {"reason": "too short", "id": "web/1", "detail": "7 < 50", "excerpt": "<script>alert(1)</script>"}
    (folder / "filter/web/dropped.jsonl").write_text(json.dumps(sample) + "\n")
    clean = DecontaminateResult(
        shards=(), num_documents=88, num_bytes=8_800, dropped={"overlaps with piqa": 2}, dropped_samples=None,
        hits="hits.jsonl", num_hits=3, hits_by_task={"piqa": 3},
    )  # fmt: skip
    cache = TokenizeResult(
        train="train", validation="validation", num_train_tokens=2_000, num_validation_tokens=100,
        num_train_bytes=8_000, num_validation_bytes=400, num_train_documents=80, num_validation_documents=8,
        vocab_size=4096, eos_token_id=0,
    )  # fmt: skip
    export = HfExportResult(
        folder="model", files=("config.json",), weights="averaged", dtype="float32", num_parameters=9, step=60,
        consumed_tokens=tail,
    )  # fmt: skip
    score = TaskScore("piqa", 0, "acc", 0.5, 0.01, 100, 0.5, "none", 0, 0, "look at the samples")
    scores = LmEvalResult(scores=(score,), samples="samples.jsonl", weights="averaged", step=60, consumed_tokens=tail)
    text = SampleText(prompt="<i>The sea</i>", text=" is </pre>salt", is_whole=False)
    written = SampleResult(step=60, consumed_tokens=tail, weights="averaged", texts=(text,))
    fields = {
        "title": "A run", "introduction": "Of little.", "main_line": ("kestrel", "ocelot"),
        "phases": {
            "kestrel": phase(folder, "kestrel", 1, 40),
            "ocelot": phase(folder, "ocelot", 41, 60, 24),
            "spoonbill": phase(folder, "spoonbill", 61, 70, 24),
        },
        "parents": {"ocelot": "kestrel", "spoonbill": "ocelot"},
        "mixtures": {name: MixtureSchedule.constant({"web": 3.0, "code": 1.0}) for name in ("kestrel", "ocelot")},
        "recipe": {"ocelot": (Change(field="global_batch_size", before="8", after="24"),)},
        "evaluations": {
            "kestrel": evaluation(folder, "kestrel"),
            "ocelot": evaluation(folder, "ocelot", averaged={"code": 1.4, "web": 1.2}),
        },
        "texts": {"ocelot": made(folder, "sample/ocelot", written)},
        "exports": {"ocelot": made(folder, "hf_export/ocelot", export)},
        "scores": {"ocelot": made(folder, "lm_eval/ocelot", scores)},
        "sources": {"web": {"filter": filtered, "decontaminate": made(folder, "decontaminate/web", clean)}},
        "caches": {"web": made(folder, "tokenize/web", cache)},
    }  # fmt: skip
    return ReportConfig(**{**fields, **changes})
