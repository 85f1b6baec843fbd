"""Weights & Biases, offline: an export of the metrics under one run id, however often the run is resumed.

The event log and the metrics table are the record; this is a copy for people who read it there. Nothing is
sent: `wandb sync DIRECTORY` does that, whenever somebody wants it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.tracking.metrics import MetricsRow


class WandbMissingError(RuntimeError):
    """W&B was asked for and is not installed."""


class WandbExport:
    """Logs rows to an offline run in `directory`; `run_id` ties the attempts of one trajectory together."""

    def __init__(
        self,
        *,
        project: str,
        run_id: str,
        name: str,
        directory: str,
        config: Mapping[str, Any],
        tags: tuple[str, ...] = (),
    ) -> None:
        if "://" in directory:
            raise ValueError(
                f"wandb directory {directory}: W&B writes offline runs to a local folder only; "
                "pass a local folder, or set wandb_project to None."
            )
        try:
            import wandb
        except ImportError as error:
            raise WandbMissingError(
                f"wandb_project={project!r} asks for Weights & Biases, and the package `wandb` is not installed; "
                "install the extra (pip install 'marin-dag[wandb]'), or set wandb_project to None."
            ) from error
        Path(directory).mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=project,
            id=run_id,
            name=name,
            dir=directory,
            mode="offline",
            config=dict(config),
            # No probing of the machine, no copy of the code or of what is printed: the work folder has its own log.
            settings=wandb.Settings(
                console="off",
                disable_code=True,
                disable_git=True,
                silent=True,
                x_disable_stats=True,
                x_disable_meta=True,
            ),
        )
        # The axis is ours: W&B's own counter refuses to go back to the step that a killed run resumes from.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, row: MetricsRow) -> None:
        """One finished update."""
        self._run.log(row._asdict())

    def finish(self) -> None:
        """Waits until everything is on the disk."""
        self._run.finish()
