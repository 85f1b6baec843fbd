"""curves: how far each phase has come; `--tensorboard DIR` and `--wandb DIR` give its figures to those tools, and
`--validation FILE.html` draws what phases measured of held-out text, `--norms FILE.html` their gradients by layer;
`--against` holds their losses against those of another run."""

import contextlib
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from marin_dag.cli.session import FAILED, NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.ledger.records import Records, UnreadableRecordError
from marin_dag.store.store import Store
from marin_dag.values.changes import nearest
from pipelines.picture_file import PAGE, check_writable, write_picture
from pipelines.reference import Reference, reference_of, refuse_wrong_margin
from pipelines.timeline import legs_in, main_line_of, phases_in
from pipelines.trainings import attempts_of, names_of_trainings, shared
from steps.phase_config import TrainPhaseConfig
from steps.phase_result import FINAL_LOSS_STEPS
from steps.phase_timeline import RunPhase

if TYPE_CHECKING:
    from runtime.report.norms_page import LayerNorms
    from runtime.report.validation_page import ValidationCurve
    from runtime.tracking.curves import Curves

ID_DIGITS = 16
"""Of the digest: the id of a run at W&B."""
WANDB_FOLDER = "wandb"
"""What W&B makes of its own inside the folder that it is given."""
MOST_LOOKS = 10
"""At one phase whose checkpoints go while they are read. A run saves every ten minutes."""


class Saved(NamedTuple):
    """A state of a training; the newest is the greatest."""

    step: int
    is_milestone: bool
    """At one step preferred: a run deletes its temporary checkpoints, and what is published stays."""
    folder: str
    """Has `checkpoint/` and the tables beside it."""


class Export(NamedTuple):
    """A tool that is given the curves of phases, in a folder of this machine."""

    option: str
    folder: str
    inner: tuple[str, ...]
    """What is made inside the folder."""
    refuse_missing_package: Callable[[], None]
    write: Callable[["Curves", str], list[str]]
    """Of one phase, by its name. Returns the command that shows this phase, or nothing."""
    shown_by: tuple[str, ...] = ()
    """The command that shows all phases."""


def _curves(session: Session) -> int:
    picture = session.parsed.validation
    if picture is not None:
        check_writable("--validation", picture, (PAGE,))
    heat = session.parsed.norms
    if heat is not None:
        check_writable("--norms", heat, (PAGE,))
    refuse_wrong_margin(session.parsed.against, session.parsed.margin)
    graph = session.graph()
    trainings = _wanted(session, graph)
    phases = {names[0]: digest for digest, names in trainings.items()}
    exports = _exports(session, graph, tuple(phases))
    for export in exports:
        _refuse_unwritable(export)
        with _refused(export):
            export.refuse_missing_package()
    from pipelines.validation_plot import validation_curves  # not above: a plan imports this module
    from runtime.tracking.curves import with_norms, with_validation
    from runtime.training.checkpoint_reader import CheckpointError

    width = max(map(len, phases))
    told, damaged = set(), set()
    unsaved: list[str] = []
    """Of those that were named."""
    places = None if picture is None else _places(session, graph)
    reference = _reference(session, graph)
    verdicts: list[bool | None] = []
    """Of the reference: whether a phase is behind it, or None where nothing is to compare."""
    validated: list[ValidationCurve] = []
    layers: list[LayerNorms] = []
    for name, digest in phases.items():
        after_step = _first_step(graph, name)
        try:
            curves = read_newest(session.store, digest, after_step=after_step, by_source=bool(exports))
        except (CheckpointError, UnreadableRecordError) as error:  # of one phase; the others are yet to be looked at
            print(f"{name:<{width}}  {error}")
            damaged.add(digest)
            continue
        if curves is None or not curves.step.size:
            unsaved += [stop for stop in trainings[digest] if stop in session.parsed.names]
            continue
        compared = None if reference is None else reference.said(curves)
        curves = with_validation(curves, attempts_of(session.store, digest))
        if exports or heat is not None:
            curves = with_norms(curves, attempts_of(session.store, digest))
        told.add(digest)
        if heat is not None:
            layers += _layers(name, curves)
        if places is not None:
            legs, main_line = places
            validated += validation_curves([legs[stop] for stop in trainings[digest]], curves, main_line)
        print(f"{name:<{width}}  {_said(curves)}")
        if compared is not None:
            lines, verdict = compared
            print("\n".join(f"{'':<{width}}  {line}" for line in lines))
            verdicts.append(verdict)
        for export in exports:
            with _refused(export):
                shown_by = export.write(curves, name)
            if shown_by:
                print(f"{'':<{width}}  {shlex.join(shown_by)}")
    for name in unsaved if told or damaged else ():
        print(f"{name:<{width}}  nothing of it is saved as the recipe stands now")
    notes = [shared(names) for digest, names in trainings.items() if len(names) > 1 and digest in told]
    for note in notes:
        print(note)
    for export in exports:
        if export.shown_by and told:
            print(shlex.join(export.shown_by))
    is_made = bool(told) or (picture is None and heat is None and not exports)
    if not told and not damaged:
        where = session.store.prefix
        print(f"nothing of these phases is saved under {where} as the recipe stands now, so there are no curves")
    elif picture is not None:
        if any(len(curve.step) for curve in validated):
            _draw(session, validated, picture, notes)
        else:
            print(_why_nothing(session, trainings, damaged, told))
            is_made = False
    if told and heat is not None:
        is_made &= _draw_norms(session, layers, heat, [name for name, digest in phases.items() if digest in told])
    is_told = reference is None or (not any(verdicts) and any(verdict is not None for verdict in verdicts))
    return FAILED if damaged or not is_made or not is_told else NOTHING_WOULD_RUN


