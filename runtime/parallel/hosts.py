"""Hosts: the processes of one step, one per host, as a single JAX run over all their devices.

They must join before any use of a device: a process that has seen its own devices cannot join others any more.
"""

import os
from collections.abc import Collection
from typing import Any, NamedTuple

import jax
import numpy as np
from jax._src import distributed  # its service has no public name; Orbax takes it here, too
from jax.experimental import multihost_utils
from jax.extend.backend import clear_backends
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Int32, Int64

from runtime.parallel.mesh import BATCH_AXES

MEGASCALE_PORT = "8081"
INITIALIZATION_TIMEOUT_SECONDS = 300
PATIENCE = "xla_cpu_collective_call_terminate_timeout_seconds"
PATIENCE_SECONDS = 24 * 3600
"""Time that hosts wait for one another: for data, a checkpoint, a busy core."""


def join_hosts(*, coordinator: str, num_hosts: int, index: int, num_slices: int = 1, slice_index: int = 0) -> None:
    """Wait for the other hosts at `coordinator`; afterwards `jax.devices()` are those of all.

    Args:
        coordinator: `ADDRESS:PORT` where host 0 listens.
        num_hosts: processes of the run; a single one returns at once.
        index: number of this process: slice by slice, and in a slice by the worker's number.
        num_slices: TPU slices, which find each other over the data-centre network.
        slice_index: number of this host's slice.
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


def limit_threads(num_cpus: int) -> None:
    """Let JAX compute with as many threads of a CPU as a step asked cores for; by default it takes all cores.

    Where an earlier step of this process asked for another number, JAX restarts, and arrays made before are lost.
    """
    threads = str(max(1, num_cpus))
    if os.environ.get("PJRT_NPROC", threads) != threads:
        clear_backends()
    os.environ["PJRT_NPROC"] = threads  # read when JAX makes its devices


def open_cores(number: int, *, is_gang: bool = False) -> None:
    """Make `number` CPU devices for `mesh.mesh_of_cores`; arrays made before are lost.

    Where an earlier step of this process made fewer devices, JAX restarts with more; where it made more, they stay. A
    process of a gang is new.
    """
    limit_threads(number)
    # Read when the first program is compiled. By default a process ends where one core reaches a collective a minute
    # after another, as on a busy machine: there is one an update, after all micro-batches.
    flags = os.environ.get("XLA_FLAGS", "")
    if PATIENCE not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --{PATIENCE}={PATIENCE_SECONDS}".strip()
    if is_gang:
        jax.config.update("jax_num_cpu_devices", number)
        return
    present: int = getattr(jax.config, "jax_num_cpu_devices")  # noqa: B009 -- its attributes are made at run time
    try:
        jax.config.update("jax_num_cpu_devices", max(number, present))
    except RuntimeError:  # the devices are made already
        if jax.default_backend() == "cpu" and jax.local_device_count() < number:
            clear_backends()
            jax.config.update("jax_num_cpu_devices", number)


class Agreement:
    """Agreement of all hosts before an update, over the service that JAX's processes meet at.

    A collective would wait in the device's queue behind the running update, and each host would wait for it.
    """

    def __init__(self, name: str) -> None:
        """Make an agreement; `name` is the same on every host, and no other agreement of these processes has it."""
        self._name = name
        self._round = 0
        self._written: str | None = None

    def __call__(self, word: int) -> int:
        """Return the largest word of all hosts; 0 is none. Every host must call this.

        JAX ends a process that waits for a dead one; one that raised and has not ended is not dead.
        """
        if jax.process_count() == 1:
            return word
        service = _service()
        self._round += 1
        place = f"{self._name}/{self._round}/"
        written_before, self._written = self._written, f"{place}{jax.process_index()}" if word else None
        if self._written is not None:
            service.key_value_set(self._written, str(word))
        service.wait_at_barrier(self._name, PATIENCE_SECONDS * 1000)
        if written_before is not None:  # all are here, so all have read it
            service.key_value_delete(written_before)
        return max((int(text) for _, text in service.key_value_dir_get(place)), default=0)


class StopNotice:
    """A notice over the same service that a host has to stop, for hosts that wait for data and reach no agreement."""

    def __init__(self, name: str) -> None:
        """Make a notice; `name` is that of the agreement."""
        self._place = f"{name}/stop/"

    def leave(self) -> None:
        _service().key_value_set(f"{self._place}{jax.process_index()}", "1", allow_overwrite=True)

    def is_left(self) -> bool:
        """Return whether any host has left the notice."""
        return bool(_service().key_value_dir_get(self._place))


def meet_hosts(name: str, *, seconds: int) -> None:
    """Return when every host has called this with the same name, once; a thread of each may.

    Raises:
        TimeoutError: some hosts have not; the message has their numbers.
        JaxRuntimeError: a host is lost.
    """
    try:
        _service().wait_at_barrier(name, seconds * 1000)
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise
        raise TimeoutError(f"{name}: not all hosts are there after {seconds} s: {error}") from error


def _service() -> Any:
    service = distributed.global_state.client
    assert service is not None  # `join_hosts` has made it
    return service


def of_first_host(*words: int) -> tuple[int, ...]:
    """Return host 0's words, each of 32 bits; every host must call this."""
    if jax.process_count() == 1:
        return words
    return tuple(multihost_utils.broadcast_one_to_all(np.array(words, np.int32)).tolist())


def bytes_of_first_host(data: bytes) -> bytes:
    """Return host 0's bytes; every host must call this."""
    if jax.process_count() == 1:
        return data
    (size,) = of_first_host(len(data))
    own = np.frombuffer(data, np.uint8) if jax.process_index() == 0 else np.zeros(size, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(own)).tobytes()


def whole(array: jax.Array) -> np.ndarray:
    """Return all of an array, of which this host may hold a part; every host must call this."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(jax.device_get(array))
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


class HostRows(NamedTuple):
    """Rows of one host, ascending."""

    rows: Int64[np.ndarray, "rows"]
    sharding: NamedSharding
    global_batch_size: int

    def placed(self, host_rows: Int32[np.ndarray, "rows sequence"]) -> jax.Array:
        """Return the global batch, from this host's own rows; every host must call this."""
        shape = (self.global_batch_size, *host_rows.shape[1:])

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None
            first, last, _ = index[0].indices(self.global_batch_size)
            begin = int(np.searchsorted(self.rows, first))
            return host_rows[begin : begin + last - first]

        return jax.make_array_from_callback(shape, self.sharding, part)


def host_rows(mesh: Mesh, global_batch_size: int, *, devices: Collection[jax.Device] | None = None) -> HostRows:
    """Return the rows on `devices`, by default this process's own; they need not be contiguous."""
    sharding = NamedSharding(mesh, PartitionSpec(BATCH_AXES))
    own = frozenset(jax.local_devices() if devices is None else devices)
    is_own = np.zeros(global_batch_size, bool)
    for device, index in sharding.devices_indices_map((global_batch_size,)).items():
        if device in own:
            is_own[index] = True
    return HostRows(np.flatnonzero(is_own), sharding, global_batch_size)
