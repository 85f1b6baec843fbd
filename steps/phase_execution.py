"""Phase execution: the devices, kernels and versions that a phase computes with, and what has changed of them.

Other devices, meshes, kernels or versions round differently, and no digest contains them. An attempt that continues a
state therefore warns of each change. The record of a milestone is its `computed_with`; that of a temporary checkpoint
is the event log of the attempt that saved it.
"""

import contextlib
import importlib.metadata
import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
from jax.sharding import Mesh

from marin_dag.graph.step import StepContext
from runtime.parallel.jax_settings import changed_by_environment, processor
from runtime.tracking.events import EventLog, is_of_first_host, read_beginning
from runtime.training.kernel_choice import KernelChoice
from runtime.training.train_step import TrainStep
from steps.phase_config import TrainPhaseConfig
from steps.phase_state import StartState

EXECUTION, OTHER_EXECUTION = "execution", "other_execution"
"""Events: what an attempt computes with, and what has changed against the state it continues."""
KERNELS = ("attention", "loss", "scatter")
SHAPE = ("batch", "memory")
"""Entries that a recipe sets for each phase; the blocks of the kernels depend on them."""
FROM_STEP = "from_step_"
"""Prefix of names in `computed_with` for changes during the phase."""
PACKAGES = {
    "cpu": ("jax", "jaxlib"),
    "tpu": ("jax", "jaxlib", "libtpu"),
    "gpu": ("jax", "jaxlib", "jax-cuda12-pjrt", "jax-cuda13-pjrt", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
}
"""Packages that decide the last bits of a training step, by platform, where they are installed."""


SILENT_SECONDS = 15.0
"""Time after which a compile is announced."""


class Difference(NamedTuple):
    """A change against the record."""

    name: str
    recorded: str
    now: str

    def __str__(self) -> str:
        return f"{self.name}: recorded: {self.recorded} / now: {self.now}"


def execution(config: TrainPhaseConfig, context: StepContext, mesh: Mesh, taken: KernelChoice) -> dict[str, str]:
    """Return what this attempt computes with, for `StepContext.computed_with`."""
    first = mesh.devices.flat[0]
    axes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items() if size > 1)
    num_hosts = context.host.num_hosts
    return {
        "device": f"{first.device_kind}, {processor()}" if first.platform == "cpu" else str(first.device_kind),
        "mesh": f"{axes or 'one device'}; hosts: {num_hosts}",
        **_versions(PACKAGES[first.platform]),
        "batch": f"{config.global_batch_size:,} x {config.sequence_length:,} tokens",
        "memory": f"remat {config.remat}, micro-batches: {config.num_microbatches}",
        "environment": changed_by_environment(),
        **taken.described(),
        "scatter": f"{config.scatter_kernel}: {taken.blocks['scatter']}",
    }


def differences(recorded: Mapping[str, str], now: Mapping[str, str], *, is_resumed: bool) -> list[Difference]:
    """Return the changes between two records, of the names that both have.

    Batch and memory plan count only between attempts at one phase (`is_resumed`). They decide block sizes, which
    therefore count only where both records have the same batch and memory plan.
    """
    has_same_shape = is_resumed or all(recorded.get(name) == now[name] for name in SHAPE)
    left_out = ("reason",) if is_resumed else ("reason", *SHAPE)
    found = []
    for name, after in now.items():
        if name not in recorded or name in left_out:
            continue
        before = recorded[name]
        if name in KERNELS and not has_same_shape:
            before, after = before.partition(":")[0], after.partition(":")[0]
        if before != after:
            found.append(Difference(name, before, after))
    return found


def warn_of_other_execution(
    config: TrainPhaseConfig, context: StepContext, start: StartState, now: Mapping[str, str], events: EventLog
) -> None:
    """Warn, on the first host, of what has changed since `start` was computed, and record it."""
    if context.host.index > 0:
        return
    recorded, saved_by, others = _record_of(context, start)
    step = start.run.step
    if changed := differences(recorded, now, is_resumed=start.is_own):
        data = "the mixing policy learns from these losses" if config.mixing.lag_steps else "the data stay the same"
        lines = "".join(f"  {difference}\n" for difference in changed)
        context.warn(
            f"from step {step:,} on, the phase computes with other devices, kernels or versions than the state it "
            f"continues ({saved_by}):\n{lines}"
            f"  losses are equal up to rounding, {data}, and bitwise equality holds from step {step:,} on"
        )
        events.write(OTHER_EXECUTION, step=step, saved_by=saved_by, differences=[each._asdict() for each in changed])
        others = others | {f"{FROM_STEP}{step}": "; ".join(map(str, changed))}
    events.write(EXECUTION, computed_with=dict(now), others=others)
    context.computed_with(**others)


def announced_compile(train_step: TrainStep, context: StepContext) -> TrainStep:
    """Return a training step that warns while its first call compiles, if that takes long."""
    calls = itertools.count()
    text = f"still compiling its train step after {SILENT_SECONDS:g} s; training starts when it is done"

    def call(*args: Any) -> Any:
        if next(calls):
            return train_step(*args)
        still = threading.Timer(SILENT_SECONDS, context.warn, [text])
        still.daemon = True
        still.start()
        began = time.monotonic()
        try:
            return train_step(*args)
        finally:
            still.cancel()
            if (seconds := time.monotonic() - began) >= SILENT_SECONDS:
                context.warn(f"its train step is compiled, after {seconds:.0f} s")

    return call


def _record_of(context: StepContext, start: StartState) -> tuple[Mapping[str, str], str, dict[str, str]]:
    """Return what a state was computed with, who saved it, and earlier changes; empty where unknown."""
    if start.lease_epoch is not None:
        try:
            return _record_in_log(context, start.lease_epoch)
        except Exception as error:  # a bucket's client, a damaged line: not worth a run
            context.log.warning("the record of the last attempt cannot be read (%s: %s)", type(error).__name__, error)
    elif start.source is not None:
        made = start.source.computed_with
        others = {name: change for name, change in made.items() if start.is_own and name.startswith(FROM_STEP)}
        return made, f"{start.source.name} at step {start.run.step:,}", others
    return {}, "", {}


def _record_in_log(context: StepContext, lease_epoch: int) -> tuple[Mapping[str, str], str, dict[str, str]]:
    """Return the same for the attempt at this phase with that lease epoch."""
    files, folder = fsspec.core.url_to_fs(f"{context.work_path}/events")
    for path in sorted(filter(is_of_first_host, files.glob(f"{folder}/*.jsonl")), reverse=True):  # the newest first
        logged = {event["event"]: event for event in read_beginning(str(files.unstrip_protocol(path)))}
        if logged.get("phase", {}).get("lease_epoch") == lease_epoch and EXECUTION in logged:
            return logged[EXECUTION]["computed_with"], f"attempt {Path(path).stem}", logged[EXECUTION]["others"]
    return {}, "", {}


def _versions(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
