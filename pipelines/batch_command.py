"""batch: show the rows of one training step, their documents, and how well the weights before it predict them."""

import collections
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from marin_dag.cli.session import Session
from marin_dag.errors import UserError
from marin_dag.graph.step import Step
from marin_dag.quantities import counted
from marin_dag.values.changes import nearest
from pipelines.finished import tokenizer_of
from pipelines.output import Shown, aligned, command, flag, positive, value
from pipelines.phases import longest_of, phases_by_digest
from pipelines.trained_batch import Row, TrainedBatch, data_errors_of, find_batch
from runtime.optim.ema import HOT
from runtime.report.markup import printable
from steps.phase_config import TrainPhaseConfig

if TYPE_CHECKING:
    import pyarrow as pa

    from runtime.report.contents import HeatWindow

ROWS = 8
"""Rows that are shown without `--rows`."""
EXCERPT_CHARACTERS = 90


@command(
    "batch PHASE@STEP [--heat]",
    "show the rows of one training step: sources, documents, text, and losses by the weights before the step",
    "--set --json",
    page="draw a heat map of the rows; includes --heat",
    own={
        "--heat": flag("show losses by the weights before the step"),
        "--source": value("NAME", "only rows of this source"),
        "--rows": value("N", f"rows to show (default {ROWS})", type=positive, default=ROWS),
    },
)
def batch(session: Session) -> Shown:
    name, step = _phase_and_step(session.step)
    graph = session.graph()
    phase = graph.step(name)
    if not isinstance(phase.config, TrainPhaseConfig):
        raise UserError(f"batch: {name} is no training phase. `timeline` lists the phases.")
    # Logs name a digest by its first phase, which may end before the step.
    phase = longest_of(map(graph.step, phases_by_digest(graph.steps)[phase.digest]))
    with data_errors_of("batch"):
        found = find_batch(session.store, phase, step, "batch")
        shown = _shown(session, phase, found)
    return Shown(
        _lines(session, name, found, shown),
        document=lambda: _document(name, found, shown),
        page=lambda: _page(name, found, shown),
    )


def _shown(session: Session, phase: Step, batch: TrainedBatch) -> list[Row]:
    """Return the rows that the options choose, those with the highest loss first."""
    import numpy as np

    from runtime.data.token_bytes import token_texts
    from runtime.report.readings import heat_windows, window_tables

    parsed = session.parsed
    places = [place for place, source in enumerate(batch.sources) if parsed.source in (None, source)]
    if not places:
        raise UserError(
            f"--source {parsed.source}: the batch has no row of this source.{nearest(parsed.source, batch.caches)}"
        )
    tokenizer = tokenizer_of(session.store, [phase]).tokenizer
    windows: dict[int, HeatWindow] = {}
    if parsed.heat or parsed.page is not None:
        table = _predicted(batch, places)
        log_probs = table["log_prob"].to_numpy().reshape(len(places), -1)
        losses = -np.nansum(log_probs, axis=1) / np.maximum(np.isfinite(log_probs).sum(axis=1), 1)
        length = len(batch.batch.tokens[0])
        for index in np.argsort(-losses, kind="stable")[: parsed.rows].tolist():
            part = table.slice(index * length, length)
            (windows[places[index]],) = heat_windows(window_tables([part]), tokenizer, length)  # all tokens, for JSON
        places = [*windows]
    return [
        row._replace(texts=token_texts(tokenizer, row.tokens.tolist()), window=windows.get(row.place))
        for row in batch.rows(session.store, places[: parsed.rows])
    ]


def _phase_and_step(word: str) -> tuple[str, int]:
    name, _, step = word.partition("@")
    if not step.isascii() or not step.isdecimal() or not int(step):
        raise UserError(
            f"batch: {word!r} names no training step. Write PHASE@STEP with a step from 1 on, such as kestrel@551."
        )
    return name, int(step)


