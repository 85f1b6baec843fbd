"""A driver of one small training phase as a process of its own: python phase_driver.py --prefix DIR --backend local.

With SECONDS_PER_UPDATE set, the phase waits as long before each update, so that a test can meet it half done.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from marin_dag.cli.main import main
from marin_dag.graph.resources import Cpu
from marin_dag.graph.step import Step, StepContext, step
from steps.tokenize import TokenizeResult
from steps.train_phase import train_phase
from tests.end_to_end.tiny_tootsie import slow_down
from tests.steps.phase_runs import a_phase, write_cache

UNTIL_STEP = 40


class CacheConfig(BaseModel, frozen=True, extra="forbid"):
    """Ids below `last_id`."""

    last_id: int


@step(policy="tracked")
def cache(config: CacheConfig, context: StepContext) -> TokenizeResult:
    """A token cache without texts."""
    return write_cache(Path(context.output_path), config.last_id)


def build(arguments: argparse.Namespace) -> Sequence[Step[Any]]:
    """A cache, and a phase that reads it and saves nothing before its end unless it is asked to stop."""
    web = cache("cache", CacheConfig(last_id=8))
    config = a_phase(web, until_step=UNTIL_STEP, checkpoint_every_steps=UNTIL_STEP)
    return [web, train_phase("phase", config, resources=Cpu(1))]


if __name__ == "__main__":
    if "SECONDS_PER_UPDATE" in os.environ:
        slow_down(float(os.environ["SECONDS_PER_UPDATE"]))
    sys.exit(main(build, name="phase_driver"))
