"""heat-map: draw how well phases predict each token of held-out text, over their training."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from marin_dag.cli.session import Session
from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.ledger.records import Records
from marin_dag.store.store import Store
from marin_dag.values.changes import nearest
from pipelines.finished import tokenizer_of
from pipelines.output import Shown, command, repeated
from pipelines.phases import fork_names, main_line_of, phases_by_digest, phases_in, run_phases_in, wanted_phases
from runtime.optim.ema import HOT
from steps.ema_eval import EmaEvalConfig

if TYPE_CHECKING:
    import pyarrow as pa

MOST_MOMENTS = 16
"""Moments of a page, evenly spread over those that were measured; the first and the last are always among them."""


class Measured(NamedTuple):
    """A set of weights at one step of a phase, and the file of its predictions."""

    phase: str
    step: int
    weights: str
    table: "pa.Table"

    @property
    def name(self) -> str:
        weights = "weights" if self.weights == HOT else f"{self.weights} weights"
        return f"{self.phase} at step {self.step:,}, {weights}"


@command(
    "heat-map [PHASE...] --page FILE.html",
    "how well phases predict each token of held-out text, over their training",
    page="the page to draw",
    own={
        "--domain": repeated("NAME", "only this domain"),
        "--weights": repeated("NAME", "EMA weights by name; hot: the trained weights"),
    },
)
def heat_map_command(session: Session) -> Shown:
    parsed = session.parsed
    if parsed.page is None:
        raise UserError("heat-map: the page has no name. Add --page heat.html.")
    shown = heat_map(session, session.graph(), parsed.names, parsed.weights or [HOT], parsed.domain)
    return Shown(page=lambda: shown)


def heat_map(
    session: Session,
    graph: Graph,
    names: Sequence[str] = (),
    weights: Sequence[str] = (HOT,),
    domains: Sequence[str] = (),
) -> str:
    """Return the page of some phases, or all, under some weights; of some domains, or all.

    Raises:
        UserError: nothing has kept predictions yet, or a domain is unknown.
    """
    from runtime.report.heat_map import page, tokens_shown
    from runtime.report.readings import heat_windows, window_tables

    phases = _phases(session, graph, names)
    measured, notes = _measured(session.store, graph, phases)
    found = [each for each in measured if each.weights in weights]
    if not found:
        wanted = " and ".join("the trained weights" if name == HOT else name for name in weights)
        raise UserError(
            f"heat-map: no validation or evaluation of these phases has kept predictions of {wanted}. Run the recipe "
            "up to its `ema_eval` steps." + "".join(f"\n{note}." for note in notes)
        )
    shown = _spread(found, MOST_MOMENTS)
    if len(shown) < len(found):
        notes.append(f"{len(shown)} of {len(found)} moments are shown; name a phase for more")
    tables = window_tables([each.table for each in shown], domains)
    if not tables:
        known = sorted({domain for each in found for domain in each.table["domain"].unique().to_pylist()})
        raise UserError(f"--domain {' '.join(domains)}: no such domain.{nearest(domains[0], known)}")
    tokenizer = tokenizer_of(session.store, map(graph.step, phases)).tokenizer
    windows = heat_windows(tables, tokenizer, tokens_shown(len(tables), len(shown)))
    return page(f"Heat map of {session.pipeline}", [each.name for each in shown], windows, notes)


def _phases(session: Session, graph: Graph, named: Collection[str]) -> list[str]:
    """Return the phases that the user named, or all: branches, then the main line, which ends with the newest."""
    wanted = {name for names in wanted_phases(session, graph).values() for name in names}
    run_phases = run_phases_in(phases_in(graph.steps))
    main_line = main_line_of(run_phases, fork_names(session))
    order = [*(name for name in run_phases if name not in main_line), *main_line]
    return [name for name in order if name in (named or wanted)]


def _measured(store: Store, graph: Graph, phases: Sequence[str]) -> tuple[list[Measured], list[str]]:
    """Return all kept predictions of these phases, and a note for each file that cannot be drawn.

    Predictions are those of validations and of evaluations that are done.
    """
    import pyarrow.compute as pc

    from runtime.evaluation.stored_predictions import PREDICTIONS, PREDICTIONS_FILE, read_predictions
    from runtime.tables.parquet_bytes import TableError

    found: dict[tuple[str, int, str], Measured] = {}
    not_drawn: list[str] = []

    def add(phase: str, path: str) -> None:
        try:
            table = read_predictions(store.url(path))
        except TableError as error:
            not_drawn.append(f"not drawn: {error}".removesuffix("."))
            return
        step = table["step"][0].as_py()
        for weights in table["weights"].unique().to_pylist():
            of_weights = table.filter(pc.field("weights") == weights)
            found.setdefault((phase, step, weights), Measured(phase, step, weights, of_weights))

    for digest, names in phases_by_digest(map(graph.step, phases)).items():
        for entry in sorted(store.list(f"work/{digest}/{PREDICTIONS}")):
            if entry.path.endswith(".parquet"):
                add(names[0], entry.path)
    records = Records(store)
    for step in graph.steps:
        if not isinstance(step.config, EmaEvalConfig) or step.config.phase.name not in phases:
            continue
        record = records.find(step.key)
        if record is not None and any(entry.path == PREDICTIONS_FILE for entry in record.manifest):
            add(step.config.phase.name, f"{record.output_path}/{PREDICTIONS_FILE}")
    order = {name: index for index, name in enumerate(phases)}
    measured = sorted(
        found.values(), key=lambda each: (order[each.phase], each.step, each.weights != HOT, each.weights)
    )
    return measured, not_drawn


def _spread(measured: Sequence[Measured], most: int) -> list[Measured]:
    if len(measured) <= most:
        return list(measured)
    return [measured[round(index * (len(measured) - 1) / (most - 1))] for index in range(most)]