def _predicted(batch: TrainedBatch, places: Sequence[int]) -> "pa.Table":
    """Return the predictions of each token of these rows, row after row, by the weights before the step."""
    from runtime.evaluation.token_predictions import Predictor, Sample, build_prediction_step
    from runtime.evaluation.trained_model import TrainedModel
    from runtime.evaluation.window_batch import WINDOWS_PER_BATCH, window_batch
    from runtime.evaluation.windows import Windows
    from runtime.parallel.jax_settings import settle_jax
    from runtime.parallel.mesh import num_batch_parts, whole_mesh
    from runtime.training.run_state import CHECKPOINT

    if batch.weights is None:
        raise UserError(
            "--heat: the phase has saved no weights yet. Repeat the command after its first checkpoint, or leave out "
            "--heat."
        )
    settle_jax()
    mesh = whole_mesh()
    model = TrainedModel.open(f"{batch.weights.folder}/{CHECKPOINT}")
    step = build_prediction_step(
        model.description.config,
        batch.phase.rope,
        mesh,
        attention_kernel="chunked",
        compute_dtype=batch.phase.compute_dtype,
    )
    windows = Windows(batch.batch.tokens[list(places)], batch.batch.segment_ids[list(places)])
    sample = Sample(tuple(batch.sources[place] for place in places), tuple(f"row {place}" for place in places), windows)
    size = window_batch(min(WINDOWS_PER_BATCH, len(places)), num_batch_parts(mesh))
    predictor = Predictor(sample=sample, step=step, windows_per_batch=size, rows=None)
    return predictor.table(batch.step, 0, {HOT: predictor.predict(model.params(HOT, mesh))})


def _lines(session: Session, name: str, batch: TrainedBatch, shown: Sequence[Row]) -> Iterator[str]:
    drawn = "as recorded" if batch.is_recorded else "not recorded yet: as the run will draw them"
    yield f"{name}, training step {batch.step:,}: {counted(len(batch.sources), 'row')}, {drawn}"
    counts = collections.Counter(batch.sources)
    rows = [[source, f"{count:,}", _nats(batch.losses.get(source))] for source, count in sorted(counts.items())]
    yield from aligned([["source", "rows", "loss (nats a token)"], *rows])
    for row in shown:
        loss = "" if row.loss is None else f", loss {row.loss:.3f}"
        yield f"row {row.place}: {row.source}, epoch {row.data_epoch}{loss}"
        for document in row.by_document():
            text = printable(document["text"][:EXCERPT_CHARACTERS]).replace("\n", "\u23ce")
            more = "…" if len(document["text"]) > EXCERPT_CHARACTERS else ""
            yield f"  {_named_document(document['document'])}, {counted(document['tokens'], 'token')}: {text}{more}"
    if shown[0].window is None:
        yield f"for losses of rows: {session.line('batch', session.step, '--heat')}"
    elif batch.weights is not None:
        yield f"losses of rows: by the {_weights(batch)}"
    if len(shown) < len(batch.sources):
        yield f"{len(shown)} of {len(batch.sources)} rows are shown; `--rows N` shows more, `--source NAME` one source"


def _weights(batch: TrainedBatch) -> str:
    assert batch.weights is not None
    after = "" if batch.weights.step < batch.step else ", which were trained on these rows"
    return f"weights of step {batch.weights.step:,}{after}"


def _named_document(identifier: str | None) -> str:
    return printable(identifier or "unknown document")


def _nats(loss: float | None) -> str:
    return "not recorded" if loss is None else f"{loss:.3f}"


def _document(name: str, batch: TrainedBatch, shown: Sequence[Row]) -> dict[str, Any]:
    rows = [
        row.data() | {"loss": row.loss, **({} if row.window is None else {"tokens": _tokens(row.window)})}
        for row in shown
    ]
    weights = None if batch.weights is None else batch.weights.step
    return {"phase": name, **batch.data(), "weights_of_step": weights, "rows": rows}


def _tokens(window: "HeatWindow") -> list[dict[str, Any]]:
    moment = window.newest
    return [
        {"text": text} if rank < 0 else {"text": text, "log_prob": round(log_prob, 4), "rank": rank, "likely": likely}
        for text, log_prob, rank, likely in zip(
            window.texts, moment.log_prob.tolist(), moment.rank.tolist(), moment.likely, strict=True
        )
    ]


def _page(name: str, batch: TrainedBatch, shown: Sequence[Row]) -> str:
    from runtime.report.heat_map import page

    windows = [row.window for row in shown if row.window is not None]
    notes = [f"row {row.place} ({row.source}): {', '.join(map(_named_document, row.documents))}" for row in shown]
    title = f"Training step {batch.step:,} of {name}"
    return page(title, [_weights(batch)], windows, notes, text="the batch")
