"""Machines as a user types them: `H100:1`, `64xH100:8`, `v6e-8`, `cpu:4`; a platform before them is optional."""

import re

from marin_dag.errors import UserError
from marin_dag.graph.resources import (
    CORES_PER_CHIP,
    SINGLE_HOST_CHIPS,
    TOPOLOGIES,
    Cpu,
    Gpu,
    Resources,
    Tpu,
    slice_shape,
)
from runtime.cost.chips import GPUS

MACHINES = "cpu:CORES, GPU:COUNT, TPU-SLICE, or NUMBERx before one"
EXAMPLES = "such as cpu:4, H100:1, 4xH200:8 or v6e-8"
KNOWN = f"Known GPUs: {', '.join(GPUS)}, another by Ray's name as gpu:NAME:COUNT; TPUs: {', '.join(TOPOLOGIES)}."
_MACHINES = re.compile(
    r"(?:(?P<number>\d+) ?x ?)?(?:(?P<platform>cpu|gpu|tpu):)?(?P<name>[A-Za-z0-9_.-]+?)(?::(?P<count>\d+))?"
)


def resources_named(text: str) -> Resources:
    """Return the machines that `text` names: `NUMBERx` counts hosts, or slices of a TPU.

    Raises:
        UserError: `text` names no machines.
    """
    found = _MACHINES.fullmatch(text.strip())
    try:
        if found is not None and (machines := _machines(**found.groupdict())) is not None:
            return machines
    except ValueError as error:
        raise UserError(f"{text!r} names no machine: {str(error).rstrip('.')}. Write {MACHINES}, {EXAMPLES}.") from None
    raise UserError(f"{text!r} names no known machine; write {MACHINES}, {EXAMPLES}. {KNOWN}")


def one_host_of(machines: Resources) -> Resources:
    """Return one host of machines, for steps that cannot share work between hosts."""
    match machines:
        case Cpu():
            return Cpu(machines.num_cpus)
        case Gpu():
            return Gpu(machines.kind, machines.count)
        case Tpu():
            shape = slice_shape(machines.slice)
            if shape.num_hosts == 1:
                return Tpu(machines.slice)
            largest = SINGLE_HOST_CHIPS[shape.generation] * CORES_PER_CHIP[shape.generation]
            return Tpu(f"{shape.generation}-{largest}")


def _machines(number: str | None, platform: str | None, name: str, count: str | None) -> Resources | None:
    times = 1 if number is None else int(number)
    if platform == "cpu" and name.isdigit() and count is None:
        return Cpu(int(name), times)
    if platform in (None, "tpu") and count is None and name.rpartition("-")[0] in TOPOLOGIES:
        return Tpu(name, times)
    # Peak and memory of another GPU are not known, and a bare name may be a slip.
    kind = {known.lower(): known for known in GPUS}.get(name.lower(), name if platform == "gpu" else None)
    if platform in (None, "gpu") and count is not None and kind is not None and not name.isdigit():
        return Gpu(kind, int(count), times)
    return None
