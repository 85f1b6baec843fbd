"""Exports of curves: the curves of a phase as files of TensorBoard and of Weights & Biases, written whole each time.

The tables have no times, so all events have the time of the call. Nothing is sent: `wandb sync FOLDER` sends a run. A
run sent again under its id replaces what was sent before (wandb/wandb#2858), and attempts logged apart under one id
would replace one another (wandb/wandb#3841): so there is one file with every update.
"""

import abc
import dataclasses
import importlib
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from runtime.tracking.curves import Curves

SUFFIX = ".curves"
"""Ending of our event files, beside others in the folder."""
ID_DIGITS = 16
"""Digits of a phase's digest that are the id of its run at W&B."""


class ExportError(RuntimeError):
    """The package of another tool is not installed, or a folder cannot be written."""


@dataclasses.dataclass(frozen=True)
class Export(abc.ABC):
    """Files of a tool below a folder of this machine."""

    folder: str
    package: ClassVar[str]
    tool: ClassVar[str]

    def check(self) -> None:
        """Make the folder.

        Raises:
            ExportError: the package is missing, or the folder is in a bucket.
            OSError: the folder cannot be written.
        """
        if "://" in self.folder:
            raise ExportError("exports are written on this machine; name a local folder.")
        try:
            importlib.import_module(self.package)
        except ImportError as error:
            install = shlex.join([sys.executable, "-m", "pip", "install", self.package])
            needs = f"files for {self.tool} need the package `{self.package}`"
            raise ExportError(f"{needs}; install it: {install}") from error
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=self.folder).close()

    @abc.abstractmethod
    def write(self, curves: Curves, name: str, digest: str, config: Mapping[str, Any]) -> list[str]:
        """Write the curves of a phase in place of those of an earlier call; return the command that shows them.

        Raises:
            ExportError: the tool wrote to another folder.
            OSError: they cannot be written.
        """


class TensorBoard(Export):
    """A folder for each phase, with one event file."""

    package, tool = "tensorboardX", "TensorBoard"

    def write(self, curves: Curves, name: str, digest: str, config: Mapping[str, Any]) -> list[str]:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        folder = Path(self.folder, name)
        folder.mkdir(parents=True, exist_ok=True)
        earlier = set(folder.glob(f"events.out.tfevents.*{SUFFIX}"))
        writer = EventsWriter(str(folder / "events"), SUFFIX)
        now = time.time()
        for step, figures in curves.rows():
            values = [Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
            writer.write_event(Event(wall_time=now, step=step, summary=Summary(value=values)))
        writer.close()
        for file in earlier - {Path(writer._file_name)}:
            file.unlink(missing_ok=True)
        return ["tensorboard", "--logdir", self.folder]


@dataclasses.dataclass(frozen=True)
class WeightsAndBiases(Export):
    """An offline run for each phase, whose id is of the phase's digest."""

    project: str
    package, tool = "wandb", "Weights & Biases"

    def write(self, curves: Curves, name: str, digest: str, config: Mapping[str, Any]) -> list[str]:
        import wandb

        folder, run_id = Path(self.folder), digest[:ID_DIGITS]
        earlier = set((folder / "wandb").glob(f"offline-run-*-{run_id}"))
        run = wandb.init(
            project=self.project,
            id=run_id,
            name=name,
            dir=self.folder,
            mode="offline",
            config=dict(config),
            # No facts of this machine, its code or its output: another machine trained.
            settings=wandb.Settings(
                console="off", disable_code=True, disable_git=True, silent=True, x_disable_stats=True,
                x_disable_meta=True,
            ),
        )  # fmt: skip
        written = Path(run.settings.sync_dir)
        if not written.resolve().is_relative_to(folder.resolve()):  # without permission W&B silently uses /tmp
            run.finish()
            shutil.rmtree(written, ignore_errors=True)
            raise ExportError(f"W&B cannot write there and used {written}; name another folder.")
        # W&B's own counter begins at 0 in each run.
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        for step, figures in curves.rows():
            run.log({"step": step, **figures})
        run.finish()
        for run_folder in earlier - {written}:
            shutil.rmtree(run_folder)
        return ["wandb", "sync", str(written)]
