"""Gang: one step on several hosts, which are reserved, start and end together.

Members are actors and not tasks, so that the gang ends with a kill on every host: a process that waits in a collective
for a dead peer gets no exception, and chips are free only when the process that holds them is gone.
"""

import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, cast

from marin_dag.graph.context import Host
from marin_dag.graph.resources import Cpu, Gpu, Resources, Tpu, slice_shape
from marin_dag.ledger.records import Failure, Records
from marin_dag.run.attempt import run_attempt
from marin_dag.run.ray.control_actor import MEETING_POLL_SECONDS, ControlChannel
from marin_dag.run.supply import lower_process_priority
from marin_dag.run.task import Outcome, Task
from marin_dag.store.prefix import open_store

POLL_SECONDS = 0.5
SLICE_HEAD_SECONDS = 10.0
"""Length of one try to reserve the first host of a slice; a stop is noticed between two tries."""
OTHER_FAILURES_SECONDS = 3.0
"""How long the other members may take to report their failures: the first to fail need not be the cause."""
LOST_PEER_SECONDS = 60.0
"""The same if all failures so far only say that a peer is gone. A machine that vanishes closes no connection, and Ray
gives it up after half a minute. (Running out of device memory on one host is reported like a lost peer.)"""
STOPPED_ALONE_SECONDS = 900.0
"""How long the others may take to stop after one member has stopped as asked. Hosts that agreed stop together; a host
that did not know waits for the first for ever."""


class GangStoppedError(Exception):
    """The gang was asked to stop before it had its hosts, or is cancelled."""


class HostsDisagreedError(Exception):
    """Some hosts saved their work and stopped, and the others continued without them."""

    is_transient = True


class Reservation(NamedTuple):
    """Hosts reserved for one gang; bundle i of the placement group is host i."""

    placement_group: Any
    resources_per_host: dict[str, float]
    release: Callable[[], None]


class Gang(threading.Thread):
    """An attempt at a step on several hosts; a thread of the driver that reserves them and watches.

    `on_ended` is called once, from the thread, with the outcome.
    """

    def __init__(self, task: Task, control: Any, on_ended: Callable[[Outcome], None]) -> None:
        super().__init__(name=f"gang {task.name}", daemon=True)
        self._task = task
        self._control = control
        self._on_ended = on_ended
        self._lost_peer_errors = frozenset(task.kind.lost_peer_errors)
        self._is_stopping = threading.Event()
        self._is_cancelled = threading.Event()

    def request_stop(self) -> None:
        """Withdraw a gang that has no hosts yet; a running one learns of the stop from the control actor."""
        self._is_stopping.set()

    def cancel(self) -> None:
        self._control.stop.remote(self._task.attempt)
        self._is_cancelled.set()

    def run(self) -> None:
        try:
            outcome = self._attempt()
        except GangStoppedError:
            outcome = Outcome(self._task, "cancelled" if self._is_cancelled.is_set() else "stopped")
        except Exception as error:
            outcome = Outcome(self._task, "failed", failure=self._task.failure_of(error))
        self._on_ended(outcome)

    def _attempt(self) -> Outcome:
        import ray

        task = self._task
        reservation = reserve(task.resources, self._check_stopped)
        members: list[Any] = []
        try:
            self._check_stopped()
            known = tuple(Records(open_store(task.prefix)).milestones(task.digest))
            task = dataclasses.replace(task, known_milestones=known)
            hosts = hosts_of(task.resources)
            members = [_member(reservation, host) for host in hosts]
            address = members[0].hold_address.remote()
            while not ray.wait([address], timeout=POLL_SECONDS)[0]:
                self._check_stopped()
            coordinator = ray.get(address)
            running = {}
            for member, host in zip(members, hosts, strict=True):
                shown = member.run.options(
                    name=f"{task.name}: host {host.index + 1}/{host.num_hosts}", enable_task_events=True
                )
                host = dataclasses.replace(host, coordinator=coordinator)
                running[shown.remote(task, host, self._control)] = host.index
            return self._watch(running)
        finally:
            for member in members:
                ray.kill(member)
            reservation.release()

    def _check_stopped(self) -> None:
        if self._is_stopping.is_set() or self._is_cancelled.is_set():
            raise GangStoppedError

    def _watch(self, running: dict[Any, int]) -> Outcome:
        """Return host 0's outcome if all members end well, else the failure that caused the others."""
        import ray

        outcomes: dict[int, Outcome] = {}
        failures: list[Failure] = []
        deadline = float("inf")
        while running and time.monotonic() < deadline:
            ended, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS)
            if self._is_cancelled.is_set():
                raise GangStoppedError
            for reference in ended:
                index = running.pop(reference)
                outcomes[index] = outcome = self._outcome(reference, index)
                if outcome.failure is not None:
                    failures.append(outcome.failure)
                    deadline = min(deadline, time.monotonic() + patience_seconds(failures, self._lost_peer_errors))
                elif outcome.status == "stopped":
                    deadline = min(deadline, time.monotonic() + STOPPED_ALONE_SECONDS)
        if failures:
            cause = cause_of(failures, self._lost_peer_errors)
            if cause.error_type in self._lost_peer_errors:  # a peer was lost, and nothing says why: try again
                cause = cause.model_copy(update={"is_transient": True})
            return Outcome(self._task, "failed", failure=cause)
        if running:
            gone, here = (", ".join(str(host + 1) for host in sorted(who)) for who in (outcomes, running.values()))
            raise HostsDisagreedError(
                f"host {gone} stopped as asked, and host {here} did not within {STOPPED_ALONE_SECONDS:g} s, so all "
                "were ended. Let the hosts of the step function agree on where to stop."
            )
        return dataclasses.replace(outcomes[0], task=self._task)

    def _outcome(self, reference: Any, index: int) -> Outcome:
        import ray

        try:
            return cast(Outcome, ray.get(reference))
        except ray.exceptions.RayError as error:
            failure = self._task.failure_of(error)
            gone = f"host {index + 1} is gone: {failure.error.splitlines()[0]}"
            return Outcome(self._task, "failed", failure=failure.model_copy(update={"error": gone}))


