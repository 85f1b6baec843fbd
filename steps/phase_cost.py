"""Phase cost: tokens, FLOPs, chip-hours and bytes of a training phase, from its config and its resources."""

from marin_dag.graph.cost import Cost
from marin_dag.graph.resources import Resources
from runtime.optim.optimizer import ADAMW
from steps.machine_checks import expected_flops
from steps.phase_config import TrainPhaseConfig


def phase_cost(config: TrainPhaseConfig, resources: Resources) -> Cost:
    """Of what is written, what stays: not the temporary checkpoints that training deletes again."""
    begin, until, every = config.begin_step, config.until_step, config.publish_every_steps
    tokens = (until - begin) * config.global_batch_size * config.sequence_length
    trees = 1 + ADAMW.num_trees + len(config.averages)
    num_published = 1 + (max(until - 1, 0) // every - begin // every if every else 0)
    num_certified = max(until - begin - 1, 0) // config.certify_every_steps
    flops = tokens * config.model.flops_per_token(config.sequence_length)
    return Cost(
        tokens=tokens,
        flops=flops,
        chip_hours=flops / expected_flops(resources, config.compute_dtype) / 3_600,
        bytes_written=4 * trees * config.model.num_parameters * (num_published + num_certified),
    )
