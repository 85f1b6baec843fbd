"""Exports of curves: the tools that `curves` writes files for, in a folder of this machine."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from marin_dag.cli.session import Session
from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph

if TYPE_CHECKING:
    from runtime.tracking.curves import Curves

ID_DIGITS = 16
"""Digits of the digest that are the id of a run at W&B."""


class Export(NamedTuple):
    """A tool that reads the curves of phases."""

    option: str
    folder: str
    package: str
    tool: str
    write: Callable[["Curves", str], list[str]]
    """Writes the curves of a phase by its name; returns the command that shows this phase, if there is one."""
    show_all: Sequence[str] = ()
    """The command that shows all phases."""


def exports_of(session: Session, graph: Graph) -> list[Export]:
    """Return the exports that the options ask for, after making folders and checking packages.

    Raises:
        UserError: a folder cannot be written, or a package is missing.
    """
    from runtime.tracking import tensorboard_export, wandb_export
    from runtime.tracking.exporting import check_package

    board, wandb = session.parsed.tensorboard, session.parsed.wandb

    def write_events(curves: "Curves", name: str) -> list[str]:
        tensorboard_export.write_events(curves, Path(board, name))
        return []

    def write_run(curves: "Curves", name: str) -> list[str]:
        step = graph.step(name)
        config = step.config.model_dump(mode="json", exclude={"start", "caches"})
        run_id = step.digest[:ID_DIGITS]
        written = wandb_export.write_wandb_run(
            curves, Path(wandb), project=session.pipeline, run_id=run_id, name=name, config=config
        )
        return ["wandb", "sync", str(written)]

    exports = []
    if board is not None:
        package, tool = tensorboard_export.PACKAGE, tensorboard_export.TOOL
        show_all = ("tensorboard", "--logdir", board)
        exports.append(Export("--tensorboard", board, package, tool, write_events, show_all))
    if wandb is not None:
        package, tool = wandb_export.PACKAGE, wandb_export.TOOL
        exports.append(Export("--wandb", wandb, package, tool, write_run))
    for export in exports:
        if "://" in export.folder:
            raise UserError(
                f"{export.option} {export.folder}: exports are written on this machine; name a local folder."
            )
        with export_errors(export):
            check_package(export.package, export.tool)
            Path(export.folder).mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=export.folder).close()
    return exports


@contextlib.contextmanager
def export_errors(export: Export) -> Iterator[None]:
    """Raise errors of an export's package or folder as UserError."""
    from runtime.tracking.exporting import ExportError

    where = f"{export.option} {export.folder}"
    try:
        yield
    except ExportError as error:
        raise UserError(f"{where}: {error}") from error
    except OSError as error:
        raise UserError(f"{where}: cannot be written ({error.strerror or error}); name another folder.") from error
