"""Weights & Biases: the curves of a phase as one offline run, written whole each time.

Nothing is sent: `wandb sync FOLDER` does that, whenever somebody wants it. A run that is sent again under its id takes
the place of what was sent before (wandb/wandb#2858), and attempts that were logged apart under one id would take
the place of one another (wandb/wandb#3841): so there is one file, with every update in it.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.tracking.curves import Curves


class WandbMissingError(RuntimeError):
    """W&B was asked for and is not installed."""


def write_wandb_run(
    curves: Curves, folder: Path, *, project: str, run_id: str, name: str, config: Mapping[str, Any]
) -> Path:
    """The folder of the offline run, below `folder`; one of this id that an earlier call wrote there is deleted."""
    try:
        import wandb
    except ImportError as error:
        raise WandbMissingError(
            "runs for Weights & Biases are written by the package `wandb`, which is not installed; install the extra "
            "(pip install 'marin-dag[wandb]')."
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    earlier = set((folder / "wandb").glob(f"offline-run-*-{run_id}"))
    run = wandb.init(
        project=project,
        id=run_id,
        name=name,
        dir=str(folder),
        mode="offline",
        config=dict(config),
        # No probing of the machine, no copy of the code or of what is printed: it is not this machine that trained.
        settings=wandb.Settings(
            console="off", disable_code=True, disable_git=True, silent=True, x_disable_stats=True, x_disable_meta=True
        ),
    )
    # The axis is ours: W&B's own counter begins at 0 in each run.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    for step, figures in curves.rows():
        run.log({"step": step, **figures})
    run.finish()
    written = Path(run.settings.sync_dir)
    for run_folder in earlier - {written}:
        shutil.rmtree(run_folder)
    return written