def _reference(session: Session, graph: Graph) -> Reference | None:
    """What is asked for, read once."""
    from runtime.training.checkpoint_reader import CheckpointError

    against = session.parsed.against
    if against is None:
        return None
    phases = {name: digest for digest, names in names_of_trainings(graph.steps).items() for name in names}
    try:
        return reference_of(
            against,
            session.parsed.margin,
            phases,
            lambda name: read_newest(session.store, phases[name], after_step=0, by_source=False),
        )
    except (CheckpointError, UnreadableRecordError) as error:
        raise UserError(f"--against {against}: {error}") from error


def _places(session: Session, graph: Graph) -> tuple[dict[str, RunPhase], list[str]]:
    """Where each phase stands in its run, and the phases of the main line."""
    legs = legs_in(phases_in(graph.steps))
    return legs, main_line_of(legs, {fork.name for fork in session.forks.all()})


def _draw(session: Session, validated: "Sequence[ValidationCurve]", path: str, notes: Sequence[str]) -> None:
    """Draws what phases measured of held-out text, one of them at least, and says where and what is missing there."""
    from runtime.report.validation_page import page

    missing = [
        f"{curve.phase}: not measured up to its newest checkpoint, not drawn"
        for curve in validated
        if not len(curve.step)
    ]
    write_picture("--validation", path, page(f"Held-out text of {session.pipeline}", validated, [*missing, *notes]))
    print("\n".join([*missing, f"drawn: {path}"]))


def _layers(name: str, curves: "Curves") -> "list[LayerNorms]":
    """Of a phase that has told norms of enough updates up to its newest checkpoint."""
    from runtime.report.norms_page import FEWEST_TOLD, layer_norms

    found = layer_norms(name, curves)
    return [found] if len(found.step) >= FEWEST_TOLD else []


