"""curves: how far each phase has come. Options export its curves, draw pages, and compare its loss with another run."""

import functools
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.ledger.records import UnreadableRecordError
from marin_dag.values.changes import nearest
from pipelines.attempts import attempt_events, phases_by_digest, shared_note
from pipelines.curves_exports import export_errors, exports_of
from pipelines.page_file import check_writable, write_page
from pipelines.reference import Reference, check_margin, read_reference
from pipelines.saved_curves import read_newest
from pipelines.timeline import legs_in, main_line_of, phases_in
from steps.phase_result import FINAL_LOSS_STEPS
from steps.phase_timeline import RunPhase

if TYPE_CHECKING:
    from runtime.report.norms_page import LayerNorms
    from runtime.report.validation_page import ValidationCurve
    from runtime.tracking.curves import Curves


def _curves(session: Session) -> int:
    parsed = session.parsed
    for option, path in (("--validation", parsed.validation), ("--norms", parsed.norms)):
        if path is not None:
            check_writable(option, path)
    check_margin(parsed.against, parsed.margin)
    graph = session.graph()
    listing = _Listing(session, graph, _wanted(session, graph))
    for digest in listing.phases:
        listing.show(digest)
    return listing.finish()


class _Listing:
    """The phases of one call, printed one after the other; only what the pages draw is kept of their curves."""

    def __init__(self, session: Session, graph: Graph, phases: dict[str, list[str]]) -> None:
        self.phases = phases
        """Names by digest; the first name of a digest stands for it."""
        self._session, self._graph = session, graph
        self._width = max(len(names[0]) for names in phases.values())
        self._exports = exports_of(session, graph)
        self._reference = _reference(session, graph)
        self._shown: list[str] = []
        """Digests whose curves were printed."""
        self._damaged: list[str] = []
        self._comparisons: list[bool | None] = []
        self._validated: list[ValidationCurve] = []
        self._layers: list[LayerNorms] = []

    def show(self, digest: str) -> None:
        """Print and export the curves of one digest."""
        from runtime.tracking.curves import with_norms, with_validation
        from runtime.training.checkpoint_reader import CheckpointError

        store, parsed, names = self._session.store, self._session.parsed, self.phases[digest]
        begin_step = self._graph.step(names[0]).config.begin_step  # tables go back to the start of the run
        try:
            curves = read_newest(store, digest, after_step=begin_step, by_source=bool(self._exports))
        except (CheckpointError, UnreadableRecordError) as error:
            print(f"{names[0]:<{self._width}}  {error}")
            self._damaged.append(digest)
            return
        if curves is None or not curves.step.size:
            for name in set(names) & set(parsed.names):
                print(f"{name:<{self._width}}  nothing of it is saved as the recipe is now")
            return
        self._shown.append(digest)
        lines, is_behind = ([], None) if self._reference is None else self._reference.compare(curves)
        self._comparisons.append(is_behind)
        curves = with_validation(curves, attempt_events(store, digest))
        if self._exports or parsed.norms is not None:
            curves = with_norms(curves, attempt_events(store, digest))
        print(f"{names[0]:<{self._width}}  {_summary(curves)}")
        self._print_below(lines)
        for export in self._exports:
            with export_errors(export):
                show_phase = export.write(curves, names[0])
            self._print_below([shlex.join(show_phase)] if show_phase else [])
        self._keep_for_pages(names, curves)

    def finish(self) -> int:
        """Print what concerns all phases, draw the pages and return the exit code."""
        parsed = self._session.parsed
        if not self._shown and not self._damaged:
            where = self._session.store.prefix
            print(f"nothing of these phases is saved under {where} as the recipe is now, so there are no curves")
        notes = [shared_note(self.phases[digest]) for digest in self._shown if len(self.phases[digest]) > 1]
        show_all = [shlex.join(export.show_all) for export in self._exports if export.show_all and self._shown]
        for line in [*notes, *show_all]:
            print(line)
        is_made = bool(self._shown) or not (self._exports or parsed.validation or parsed.norms)
        if parsed.validation is not None and (self._shown or self._damaged):
            is_made &= self._draw_validation(parsed.validation, notes)
        if parsed.norms is not None and self._shown:
            is_made &= self._draw_norms(parsed.norms)
        is_behind = any(self._comparisons)
        is_compared = self._reference is None or any(each is not None for each in self._comparisons)
        return NOTHING_WOULD_RUN if is_made and is_compared and not is_behind and not self._damaged else FAILED

    def _print_below(self, lines: Sequence[str]) -> None:
        for line in lines:
            print(f"{'':<{self._width}}  {line}")

    def _keep_for_pages(self, names: Sequence[str], curves: "Curves") -> None:
        if self._session.parsed.validation is not None:
            from pipelines.validation_plot import validation_curves

            legs, main_line = self._legs
            self._validated += validation_curves([legs[name] for name in names], curves, main_line)
        if self._session.parsed.norms is not None:
            from runtime.report.norms_page import FEWEST_TOLD, layer_norms

            layers = layer_norms(names[0], curves)
            self._layers += [layers] if len(layers.step) >= FEWEST_TOLD else []

    @functools.cached_property
    def _legs(self) -> tuple[dict[str, RunPhase], list[str]]:
        """All phases in their run, and the names of those of the main line."""
        legs = legs_in(phases_in(self._graph.steps))
        return legs, main_line_of(legs, {fork.name for fork in self._session.forks.all()})

    def _draw_validation(self, path: str, notes: Sequence[str]) -> bool:
        """Draw the page of held-out text, or print why there is none; return whether it was drawn."""
        from runtime.report.validation_page import page

        if not any(len(curve.step) for curve in self._validated):
            print("nothing is drawn: no readable checkpoint has measured held-out text (validate_every_steps)")
            return False
        unmeasured = [curve.phase for curve in self._validated if not len(curve.step)]
        missing = [f"{name}: not drawn, it measured nothing up to its newest checkpoint" for name in unmeasured]
        title = f"Held-out text of {self._session.pipeline}"
        write_page("--validation", path, page(title, self._validated, [*missing, *notes]))
        print("\n".join([*missing, f"drawn: {path}"]))
        return True

    def _draw_norms(self, path: str) -> bool:
        """Draw the page of gradient norms, if there are any; return whether it was drawn."""
        from runtime.report.norms_page import FEWEST_TOLD, page

        drawn = {norms.phase for norms in self._layers}
        missing = [name for digest in self._shown if (name := self.phases[digest][0]) not in drawn]
        few = f"fewer than {FEWEST_TOLD} updates up to the newest checkpoint have logged norms (norms_every_steps)"
        notes = [f"no gradients are drawn of {', '.join(missing)}: {few}"] if missing else []
        if self._layers:
            title = f"Gradients by layer of {self._session.pipeline}"
            write_page("--norms", path, page(title, self._layers, notes))
            notes = [*notes, f"drawn: {path}"]
        print("\n".join(notes))
        return bool(self._layers)


