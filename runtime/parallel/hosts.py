"""Multi-host start: makes the processes of one step, one a host, a single JAX run over all their devices.

Before any device is asked for: a process that has seen its own devices cannot join others any more.
"""

import os

import jax
import numpy as np
from jax._src import distributed  # its service has no public name; Orbax takes it here, too
from jax.experimental import multihost_utils
from jax.extend.backend import clear_backends

MEGASCALE_PORT = "8081"
INITIALIZATION_TIMEOUT_SECONDS = 300
PATIENCE = "xla_cpu_collective_call_terminate_timeout_seconds"
PATIENCE_SECONDS = 24 * 3600
"""Of hosts that wait for one another: for data, a checkpoint, a busy core."""


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


def open_cores(number: int, *, is_gang: bool = False) -> None:
    """Makes so many CPU devices: `mesh.mesh_of_cores` takes them. Before any array is made that is still needed.

    A process may run one step after the other. Where an earlier one made fewer, it starts anew with its devices, for
    which programs are compiled anew; where it made more, they stay. A process of a gang is new.
    """
    # Read when the first program is compiled. Else a process is ended where one core comes to a collective a minute
    # after another, as it may on a busy machine: they come once an update, after all micro-batches.
    flags = os.environ.get("XLA_FLAGS", "")
    if PATIENCE not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --{PATIENCE}={PATIENCE_SECONDS}".strip()
    if is_gang:
        jax.config.update("jax_num_cpu_devices", number)
        return
    told: int = getattr(jax.config, "jax_num_cpu_devices")  # noqa: B009 -- its attributes are made at run time
    try:
        jax.config.update("jax_num_cpu_devices", max(number, told))
    except RuntimeError:  # the devices are made already
        if jax.default_backend() == "cpu" and jax.local_device_count() < number:
            clear_backends()
            jax.config.update("jax_num_cpu_devices", number)


class Agreement:
    """What all hosts of this run say before an update, agreed on without a device.

    Over the service that JAX's processes meet at. A collective would stand in the device's queue behind the update that
    was just sent, and each host would wait for that one to end before it could send the next.
    """

    def __init__(self, name: str) -> None:
        """`name` is the same on every host, and of no other agreement of these processes."""
        self._name = name
        self._round = 0
        self._told: str | None = None

    def __call__(self, word: int) -> int:
        """The largest word of all hosts, the same on each; 0 is none. Every host must ask.

        JAX ends a process that waits for one that is gone. One that raised and has not ended goes on beating; whoever
        started the hosts has to end them (`marin_dag.run.ray.gang`).
        """
        if jax.process_count() == 1:
            return word
        service = distributed.global_state.client
        assert service is not None  # `join_hosts` has made it
        self._round += 1
        place = f"{self._name}/{self._round}/"
        told_before, self._told = self._told, f"{place}{jax.process_index()}" if word else None
        if self._told is not None:
            service.key_value_set(self._told, str(word))
        service.wait_at_barrier(self._name, PATIENCE_SECONDS * 1000)
        if told_before is not None:  # all are here, so all have read it
            service.key_value_delete(told_before)
        return max((int(said) for _, said in service.key_value_dir_get(place)), default=0)


def of_first_host(*words: int) -> tuple[int, ...]:
    """The words of host 0, each of 32 bits, whatever this one's are; every host must ask."""
    if jax.process_count() == 1:
        return words
    return tuple(multihost_utils.broadcast_one_to_all(np.array(words, np.int32)).tolist())


def whole(array: jax.Array) -> np.ndarray:
    """All of an array, of which this host may hold a part; every host must ask."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(jax.device_get(array))
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))