class Member:
    """Actor on one host of a gang."""

    def hold_address(self) -> str:
        """Return an address with a port that no other program gets: bound, and shared with servers that share it."""
        import ray

        self._holder = socket.socket()
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._holder.bind((ray.util.get_node_ip_address(), 0))
        return "{}:{}".format(*self._holder.getsockname())

    def run(self, task: Task, host: Host, control: Any) -> Outcome:
        import ray

        if task.is_in_background:
            lower_process_priority()
        channel = ControlChannel(task.attempt, control)
        if host.index == 0:
            channel.start(task.key)

        def wait_for_hosts() -> None:
            # A member that never returns ends the gang, and with it this wait.
            while ray.get(control.has_returned.remote(task.attempt, host.index)) < host.num_hosts and host.index == 0:
                time.sleep(MEETING_POLL_SECONDS)

        fan_out = RefusedFanOut()
        return run_attempt(task, channel, fan_out, capture_prints=True, host=host, wait_for_hosts=wait_for_hosts)


class RefusedFanOut:
    """The fan-out of a gang, which must not call `context.map`."""

    def run(self, *arguments: Any) -> Any:
        raise TypeError(
            "context.map: a step on several hosts would make all shards on each of them. Map in a step before it."
        )


def patience_seconds(failures: Sequence[Failure], lost_peer_errors: Collection[str]) -> float:
    """Return how long to wait for the members that still run after these failures of others."""
    is_cause_known = cause_of(failures, lost_peer_errors).error_type not in lost_peer_errors
    return OTHER_FAILURES_SECONDS if is_cause_known else LOST_PEER_SECONDS


def cause_of(failures: Sequence[Failure], lost_peer_errors: Collection[str]) -> Failure:
    """Return the failure that caused the others, given all failures of a gang in their order."""
    return next((failure for failure in failures if failure.error_type not in lost_peer_errors), failures[0])


def hosts_of(resources: Resources) -> list[Host]:
    """Return the hosts of a gang in order, without coordinator."""
    num_hosts = resources.num_hosts
    num_slices = resources.num_slices if isinstance(resources, Tpu) else 1
    per_slice = num_hosts // num_slices
    return [Host(index, num_hosts, "", index // per_slice, num_slices) for index in range(num_hosts)]


def reserve(resources: Resources, check_stopped: Callable[[], None]) -> Reservation:
    match resources:
        case Tpu():
            reserved = _slices(resources, check_stopped)
        case Gpu(kind, count, num_hosts):
            reserved = _machines({"CPU": 1, "GPU": count, f"accelerator_type:{kind}": 0.001}, num_hosts)
        case Cpu(num_cpus, num_hosts):
            reserved = _machines({"CPU": num_cpus}, num_hosts)
    try:
        while not reserved.placement_group.wait(POLL_SECONDS):
            check_stopped()
    except BaseException:
        reserved.release()
        raise
    return reserved


def _machines(resources_per_host: dict[str, float], num_hosts: int) -> Reservation:
    import ray

    bundles = [dict(resources_per_host) for _ in range(num_hosts)]
    group: Any = ray.util.placement_group(bundles, strategy="STRICT_SPREAD")
    return Reservation(group, resources_per_host, lambda: ray.util.remove_placement_group(group))


def _slices(resources: Tpu, check_stopped: Callable[[], None]) -> Reservation:
    """Ask for whole TPU slices, which Ray finds by the resource that the first host of each declares."""
    from ray.util.tpu import SlicePlacementGroup

    shape = slice_shape(resources.slice)
    workers = range(shape.num_hosts) if shape.num_hosts > 1 else ()
    resources_per_host = {"CPU": 1.0, "TPU": float(shape.chips_per_host)}
    while True:
        check_stopped()
        try:
            slices: Any = SlicePlacementGroup(
                topology=shape.topology,
                accelerator_version=shape.generation,
                resources_per_bundle=dict(resources_per_host),
                num_slices=resources.num_slices,
                chips_per_vm=shape.chips_per_host,
                head_reservation_timeout_s=SLICE_HEAD_SECONDS,
                bundle_label_selector=[{"ray.io/tpu-worker-id": str(worker)} for worker in workers]
                * resources.num_slices,
            )
        except TimeoutError:  # all slices are taken; the request itself makes a cluster grow
            continue
        return Reservation(slices.placement_group, resources_per_host, slices.shutdown)


def _member(reservation: Reservation, host: Host) -> Any:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    wanted = dict(reservation.resources_per_host)
    actor: Any = ray.remote(Member)
    return actor.options(
        enable_task_events=False,  # the dashboard shows its task by the step's name, and not its start
        num_cpus=wanted.pop("CPU"),
        num_gpus=wanted.pop("GPU", 0),
        resources=wanted,
        scheduling_strategy=PlacementGroupSchedulingStrategy(
            reservation.placement_group, placement_group_bundle_index=host.index
        ),
    ).remote()