def _wanted(session: Session, graph: Graph) -> dict[str, list[str]]:
    """Return the phases by digest that the user named, or all."""
    phases = phases_by_digest(graph.steps)
    if not phases:
        raise UserError(f"curves: the pipeline {session.pipeline!r} trains nothing.")
    named = session.parsed.names
    known = [name for names in phases.values() for name in names]
    for name in named:
        if name not in known:
            raise UserError(
                f"curves {name}: no such phase.{nearest(name, known)} The command `timeline` lists them all."
            )
    return {digest: names for digest, names in phases.items() if not named or not set(named).isdisjoint(names)}


def _reference(session: Session, graph: Graph) -> Reference | None:
    from runtime.training.checkpoint_reader import CheckpointError

    against = session.parsed.against
    if against is None:
        return None
    digests = {name: digest for digest, names in phases_by_digest(graph.steps).items() for name in names}

    def read(name: str) -> "Curves | None":
        return read_newest(session.store, digests[name], after_step=0, by_source=False)

    try:
        return read_reference(against, session.parsed.margin, digests, read)
    except (CheckpointError, UnreadableRecordError) as error:
        raise UserError(f"--against {against}: {error}") from error


def _summary(curves: "Curves") -> str:
    """Return `step 1,200  4,915,200 tokens  loss 3.21  gradient 0.71  1.93 bits per byte at step 1,200  2 skipped`."""
    figures = curves.figures
    # NaN in a row that only measured held-out text, before the first update.
    taken, skipped = figures["train/is_skipped"] == 0, int((figures["train/is_skipped"] == 1).sum())
    parts = [f"step {curves.step[-1]:>11,}", f"{curves.consumed_tokens[-1]:>22,.0f} tokens"]
    if taken.any():
        parts.append(f"loss {figures['train/loss'][taken][-FINAL_LOSS_STEPS:].mean():.4f}")
        parts.append(f"gradient {figures['train/grad_norm'][taken][-FINAL_LOSS_STEPS:].mean():.3f}")
    if (newest := curves.newest_validation()) is not None:
        parts.append(f"{newest[1]:.4f} bits per byte at step {newest[0]:,}")
    return "  ".join([*parts, *([f"{skipped:,} skipped"] if skipped else [])])


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--tensorboard", metavar="DIR", help="(curves) write them for TensorBoard")
    parser.add_argument("--wandb", metavar="DIR", help="(curves) write them as offline runs of Weights & Biases")
    parser.add_argument("--validation", metavar="FILE.html", help="(curves) draw the bits per byte of held-out text")
    parser.add_argument("--norms", metavar="FILE.html", help="(curves) draw the gradient norms of each layer")
    parser.add_argument("--against", metavar="REFERENCE", help="(curves) compare losses: a phase, or a metrics.parquet")
    parser.add_argument("--margin", metavar="NATS", type=float, help="(curves) with --against: exit with 1 beyond it")


COMMAND = Command(
    "curves",
    "[PHASE ...]",
    "how far each phase has come, also against another run; exports for TensorBoard and W&B; pages of held-out text "
    "and gradients",
    _curves,
    0,
    100,
    _add_arguments,
    ("--set",),
)
