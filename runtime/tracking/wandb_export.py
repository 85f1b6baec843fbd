"""Weights & Biases export: the curves of a phase as one offline run, written whole each time.

Nothing is sent; `wandb sync FOLDER` sends it. A run sent again under its id replaces what was sent before
(wandb/wandb#2858), and attempts logged apart under one id would replace one another (wandb/wandb#3841): so there is one
file with every update.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.tracking.curves import Curves
from runtime.tracking.exporting import ExportError, check_package

PACKAGE, TOOL = "wandb", "Weights & Biases"


def write_wandb_run(
    curves: Curves, folder: Path, *, project: str, run_id: str, name: str, config: Mapping[str, Any]
) -> Path:
    """Write the offline run below `folder` and return its folder; delete the earlier run of this id.

    Raises:
        ExportError: W&B wrote to another folder, which is deleted.
    """
    check_package(PACKAGE, TOOL)
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
        # No facts of this machine, its code or its output: another machine trained.
        settings=wandb.Settings(
            console="off", disable_code=True, disable_git=True, silent=True, x_disable_stats=True, x_disable_meta=True
        ),
    )
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
    return written
