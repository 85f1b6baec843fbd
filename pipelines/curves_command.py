"""curves: how far each phase has come. Options export its curves and draw them."""

import contextlib
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, Session
from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.ledger.records import UnreadableRecordError
from marin_dag.quantities import counted
from pipelines.output import Shown, command, value
from pipelines.phases import (
    attempt_events,
    shared_notes,
    wanted_phases,
)
from pipelines.saved_curves import read_newest
from runtime.optim.ema import HOT
from steps.phase_result import FINAL_LOSS_STEPS

if TYPE_CHECKING:
    from runtime.report.norm_plots import LayerNorms
    from runtime.tracking.curves import Curves
    from runtime.tracking.exports import Export


@command(
    "curves [PHASE...]",
    "how far each phase has come; exports for TensorBoard and W&B; a page with them",
    page="draw the curves, with gradient norms by layer",
    own={
        "--tensorboard": value("DIR", "write them for TensorBoard"),
        "--wandb": value("DIR", "write them as offline runs of Weights & Biases"),
    },
)
def curves(session: Session) -> Shown:
    graph, parsed = session.graph(), session.parsed
    phases, exports = wanted_phases(session, graph), _exports(session)
    listing = _Listing(session, graph, phases, exports)

    def code() -> int:
        is_made = bool(listing.shown) or not (exports or parsed.page)
        return NOTHING_WOULD_RUN if is_made and not listing.is_damaged else FAILED

    return Shown(listing.lines(), code, page=listing.page)


class _Listing:
    """The phases of one call, read one after the other; only the norms of the page stay in memory."""

    def __init__(
        self, session: Session, graph: Graph, phases: dict[str, list[str]], exports: "dict[str, Export]"
    ) -> None:
        self._session, self._graph, self._phases, self._exports = session, graph, phases, exports
        self._width = max(len(names[0]) for names in phases.values())
        self.shown: list[list[str]] = []
        """Names of each digest that has curves; figures use the first one."""
        self._commands: list[str] = []
        """Commands that open the exports."""
        self.is_damaged = False
        """Whether the newest checkpoint of some phase is damaged."""
        self._layers: list[LayerNorms] = []

    def lines(self) -> Iterator[str]:
        """Yield the lines of each phase as soon as it is read, and notes below them; export the curves."""
        for digest in self._phases:
            for name, line in self._lines_of(digest):
                yield f"{name:<{self._width}}  {line}"
        if not self.shown and not self.is_damaged:
            where = self._session.store.prefix
            yield f"nothing of these phases is saved under {where} as the recipe is now, so there are no curves"
        yield from (*shared_notes(self.shown), *dict.fromkeys(self._commands), *self._without_norms())

    def _lines_of(self, digest: str) -> Iterator[tuple[str, str]]:
        """Yield name and text of the lines of one digest."""
        from runtime.tracking.curves import with_norms, with_validation
        from runtime.training.checkpoint_reader import CheckpointError

        store, parsed, names = self._session.store, self._session.parsed, self._phases[digest]
        step = self._graph.step(names[0])
        try:
            # Tables go back to the start of the run.
            begin_step = step.config.begin_step
            curves = read_newest(store, digest, after_step=begin_step, by_source=bool(self._exports))
        except (CheckpointError, UnreadableRecordError) as error:
            self.is_damaged = True
            yield names[0], str(error)
            return
        if curves is None or not curves.step.size:
            for name in sorted(set(names) & set(parsed.names)):
                yield name, "nothing of it is saved as the recipe is now"
            return
        self.shown.append(names)
        curves = with_validation(curves, attempt_events(store, digest))
        if self._exports or parsed.page is not None:
            curves = with_norms(curves, attempt_events(store, digest))
        yield names[0], _summary(curves)
        for option, export in self._exports.items():
            config = step.config.model_dump(mode="json", exclude={"start", "caches", "replay"})
            with _export_errors(option, export):
                self._commands.append(shlex.join(export.write(curves, names[0], digest, config)))
        if parsed.page is not None:
            self._keep_layers(names[0], curves)

    def _keep_layers(self, name: str, curves: "Curves") -> None:
        from runtime.report.norm_plots import FEWEST_STEPS, layer_norms

        layers = layer_norms(name, curves)
        self._layers += [layers] if len(layers.step) >= FEWEST_STEPS else []

    def _without_norms(self) -> list[str]:
        """Return a note on the phases of the page that have logged too few norms."""
        drawn = {norms.phase for norms in self._layers}
        missing = [names[0] for names in self.shown if names[0] not in drawn]
        if self._session.parsed.page is None or not missing:
            return []
        from runtime.report.norm_plots import FEWEST_STEPS  # needs Bokeh, which curves without a page do not

        few = f"fewer than {FEWEST_STEPS} steps up to the newest checkpoint have logged norms (norms_every_steps)"
        return [f"no gradients are drawn of {', '.join(missing)}: {few}"]

    def page(self) -> str | None:
        """Return a page with the curves of the listed phases, and the gradient norms of phases that logged them."""
        if not self.shown:
            return None
        from pipelines.run_curves import logged_phases
        from runtime.report.curve_plots import page

        lines = []
        for phase in logged_phases(self._session, self._graph, self.shown):
            phase.refresh()
            lines += phase.lines()
        title = f"Curves of {self._session.pipeline}"
        return page(title, lines, self._layers, [*self._without_norms(), *shared_notes(self.shown)])


def _exports(session: Session) -> "dict[str, Export]":
    """Return the exports that the options ask for, after making folders and checking packages."""
    from runtime.tracking.exports import TensorBoard, WeightsAndBiases

    board, wandb = session.parsed.tensorboard, session.parsed.wandb
    found: dict[str, Export] = {}
    if board is not None:
        found["--tensorboard"] = TensorBoard(board)
    if wandb is not None:
        found["--wandb"] = WeightsAndBiases(wandb, session.pipeline)
    for option, export in found.items():
        with _export_errors(option, export):
            export.check()
    return found


@contextlib.contextmanager
def _export_errors(option: str, export: "Export") -> Iterator[None]:
    from runtime.tracking.exports import ExportError

    try:
        yield
    except ExportError as error:
        raise UserError(f"{option} {export.folder}: {error}") from error
    except OSError as error:
        reason = f"cannot be written ({error.strerror or error}); name another folder."
        raise UserError(f"{option} {export.folder}: {reason}") from error


def _summary(curves: "Curves") -> str:
    """Return `step 1,200  4,915,200 tokens  loss 3.21  gradient 0.71  1.93 bits per byte ...  2 skipped`."""
    figures = curves.figures
    # NaN in a row that only measured held-out text, before the first update.
    taken, skipped = figures["train/is_skipped"] == 0, int((figures["train/is_skipped"] == 1).sum())
    parts = [f"step {curves.step[-1]:>11,}", f"{curves.consumed_tokens[-1]:>22,.0f} tokens"]
    if taken.any():
        parts.append(f"loss {figures['train/loss'][taken][-FINAL_LOSS_STEPS:].mean():.4f}")
        parts.append(f"gradient {figures['train/grad_norm'][taken][-FINAL_LOSS_STEPS:].mean():.3f}")
    if (newest := curves.newest_validation) is not None:
        sources = counted(len(newest["bits_per_byte"][HOT]), "source")
        mean = f"{newest['mean_bits_per_byte'][HOT]:.4f} bits per byte (weights, mean of {sources}, while training)"
        parts.append(f"{mean} at step {newest['step']:,}")
    return "  ".join([*parts, *([f"{skipped:,} skipped"] if skipped else [])])