def _draw_norms(session: Session, layers: "Sequence[LayerNorms]", path: str, told: Sequence[str]) -> bool:
    """Whether there was something to draw; says where it is and of which of the phases `told` it shows nothing."""
    from runtime.report.norms_page import FEWEST_TOLD, page

    drawn = {norms.phase for norms in layers}
    missing = ", ".join(name for name in told if name not in drawn)
    few = f"fewer than {FEWEST_TOLD} updates up to the newest checkpoint have told norms (norms_every_steps)"
    notes = [f"no gradients are drawn of {missing}: {few}"] if missing else []
    for note in notes:
        print(note)
    if layers:
        write_picture("--norms", path, page(f"Gradients by layer of {session.pipeline}", layers, notes))
        print(f"drawn: {path}")
    return bool(layers)


def _why_nothing(session: Session, digests: Iterable[str], damaged: Collection[str], told: Collection[str]) -> str:
    """Of a picture of held-out text; `damaged` and `told` are the trainings of which something is saved."""
    from runtime.tracking.events import VALIDATION

    if not told:
        return "nothing is drawn: none of these phases could be read"
    attempts = (each for digest in digests if digest not in damaged for each in attempts_of(session.store, digest))
    if any(event["event"] == VALIDATION for events in attempts for event in events):
        return "nothing is drawn: no checkpoint has come to the steps at which these phases measured held-out text"
    which = "the phases that could be read" if damaged else "these phases"
    return f"nothing is drawn: none of {which} has measured held-out text (validate_every_steps)"


def _wanted(session: Session, graph: Graph) -> dict[str, list[str]]:
    """Digests of trainings to the phases that are their stops: those named, or all."""
    trainings = names_of_trainings(graph.steps)
    if not trainings:
        raise UserError(f"curves: the pipeline {session.pipeline!r} trains nothing.")
    named = session.parsed.names
    phases = [name for names in trainings.values() for name in names]
    for name in named:
        if name not in phases:
            raise UserError(f"curves {name}: there is no such phase.{nearest(name, phases)} `timeline` lists them all.")
    return {digest: names for digest, names in trainings.items() if not named or not set(named).isdisjoint(names)}


def _exports(session: Session, graph: Graph, phases: tuple[str, ...]) -> list[Export]:
    """Those that are asked for."""
    from runtime.tracking import tensorboard_export, wandb_export

    board, wandb = session.parsed.tensorboard, session.parsed.wandb

    def write_events(curves: "Curves", name: str) -> list[str]:
        tensorboard_export.write_events(curves, Path(board, name))
        return []

    def write_run(curves: "Curves", name: str) -> list[str]:
        step = graph.step(name)
        config = step.config.model_dump(mode="json", exclude={"start", "caches", "replay"})
        run_id = step.digest[:ID_DIGITS]
        written = wandb_export.write_wandb_run(
            curves, Path(wandb), project=session.pipeline, run_id=run_id, name=name, config=config
        )
        return ["wandb", "sync", str(written)]

    exports = []
    if board is not None:
        refuse, shown_by = tensorboard_export.refuse_missing_package, ("tensorboard", "--logdir", board)
        exports.append(Export("--tensorboard", board, phases, refuse, write_events, shown_by))
    if wandb is not None:
        refuse = wandb_export.refuse_missing_package
        exports.append(Export("--wandb", wandb, (WANDB_FOLDER,), refuse, write_run))
    return exports


def _refuse_unwritable(export: Export) -> None:
    """Refuses a folder in which what is `inner` could not be made or written; makes nothing."""
    option, folder = export.option, export.folder
    if "://" in folder:
        raise UserError(f"{option} {folder}: it is written on this machine; name a local folder.")
    for path in (Path(folder, name).absolute() for name in export.inner):
        stands = next(each for each in (path, *path.parents) if os.path.lexists(each))
        if not stands.is_dir():
            raise UserError(f"{option} {folder}: {stands} is no folder; move it away, or name another folder.")
        if not os.access(stands, os.W_OK | os.X_OK):
            raise UserError(f"{option} {folder}: nothing can be written to {stands}; name another folder.")


