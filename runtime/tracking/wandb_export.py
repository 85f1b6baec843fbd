"""Weights & Biases: the curves of a phase as one offline run, written whole each time.

Nothing is sent: `wandb sync FOLDER` does that, whenever somebody wants it. A run that is sent again under its id takes
the place of what was sent before (wandb/wandb#2858), and attempts that were logged apart under one id would take
the place of one another (wandb/wandb#3841): so there is one file, with every update in it.
"""

import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.tracking.curves import Curves, ExportError


def refuse_missing_package() -> None:
    """Raises ExportError; for whoever wants to know before there is something to write."""
    try:
        import wandb  # noqa: F401
    except ImportError as error:
        raise ExportError(
            "runs for Weights & Biases are written by the package `wandb`, which is not installed; install "
            f"it: {shlex.join([sys.executable, '-m', 'pip', 'install', 'wandb'])}"
        ) from error


def write_wandb_run(
    curves: Curves, folder: Path, *, project: str, run_id: str, name: str, config: Mapping[str, Any]
) -> Path:
    """The folder of the offline run, below `folder`; one of this id that an earlier call wrote there is deleted.

    Raises:
        ExportError: W&B writes elsewhere. What it began there is deleted.
    """
    refuse_missing_package()
    import wandb

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
    written = Path(run.settings.sync_dir)
    if not written.resolve().is_relative_to(folder.resolve()):  # it may not write there, and takes /tmp without a word
        run.finish()
        shutil.rmtree(written, ignore_errors=True)
        raise ExportError(f"W&B cannot write there and took {written}; name another folder.")
    # The axis is ours: W&B's own counter begins at 0 in each run.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    for step, figures in curves.rows():
        run.log({"step": step, **figures})
    run.finish()
    for run_folder in earlier - {written}:
        shutil.rmtree(run_folder)
    return written
