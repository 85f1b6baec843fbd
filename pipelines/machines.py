"""Machines as a user types them: `cpu:4`, `gpu:H100:1`, `tpu:v6e-8`."""

from typing import Any

from marin_dag.errors import UserError
from marin_dag.graph.resources import Cpu, Gpu, Resources, Tpu
from marin_dag.graph.step import Step
from runtime.cost.chips import slice_of

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


def slice_of_step(step: Step[Any]) -> tuple[str, int]:
    """Return the name of a step's slice or GPUs, and the number of slices."""
    resources = step.resources
    if isinstance(resources, Cpu):
        raise UserError(
            f"--compile: {step.name} runs on {resources}, and only programs for TPUs and GPUs are compiled ahead of "
            "time; give it resources=Tpu(...) or Gpu(...) (the flagship: --scale 8b)."
        )
    name, num_slices = (str(resources), 1) if isinstance(resources, Gpu) else (resources.slice, resources.num_slices)
    try:
        slice_of(name)
    except ValueError as error:
        raise UserError(f"--compile: {step.name} runs on {resources}: {error}") from error
    return name, num_slices
