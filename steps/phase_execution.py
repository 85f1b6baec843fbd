"""Phase execution: on and with what a phase computes, and what of that is other than what it goes on from was.

Other devices, another mesh, other kernels or versions round otherwise. No digest knows of them, so an attempt that goes
on with others says so: what was recorded, and what is now. (BigScience's tr8b had one seed and two runs, on V100 and
A100.) The records are those that there are: of a checkpoint that was published `computed_with` beside it, of a
temporary one the event log of the attempt that saved it.
"""

import importlib.metadata
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import fsspec
from jax.sharding import Mesh

from marin_dag.graph.step import StepContext
from runtime.tracking.events import EventLog, read_beginning
from runtime.tracking.log_names import is_of_first_host
from steps.phase_config import TrainPhaseConfig
from steps.phase_state import Begun
from steps.taken_kernels import TakenKernels

EXECUTION, OTHER_EXECUTION = "execution", "other_execution"
"""Events: how an attempt computes, and that what it goes on from was computed otherwise."""
KERNELS = ("attention", "loss", "scatter")
SHAPE = ("batch", "memory")
"""What a recipe sets from phase to phase, and the blocks of the kernels follow."""
FROM_STEP = "from_step_"
"""Names in `computed_with` begin so, of what the attempts at this trajectory have gone on with otherwise since."""
PACKAGES = {
    "cpu": ("jax", "jaxlib"),
    "tpu": ("jax", "jaxlib", "libtpu"),
    "gpu": ("jax", "jaxlib", "jax-cuda12-pjrt", "jax-cuda13-pjrt", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
}
"""Those that decide the last bits of an update, by platform, where they are installed."""


class Difference(NamedTuple):
    """One thing that is other than it was."""

    name: str
    recorded: str
    now: str

    def __str__(self) -> str:
        return f"{self.name}: recorded: {self.recorded} / now: {self.now}"


def execution(config: TrainPhaseConfig, context: StepContext, mesh: Mesh, taken: TakenKernels) -> dict[str, str]:
    """On and with what this attempt computes, in the words of `StepContext.computed_with`."""
    first = mesh.devices.flat[0]
    axes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items() if size > 1)
    num_hosts = context.host.num_hosts
    return {
        "device": f"{first.device_kind}, {_processor()}" if first.platform == "cpu" else str(first.device_kind),
        "mesh": f"{axes or 'one device'}; hosts: {num_hosts}",
        **{name: version for name in PACKAGES[first.platform] if (version := _version(name)) is not None},
        "batch": f"{config.global_batch_size:,} x {config.sequence_length:,} tokens",
        "memory": f"remat {config.remat}, micro-batches: {config.num_microbatches}",
        **taken.described(),
        "scatter": f"{config.scatter_kernel}: {taken.blocks['scatter']}",
    }


def differences(recorded: Mapping[str, str], now: Mapping[str, str], *, is_resumed: bool) -> list[Difference]:
    """What of both records is not the same; older records tell less.

    A phase that starts from another may be of another shape: batch, what is kept and the blocks of kernels are then the
    recipe's, and nothing that happened to the run. The attempts at one trajectory have one shape.
    """
    names = [name for name in now if name in recorded and name not in ("reason", *SHAPE)]
    if is_resumed:
        names += [name for name in SHAPE if name in recorded]
    is_of_one_shape = is_resumed or all(recorded.get(name) == now[name] for name in SHAPE)
    found = []
    for name in names:
        before, after = recorded[name], now[name]
        if name in KERNELS and not is_of_one_shape:
            before, after = before.partition(":")[0], after.partition(":")[0]
        if before != after:
            found.append(Difference(name, before, after))
    return found


def tell_of_other_execution(
    config: TrainPhaseConfig, context: StepContext, begun: Begun, now: Mapping[str, str], events: EventLog
) -> None:
    """Says in log, terminal, event log and beside the output what is other than where the run begins; stops nothing.

    Silent where all is the same, and where nothing was recorded. On several hosts the first one says it.
    """
    if context.host.index > 0:
        return
    recorded, saved_by, others = _record_of(context, begun)
    step = begun.run.step
    if other := differences(recorded, now, is_resumed=begun.is_own):
        learns = config.replay is None and bool(config.mixing.lag_steps)
        data = "data as the mixing policy learns from these losses" if learns else "the same data"
        context.warn(
            "\n".join(
                [
                    f"from step {step:,} on computed otherwise than what it goes on from ({saved_by}):",
                    *(f"  {difference}" for difference in other),
                    f"  {data}, and losses equal to rounding only; the bitwise promise starts anew at step {step:,}",
                ]
            )
        )
        events.write(OTHER_EXECUTION, step=step, saved_by=saved_by, differences=[each._asdict() for each in other])
        others = others | {f"{FROM_STEP}{step}": "; ".join(map(str, other))}
    events.write(EXECUTION, computed_with=dict(now), others=others)
    context.computed_with(**others)


def tell_what_a_kill_loses(config: TrainPhaseConfig, context: StepContext) -> None:
    """In the log of a phase that begins."""
    notice = context.notice_seconds
    context.log.info(
        "killed without saving, it loses what is younger than its last save: at most %g s "
        "(checkpoint_every_seconds) and what a save takes; notice before a kill: %s",
        *(config.checkpoint_every_seconds, "not known (--notice SECONDS)" if notice is None else f"{notice:g} s"),
    )


def _record_of(context: StepContext, begun: Begun) -> tuple[Mapping[str, str], str, dict[str, str]]:
    """How the state was computed and who saved it, and what its trajectory was told before; nothing of what is not
    known."""
    if begun.lease_epoch is not None:
        try:
            return _record_in_log(context, begun.lease_epoch)
        # Of any bucket's client, or of a damaged line. It is not worth a run.
        except Exception as error:
            context.log.warning("how the attempt before computed is not known (%s: %s)", type(error).__name__, error)
    elif begun.source is not None:
        made = begun.source.computed_with
        others = {name: said for name, said in made.items() if name.startswith(FROM_STEP)}
        return made, f"{begun.source.name} at step {begun.run.step:,}", others if begun.is_own else {}
    return {}, "", {}


def _record_in_log(context: StepContext, lease_epoch: int) -> tuple[Mapping[str, str], str, dict[str, str]]:
    """The same, of the attempt at this trajectory with that lease epoch."""
    files, folder = fsspec.core.url_to_fs(f"{context.work_path}/events")
    for path in sorted(filter(is_of_first_host, files.glob(f"{folder}/*.jsonl")), reverse=True):  # the newest first
        said = {event["event"]: event for event in read_beginning(str(files.unstrip_protocol(path)))}
        if said.get("phase", {}).get("lease_epoch") == lease_epoch and EXECUTION in said:
            return said[EXECUTION]["computed_with"], f"attempt {Path(path).stem}", said[EXECUTION]["others"]
    return {}, "", {}


def _processor() -> str:
    """Its model as the system names it: of CPUs JAX knows none, and XLA compiles for the one that is there."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