@contextlib.contextmanager
def _refused(export: Export) -> Iterator[None]:
    """What an export says of its package or of its folder, as an error of the user's."""
    from runtime.tracking.curves import ExportError

    try:
        yield
    except ExportError as error:
        raise UserError(f"{export.option} {export.folder}: {error}") from error
    except OSError as error:
        what = f"it could not be written ({error.strerror or error})"
        raise UserError(f"{export.option} {export.folder}: {what}; name another folder.") from error


def newest_saved(store: Store, digest: str) -> Saved | None:
    """Of one training: a published milestone, or a temporary checkpoint where that is newer."""
    from runtime.training.temporary import TemporaryCheckpoints  # not above: a plan imports this module

    # Epoch 0 is nobody's: this only looks.
    every = TemporaryCheckpoints(store.url(f"work/{digest}/temporary"), lease_epoch=0).all()
    found = [Saved(each.step, False, each.folder) for each in every if each.is_complete]
    milestones = Records(store).milestones(digest)
    found += [Saved(step, True, store.url(record.output_path)) for step, record in milestones.items()]
    return max(found, default=None)


def read_newest(store: Store, digest: str, *, after_step: int, by_source: bool) -> "Curves | None":
    """Of the newest state of one training; None if nothing is saved.

    A run that goes on deletes what it has saved anew, maybe while it is read here: then the newest is looked for again.

    Raises:
        CheckpointError: the newest is damaged, or went and left nothing.
    """
    from runtime.training.checkpoint_reader import CheckpointError

    failed, why = None, None
    for _ in range(MOST_LOOKS):
        saved = newest_saved(store, digest)
        if saved is None or saved == failed:
            break
        try:
            return read_curves(saved, after_step=after_step, by_source=by_source)
        except CheckpointError as error:
            failed, why = saved, error
    if failed is None or why is None:
        return None
    if saved is None:
        raise CheckpointError(f"{failed.folder}: deleted while it was read, and nothing else is saved; ask again.")
    raise why


def read_curves(saved: Saved, *, after_step: int, by_source: bool) -> "Curves":
    """Verified against the checkpoint's checksums. What is only of sources is large, and read if it is asked for."""
    from runtime.tracking.curves import curves_of, with_sources
    from runtime.training.checkpoint import read_beside
    from runtime.training.run_state import CHECKPOINT, METRICS, SOURCE_LOSSES

    checkpoint = f"{saved.folder}/{CHECKPOINT}"
    curves = curves_of(read_beside(checkpoint, METRICS), after_step=after_step)
    if not by_source or not curves.step.size:
        return curves
    return with_sources(curves, read_beside(checkpoint, SOURCE_LOSSES))


def _first_step(graph: Graph, name: str) -> int:
    """Of the phase: tables go back to the start of the run, through the phases before it."""
    config = graph.step(name).config
    assert isinstance(config, TrainPhaseConfig)
    return config.begin_step


def _said(curves: "Curves") -> str:
    """`step 1,200  4,915,200 tokens  loss 3.214  gradient 0.71  1.932 bits per byte at step 1,200  2 left out`."""
    figures = curves.figures
    # Not a number where only held-out text was measured, before the first update.
    taken, skipped = figures["train/is_skipped"] == 0, int((figures["train/is_skipped"] == 1).sum())
    parts = [f"step {curves.step[-1]:>11,}", f"{curves.consumed_tokens[-1]:>22,.0f} tokens"]
    if taken.any():
        parts.append(f"loss {figures['train/loss'][taken][-FINAL_LOSS_STEPS:].mean():.4f}")
        parts.append(f"gradient {figures['train/grad_norm'][taken][-FINAL_LOSS_STEPS:].mean():.3f}")
    if (newest := curves.newest_validation()) is not None:
        parts.append(f"{newest[1]:.4f} bits per byte at step {newest[0]:,}")
    return "  ".join([*parts, *([f"{skipped:,} left out"] if skipped else [])])


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
    "how far each phase has come, against another run too; its figures for TensorBoard and W&B, pages of its held-out "
    "text and gradients",
    _curves,
    0,
    100,
    _add_arguments,
    ("--set",),
)
