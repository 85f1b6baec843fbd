"""curves: how far each phase has come; `--tensorboard DIR` and `--wandb DIR` give its figures to those tools."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from marin_dag.changes import nearest
from marin_dag.commands.session import NOTHING_WOULD_RUN, WRITES_WHAT_IS_ASKED_FOR, Command, Session
from marin_dag.errors import UserError
from marin_dag.graph import Graph
from marin_dag.records import Records
from marin_dag.store import Store
from pipelines.waits_command import names_of_trainings, shared
from steps.train_phase import FINAL_LOSS_STEPS, TrainPhaseConfig

if TYPE_CHECKING:
    from runtime.tracking.curves import Curves

ID_DIGITS = 16
"""Of the digest: the id of a run at W&B."""


class Saved(NamedTuple):
    """The newest state of a training."""

    step: int
    folder: str
    """Has `checkpoint/` and the tables beside it."""


def _curves(session: Session) -> int:
    folders = {"tensorboard": session.parsed.tensorboard, "wandb": session.parsed.wandb}
    for option, folder in folders.items():
        if folder is not None:
            _refuse_no_folder(f"--{option}", folder)
    graph = session.graph()
    trainings = _wanted(session, graph)
    phases = {names[0]: digest for digest, names in trainings.items()}
    saved = {name: found for name, digest in phases.items() if (found := newest_saved(session.store, digest))}
    if not saved:
        print("nothing of these phases is saved under this prefix as the recipe stands now, so there are no curves")
        return NOTHING_WOULD_RUN
    width = max(map(len, saved))
    for name, found in saved.items():
        curves = read_curves(found, after_step=_first_step(graph, name), by_source=any(folders.values()))
        if not curves.step.size:
            continue
        print(f"{name:<{width}}  {_said(curves)}")
        if folders["tensorboard"] is not None:
            from runtime.tracking.tensorboard_export import write_events

            write_events(curves, Path(folders["tensorboard"], name))
        if folders["wandb"] is not None:
            from runtime.tracking.wandb_export import write_wandb_run

            config = graph.step(name).config.model_dump(mode="json", exclude={"start", "caches", "replay"})
            run_id = phases[name][:ID_DIGITS]
            written = write_wandb_run(
                curves, Path(folders["wandb"]), project=session.pipeline, run_id=run_id, name=name, config=config
            )
            print(f"{'':<{width}}  wandb sync {written}")
    for names in trainings.values():
        if len(names) > 1 and names[0] in saved:
            print(shared(names))
    if folders["tensorboard"] is not None:
        print(f"tensorboard --logdir {folders['tensorboard']}")
    return NOTHING_WOULD_RUN


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


def _refuse_no_folder(option: str, folder: str) -> None:
    path = Path(folder)
    if "://" in folder:
        raise UserError(f"{option} {folder}: it is written on this machine; name a local folder.")
    if path.exists() and not path.is_dir():
        raise UserError(f"{option} {folder}: it is a file; name a folder.")


def newest_saved(store: Store, digest: str) -> Saved | None:
    """Of one training: a published milestone, or a temporary checkpoint where that is newer."""
    from runtime.training.temporary import TemporaryCheckpoints  # not above: a plan imports this module

    # Epoch 0 is nobody's: this only looks.
    every = TemporaryCheckpoints(store.url(f"work/{digest}/temporary"), lease_epoch=0).all()
    found = [Saved(each.step, each.folder) for each in every if each.is_complete]
    milestones = Records(store).milestones(digest)
    found += [Saved(step, store.url(record.output_path)) for step, record in milestones.items()]
    return max(found, default=None)


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
    return 0 if config.start is None else config.start.milestone or 0


def _said(curves: "Curves") -> str:
    """`step 1,200  4,915,200 tokens  loss 3.214  gradient 0.71  2 left out`."""
    figures = curves.figures
    taken = figures["train/is_skipped"] == 0
    skipped = int((~taken).sum())
    parts = [f"step {curves.step[-1]:>11,}", f"{figures['train/consumed_tokens'][-1]:>22,.0f} tokens"]
    if taken.any():
        parts.append(f"loss {figures['train/loss'][taken][-FINAL_LOSS_STEPS:].mean():.4f}")
        parts.append(f"gradient {figures['train/grad_norm'][taken][-FINAL_LOSS_STEPS:].mean():.3f}")
    return "  ".join([*parts, *([f"{skipped:,} left out"] if skipped else [])])


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--tensorboard", metavar="DIR", help="(curves) write them for TensorBoard")
    parser.add_argument("--wandb", metavar="DIR", help="(curves) write them as offline runs of Weights & Biases")


COMMAND = Command(
    "curves",
    "[PHASE ...]",
    "how far each phase has come, and its figures for TensorBoard and Weights & Biases",
    _curves,
    0,
    100,
    _add_arguments,
    ("--set",),
    WRITES_WHAT_IS_ASKED_FOR,
)
