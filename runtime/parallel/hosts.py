"""Multi-host start: makes the processes of one step, one a host, a single JAX run over all their devices.

Before any device is asked for: a process that has seen its own devices cannot join others any more.
"""

import os

import jax

MEGASCALE_PORT = "8081"
INITIALIZATION_TIMEOUT_SECONDS = 300


def join_hosts(*, coordinator: str, num_hosts: int, index: int, num_slices: int = 1, slice_index: int = 0) -> None:
    """Waits for the other hosts at `coordinator`; afterwards `jax.devices()` are those of all. Alone it does nothing.

    Args:
        coordinator: `ADDRESS:PORT` where host 0 listens.
        num_hosts: processes of the run.
        index: of this one; slice by slice, and in a slice by the number of the worker, as the TPU runtime counts.
        num_slices: TPU slices, which find each other over the data-centre network.
        slice_index: of this host's.
    """
    if num_hosts == 1:
        return
    if num_slices > 1:
        # Read by libtpu when it is loaded, which must not have happened yet.
        os.environ.update(
            MEGASCALE_COORDINATOR_ADDRESS=coordinator.rpartition(":")[0],
            MEGASCALE_PORT=MEGASCALE_PORT,
            MEGASCALE_NUM_SLICES=str(num_slices),
            MEGASCALE_SLICE_ID=str(slice_index),
        )
    jax.distributed.initialize(
        coordinator_address=coordinator,
        num_processes=num_hosts,
        process_id=index,
        initialization_timeout=INITIALIZATION_TIMEOUT_SECONDS,
        cluster_detection_method="deactivate",
    )
