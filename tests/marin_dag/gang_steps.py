"""A step on several hosts, and its driver: python gang_steps.py PREFIX MARKS RESOURCES.

Each host has JAX devices of its own; the sum over all devices needs every host.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from marin_dag.graph.resources import Cpu, Resources, Tpu
from marin_dag.graph.step import Runtime, StepContext, StepStopped, StopAt, step
from marin_dag.run.driver import Run
from marin_dag.run.live import display_for
from marin_dag.run.ray import gang
from marin_dag.run.ray.backend import RayBackend
from marin_dag.store.prefix import open_store
from steps.joined_mesh import LOST_PEER_ERRORS
from tests.marin_dag.cluster_steps import note
from tests.marin_dag.toy_steps import write_file

RESOURCES: dict[str, Resources] = {"machines": Cpu(1, num_hosts=2), "slice": Tpu("v4-16")}


class SumConfig(BaseModel, frozen=True, extra="forbid"):
    until_step: StopAt[int]
    gate_at: Runtime[int] = -1
    """The step at which host 1 waits until the test makes MARKS/open; host 0 is in the sum by then."""
    mistake: Runtime[bool] = False
    disagrees: Runtime[bool] = False
    """Whether host 1 leaves alone when it is asked to stop."""
    marks: Runtime[str] = ""


class Sums(BaseModel, frozen=True, extra="forbid"):
    step: int
    total: int
    num_devices: int


@step(lost_peer_errors=LOST_PEER_ERRORS)
def sums(config: SumConfig, context: StepContext) -> Sums:
    """Sum, in each step, the step's number times the device's number over all devices of all hosts."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from runtime.parallel.hosts import join_hosts

    host = context.host
    join_hosts(coordinator=host.coordinator, num_hosts=host.num_hosts, index=host.index)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    split = NamedSharding(mesh, PartitionSpec("data"))
    everywhere = {"mesh": mesh, "in_specs": PartitionSpec("data"), "out_specs": PartitionSpec()}
    summed = jax.jit(jax.shard_map(lambda values: jax.lax.psum(values, "data"), **everywhere))
    position = Sums(step=0, total=0, num_devices=jax.device_count())
    saved = Path(context.work_path) / "saved.json"
    if saved.exists():
        position = Sums.model_validate_json(saved.read_text())
    published = context.milestones()
    note(config.marks, f"host-{host.index}-from-{position.step}")
    for number in range(position.step, config.until_step):
        if config.mistake and host.index == 1:
            raise ValueError("host 1 made a mistake")
        if number == config.gate_at and host.index == 1:
            note(config.marks, "gate")
            while not (Path(config.marks) / "open").exists() and not context.stop_requested():
                time.sleep(0.02)
        if config.disagrees and host.index == 1 and context.stop_requested():
            raise StepStopped(f"alone at {number}")
        values = (number + 1) * (1 + np.arange(jax.device_count(), dtype=np.int32))
        spread = jax.make_array_from_callback(values.shape, split, lambda index, values=values: values[index])
        stop = jax.make_array_from_callback(
            values.shape, split, lambda index: np.full(1, context.stop_requested(), np.int32)
        )
        total = int(summed(spread)[0])
        if int(summed(stop)[0]) > 0:
            raise StepStopped(f"at {number}")
        position = Sums(step=number + 1, total=position.total + total, num_devices=jax.device_count())
        if host.index == 0:
            saved.with_suffix(".new").write_text(position.model_dump_json())
            saved.with_suffix(".new").replace(saved)
        context.progress(position.step, config.until_step, "steps")
        if position.step == 4 and 4 not in published:
            write_file(f"{context.output_path}/step-4/of-host-{host.index}.txt", str(position.total))
            summed(spread).block_until_ready()  # a milestone is complete when all hosts have written their files
            context.publish(4, "step-4", position)
    write_file(f"{context.output_path}/of-host-{host.index}.txt", str(position.total))
    return position


def main(arguments: Sequence[str]) -> int:
    prefix, marks, resources = arguments
    gate, mistake = int(os.environ.get("GATE", "-1")), "MISTAKE" in os.environ
    disagrees = "DISAGREES" in os.environ
    gang.STOPPED_ALONE_SECONDS = 1.0 if disagrees else gang.STOPPED_ALONE_SECONDS
    config = SumConfig(until_step=6, gate_at=gate, mistake=mistake, disagrees=disagrees, marks=marks)
    steps: list[Any] = [sums("sums", config, resources=RESOURCES[resources])]
    display = display_for(stream_is_terminal=False)
    return Run(steps, open_store(prefix), RayBackend(), display, command="again", back_off_seconds=0.01).run()


if __name__ == "__main__":
    from tests.marin_dag.gang_steps import main as imported  # workers must find the kinds by this module's name

    sys.exit(imported(sys.argv[1:]))
