"""Scores on two hosts, and a driver of them: python gang_of_scores.py FOLDER.

The file FOLDER/dies has a line for each attempt: the host that dies, and the number of answers that it knows then.
"""

import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from marin_dag.graph.resources import Cpu
from marin_dag.graph.step import Step, StepContext, step
from marin_dag.run.driver import Run
from marin_dag.run.live import display_for
from marin_dag.run.ray.backend import RayBackend
from marin_dag.store.prefix import open_store
from runtime.evaluation import answers
from runtime.evaluation.suites import TaskSpec
from runtime.interop.huggingface import SpecialTokens, write_model
from runtime.model.config import LLAMA3_ROPE
from steps.download import DownloadedFile, DownloadResult
from steps.lm_eval import LmEvalConfig, LmEvalResult, lm_eval
from tests.runtime.evaluation.own_tasks import FILES, write_own_tasks
from tests.runtime.evaluation.rows import task_of
from tests.runtime.interop.small_llama import CONFIG, model, tokenizer_file

NUM_HOSTS = 2
KINDS = {"animals": "loglikelihood", "rolled": "loglikelihood_rolling", "written": "generate_until"}
"""Task -> the kind of its requests."""


class PartConfig(BaseModel, frozen=True, extra="forbid"):
    part: str


@step()
def given(config: PartConfig, context: StepContext) -> DownloadResult:
    """Write a model, or the rows or definitions of own tasks."""
    folder = Path(context.output_path)
    if config.part == "model":
        write_model(str(folder), model(), CONFIG, LLAMA3_ROPE, SpecialTokens(0, None), dtype="float32")
        tokenizer_file(folder / "tokenizer.json")
    else:
        write_own_tasks(folder)
    paths = {"model": folder.glob("*"), "items": (folder / "items").iterdir()}.get(config.part) or (
        folder / name for name in FILES
    )
    files = [
        DownloadedFile(path=str(path.relative_to(folder)), name=path.name, sha256="0" * 64, size_in_bytes=1)
        for path in sorted(paths)
    ]
    return DownloadResult(files=tuple(files))


class DeadlyAnswers(answers.Answers):
    """Answers that are written at once, of a host that may have to die."""

    orders, host = Path(), 0

    def __init__(self, folder: str, writer: str) -> None:
        super().__init__(folder, writer, flush_seconds=0)
        who, _, number = next(iter(self.orders.read_text().splitlines()), "").partition(" ")
        self._dies_at = int(number) if who == str(self.host) else math.inf

    def flush(self, *, now: bool = False) -> None:
        super().flush(now=now)
        if len(self._known) >= self._dies_at:
            self.orders.write_text("".join(self.orders.read_text().splitlines(keepends=True)[1:]))
            os.kill(os.getpid(), signal.SIGKILL)


@step(resources=Cpu(1, num_hosts=NUM_HOSTS), lost_peer_errors=lm_eval.lost_peer_errors)
def recorded_scores(config: LmEvalConfig, context: StepContext) -> LmEvalResult:
    """Score on two hosts, of which one may die."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeadlyAnswers, "orders", Path(context.work_path).parents[2] / "dies")
        patch.setattr(DeadlyAnswers, "host", context.host.index)
        patch.setattr(answers, "Answers", DeadlyAnswers)
        return lm_eval.function(config, context)


def parts() -> dict[str, Step[DownloadResult]]:
    fields = {"export": "model", "own_items": "items", "own_definitions": "definitions"}
    return {field: given(part, PartConfig(part=part)) for field, part in fields.items()}


def config_on(folder: Path, **inputs: Any) -> LmEvalConfig:
    """Return scores of each kind of request; `folder` gets the definitions, for the plan to read."""
    if not folder.exists():
        write_own_tasks(folder)
    tasks = tuple(task_of(TaskSpec(str(folder / f"{name}.yaml"), items="items")) for name in KINDS)
    return LmEvalConfig(tasks=tasks, limit=None, tokens_per_batch=256, **inputs)


def scores_step(folder: Path) -> Step[LmEvalResult]:
    return recorded_scores("scores", config_on(folder / "own", **parts()))


def main(folder: str) -> int:
    display = display_for(stream_is_terminal=False)
    store = open_store(f"{folder}/runs")
    scores = scores_step(Path(folder))
    return Run([*parts().values(), scores], store, RayBackend(), display, command="again", back_off_seconds=0.01).run()


if __name__ == "__main__":
    from tests.steps.gang_of_scores import main as imported  # workers must find the kinds by this module's name

    sys.exit(imported(*sys.argv[1:]))
