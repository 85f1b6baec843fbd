"""Joined mesh: the devices of all hosts of a step as one mesh."""

from typing import TYPE_CHECKING

from marin_dag.graph.resources import Cpu, Gpu, Resources, Tpu
from marin_dag.graph.step import StepContext

if TYPE_CHECKING:
    from jax.sharding import Mesh

LOST_PEER_ERRORS = ("JaxRuntimeError", "XlaRuntimeError")
"""Exceptions that JAX raises in a collective when another host is gone."""


def joined_mesh(
    context: StepContext, *, replica_parallel: int = 1, model_parallel: int = 1, context_parallel: int = 1
) -> "Mesh":
    """Wait for the other hosts of this step; return the mesh that `machine_checks` has checked.

    Call it before any use of a device: a process that has seen its own devices cannot join others any more.

    Raises:
        ValueError: the devices cannot be laid out so, or JAX sees none of the kind.
    """
    import jax

    from runtime.parallel.hosts import join_hosts, open_cores
    from runtime.parallel.jax_settings import settle_jax
    from runtime.parallel.mesh import mesh_of_cores, whole_mesh

    axes = {"replica": replica_parallel, "model": model_parallel, "context": context_parallel}
    host, resources = context.host, context.resources
    settle_jax()
    if isinstance(resources, Cpu):
        open_cores(resources.num_devices, is_gang=host.num_hosts > 1)
    join_hosts(
        coordinator=host.coordinator,
        num_hosts=host.num_hosts,
        index=host.index,
        num_slices=host.num_slices,
        slice_index=host.slice_index,
    )
    check_platform(resources)
    # In the driver's process (`--backend local`) a step computes on the accelerators that are there.
    if isinstance(resources, Cpu) and jax.default_backend() == "cpu":
        return mesh_of_cores(resources.num_devices, **axes)
    num_slices = resources.num_slices if isinstance(resources, Tpu) else 1
    return whole_mesh(num_slices=num_slices, **axes)


def check_platform(resources: Resources) -> None:
    """Raise ValueError where JAX does not find the accelerator: it would compute on the CPU, and only warn."""
    import jax

    found = jax.default_backend()
    for kind, platform, build in ((Gpu, "gpu", "CUDA build"), (Tpu, "tpu", "TPU build")):
        if isinstance(resources, kind) and found != platform:
            raise ValueError(
                f"the step asks for {resources}, and JAX sees no {platform.upper()} here, but {found}: install JAX's "
                f"{build} in this environment (and leave JAX_PLATFORMS unset), run it on another machine, or set "
                "resources of this machine, such as Cpu(2)."
            )
