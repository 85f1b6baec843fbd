"""Machines as a user types them: `cpu:4`, `gpu:H100:1`, `tpu:v6e-8`."""

from marin_dag.errors import UserError
from marin_dag.graph.resources import Cpu, Gpu, Resources, Tpu

MACHINES = "cpu:CORES, gpu:KIND:COUNT or tpu:SLICE"


def resources_named(text: str) -> Resources:
    """Return the machines that `text` names.

    Raises:
        UserError: `text` names no machines.
    """
    try:
        match text.split(":"):
            case ["cpu", cores]:
                return Cpu(int(cores))
            case ["gpu", kind, count] if kind:
                return Gpu(kind, int(count))
            case ["tpu", slice_name]:
                return Tpu(slice_name)
    except ValueError as error:
        raise UserError(
            f"{text!r} names no machine: {str(error).rstrip('.')}. Write {MACHINES}, such as cpu:4."
        ) from None
    raise UserError(f"{text!r} names no machine; write {MACHINES}, such as cpu:4.")
