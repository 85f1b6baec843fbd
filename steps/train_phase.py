"""Train phase: the step that trains one phase of a run."""

import re
from collections.abc import Sequence

from marin_dag.graph.resources import Cpu
from marin_dag.graph.step import StepContext, step
from steps.joined_mesh import LOST_PEER_ERRORS
from steps.machine_checks import check_resources, phase_cost
from steps.phase_checks import check_config
from steps.phase_config import REQUESTS, TrainPhaseConfig
from steps.phase_result import TrainPhaseResult

# The names of TemporaryCheckpoints, whose module is too heavy for a plan to import.
TEMPORARY_CHECKPOINT = re.compile(r"temporary/step-(\d{10})-epoch-\d{6}/checkpoint/manifest\.json")


def _resumes_at(paths: Sequence[str]) -> list[int]:
    """Return the steps of the complete temporary checkpoints among the files of a work folder."""
    return [int(match[1]) for path in paths if (match := TEMPORARY_CHECKPOINT.fullmatch(path))]


# No `packages`, although a compiler decides the last bits of a training step: a run outlives many versions of JAX, and
# an upgrade would make its checkpoints those of another run. Each record has the versions, and an attempt warns where
# they differ. Steps that are cheap to redo do name JAX.
@step(
    policy="tracked", resources=Cpu(2), continues="start", check=check_config, check_on=check_resources,
    cost=phase_cost, resumes_at=_resumes_at, requests=REQUESTS, lost_peer_errors=LOST_PEER_ERRORS,
)  # fmt: skip
def train_phase(config: TrainPhaseConfig, context: StepContext) -> TrainPhaseResult:
    """Train to `until_step` from the newest state of this phase, else from `start`, else from scratch."""
    from steps.phase_training import train_to_the_end

    published = context.milestones()
    if config.until_step in published:
        return published[config.until_step].result
    return train_to_the_end(config, context, published)
