"""Gang: one step on several hosts. Reserved together, started together, and if one member falls, all end as one.

Members are actors and not tasks, so that the end of the gang is a kill on every host: a process that waits in a
collective for a dead one hears no exception, and chips are free only when the process that holds them is gone.
"""

import contextlib
import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from marin_dag.graph.context import Host
from marin_dag.graph.resources import Cpu, Gpu, Resources, Tpu
from marin_dag.graph.slices import slice_shape
from marin_dag.ledger.records import Failure, Records
from marin_dag.run.attempt import failure_of, run_attempt
from marin_dag.run.ray.switchboard import MEETING_POLL_SECONDS, SwitchboardChannel
from marin_dag.run.task import Outcome, Task
from marin_dag.store.prefix import open_store

POLL_SECONDS = 0.5
SLICE_HEAD_SECONDS = 10.0
"""How long one try for the first host of a slice lasts; between two tries a wish to stop is heard."""
OTHER_FAILURES_SECONDS = 3.0
"""How long the other members are given to say what they died of: the first to fall need not be the cause."""
LOST_PEER_SECONDS = 60.0
"""The same, where all that is known is that somebody is gone. A machine that vanishes closes no connection, and Ray,
which tells that from a program's mistake, looks every few seconds and gives it up after half a minute. (Memory that ran
out on one host's device is such an error as well: its peers, which wait for it, are held as long.)"""
STOPPED_ALONE_SECONDS = 900.0
"""How long the others may take to leave when one member has left as it was asked to. Hosts that agreed leave together;
one that did not know waits for the first, for a day or for ever."""
LOST_PEER_ERRORS = frozenset({"JaxRuntimeError", "XlaRuntimeError", "DistBackendError"})
"""What a collective raises when another member is gone: a consequence if any member has another error to show."""


class GangStoppedError(Exception):
    """The gang was asked to stop before it had its hosts."""


class HostsDisagreedError(Exception):
    """Some hosts saved their work and left, and the others went on without them."""

    is_transient = True


class Reservation(Protocol):
    """Hosts that are held for one gang."""

    placement_group: Any
    resources_per_host: dict[str, float]

    def release(self) -> None:
        """Gives them back."""


class Gang:
    """One attempt of one step on several hosts, watched by a thread of the driver.

    Args:
        task: the attempt.
        switchboard: handle to the driver's.
        on_ended: called from the thread, once, with how it ended.
    """

    def __init__(self, task: Task, switchboard: Any, on_ended: Callable[[Outcome], None]) -> None:
        self._task = task
        self._switchboard = switchboard
        self._on_ended = on_ended
        self._is_stopping = threading.Event()
        self._is_cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"gang {task.name}", daemon=True)

    def start(self) -> None:
        """Begins to wait for the hosts."""
        self._thread.start()

    def request_stop(self) -> None:
        """Withdraws a gang that has no hosts yet; one that runs hears of it by the switchboard."""
        self._is_stopping.set()

    def cancel(self) -> None:
        """Kills all members."""
        self._switchboard.stop.remote(self._task.attempt)
        self._is_cancelled.set()

    def join(self, timeout_seconds: float) -> None:
        """Waits for the end."""
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        try:
            outcome = self._attempt()
        except GangStoppedError:
            outcome = Outcome(self._task, "cancelled" if self._is_cancelled.is_set() else "stopped")
        except Exception as error:
            outcome = Outcome(self._task, "failed", failure=failure_of(self._task, error))
        self._on_ended(outcome)

    def _attempt(self) -> Outcome:
        import ray

        task = self._task
        reservation = reserve(task.resources, self._refuse_if_stopped)
        members: list[Any] = []
        try:
            self._refuse_if_stopped()
            known = tuple(Records(open_store(task.prefix)).milestones(task.digest))
            task = dataclasses.replace(task, known_milestones=known)
            hosts = hosts_of(task.resources)
            members = [_member(reservation, host) for host in hosts]
            running = {}
            for member, host in zip(members, hosts, strict=True):
                shown = member.run.options(
                    name=f"{task.name}: host {host.index + 1}/{host.num_hosts}", enable_task_events=True
                )
                running[shown.remote(task, host, self._switchboard)] = host.index
            return self._watched(running)
        finally:
            for member in members:
                ray.kill(member)
            reservation.release()

    def _refuse_if_stopped(self) -> None:
        if self._is_stopping.is_set() or self._is_cancelled.is_set():
            raise GangStoppedError

    def _watched(self, running: dict[Any, int]) -> Outcome:
        """How the attempt ended: as host 0 says if all ended well, else as the member says that fell first."""
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
                    deadline = min(deadline, time.monotonic() + patience_seconds(failures))
                elif outcome.status == "stopped":
                    deadline = min(deadline, time.monotonic() + STOPPED_ALONE_SECONDS)
        if failures:
            return Outcome(self._task, "failed", failure=cause_of(failures))
        if running:
            gone, here = (", ".join(str(host + 1) for host in sorted(who)) for who in (outcomes, running.values()))
            raise HostsDisagreedError(
                f"asked to stop, host {gone} left and host {here} did not follow within {STOPPED_ALONE_SECONDS:g} s, "
                "so that all are ended; the function must have its hosts agree on where to stop."
            )
        return dataclasses.replace(outcomes[0], task=self._task)

    def _outcome(self, reference: Any, index: int) -> Outcome:
        import ray

        try:
            outcome = ray.get(reference)
        except ray.exceptions.RayError as error:
            failure = failure_of(self._task, error)
            first = failure.error.splitlines()[0]
            failure = failure.model_copy(update={"error": f"host {index + 1} is gone: {first}"})
            return Outcome(self._task, "failed", failure=failure)
        assert isinstance(outcome, Outcome)
        return outcome


class Member:
    """The process on one host."""

    def run(self, task: Task, host: Host, switchboard: Any) -> Outcome:
        """Runs the step function, and on host 0 commits what it returned."""
        import ray

        channel = SwitchboardChannel(task.attempt, switchboard)
        with contextlib.ExitStack() as held:
            if host.index == 0:
                coordinator = held.enter_context(_held_address(ray.util.get_node_ip_address()))
                ray.get(switchboard.announce.remote(task.attempt, coordinator))
                channel.begin(task.key)
            else:
                coordinator = _coordinator(task.attempt, switchboard)
            host = dataclasses.replace(host, coordinator=coordinator)
            meeting = _Meeting(task.attempt, host, switchboard)
            return run_attempt(task, channel, RefusedFanOut(), capture_prints=True, host=host, meeting=meeting)


class RefusedFanOut:
    """Shards of a gang: none."""

    def run(self, *arguments: Any) -> Any:
        """See FanOut."""
        raise TypeError(
            "context.map in a step that runs on several hosts: each of them would make all shards. Map in a step "
            "before this one."
        )


class _Meeting:
    def __init__(self, attempt: str, host: Host, switchboard: Any) -> None:
        self._attempt = attempt
        self._host = host
        self._switchboard = switchboard

    def all_returned(self) -> None:
        """See Meeting. A member that never returns ends the gang, and with it this wait."""
        import ray

        def num_returned() -> int:
            number: int = ray.get(self._switchboard.has_returned.remote(self._attempt, self._host.index))
            return number

        while num_returned() < self._host.num_hosts and self._host.index == 0:
            time.sleep(MEETING_POLL_SECONDS)


def patience_seconds(failures: list[Failure]) -> float:
    """How long the members that have not ended are waited for once others have failed so."""
    is_cause_known = cause_of(failures).error_type not in LOST_PEER_ERRORS
    return OTHER_FAILURES_SECONDS if is_cause_known else LOST_PEER_SECONDS


def cause_of(failures: list[Failure]) -> Failure:
    """Of the failures of one gang, in the order in which they came: the one that the others follow from."""
    return next((failure for failure in failures if failure.error_type not in LOST_PEER_ERRORS), failures[0])


def hosts_of(resources: Resources) -> list[Host]:
    """The hosts of a gang, in order, without their meeting point."""
    num_hosts = resources.num_hosts
    num_slices = resources.num_slices if isinstance(resources, Tpu) else 1
    per_slice = num_hosts // num_slices
    return [Host(index, num_hosts, "", index // per_slice, num_slices) for index in range(num_hosts)]


def reserve(resources: Resources, refuse_if_stopped: Callable[[], None]) -> Reservation:
    """Waits until all hosts are held; bundle i of the placement group is host i."""
    match resources:
        case Tpu():
            reserved: Reservation = _Slices(resources, refuse_if_stopped)
        case Gpu(kind, count, num_hosts):
            reserved = _Machines({"CPU": 1, "GPU": count, f"accelerator_type:{kind}": 0.001}, num_hosts)
        case Cpu(num_cpus, num_hosts):
            reserved = _Machines({"CPU": num_cpus}, num_hosts)
    try:
        _wait_until_ready(reserved.placement_group, refuse_if_stopped)
    except BaseException:
        reserved.release()
        raise
    return reserved


class _Machines:
    """As many machines, all different."""

    def __init__(self, resources_per_host: dict[str, float], num_hosts: int) -> None:
        import ray

        self.resources_per_host = resources_per_host
        bundles = [dict(resources_per_host) for _ in range(num_hosts)]
        self.placement_group: Any = ray.util.placement_group(bundles, strategy="STRICT_SPREAD")

    def release(self) -> None:
        """See Reservation."""
        import ray

        ray.util.remove_placement_group(self.placement_group)


class _Slices:
    """Whole TPU slices, found by Ray through the resource that the first host of each declares."""

    def __init__(self, resources: Tpu, refuse_if_stopped: Callable[[], None]) -> None:
        from ray.util.tpu import SlicePlacementGroup

        shape = slice_shape(resources.slice)
        numbers: list[dict[str, str]] = []
        if shape.num_hosts > 1:
            numbers = [
                {"ray.io/tpu-worker-id": str(number)}
                for _ in range(resources.num_slices)
                for number in range(shape.num_hosts)
            ]
        self.resources_per_host = {"CPU": 1.0, "TPU": float(shape.chips_per_host)}
        while True:
            refuse_if_stopped()
            try:
                self._slices = SlicePlacementGroup(
                    topology=shape.topology,
                    accelerator_version=shape.generation,
                    resources_per_bundle=dict(self.resources_per_host),
                    num_slices=resources.num_slices,
                    chips_per_vm=shape.chips_per_host,
                    head_reservation_timeout_s=SLICE_HEAD_SECONDS,
                    bundle_label_selector=numbers,
                )
                break
            except TimeoutError:  # all slices are taken; a cluster that grows is told by the request itself
                continue
        self.placement_group: Any = self._slices.placement_group

    def release(self) -> None:
        """See Reservation."""
        self._slices.shutdown()


def _wait_until_ready(placement_group: Any, refuse_if_stopped: Callable[[], None]) -> None:
    while not placement_group.wait(POLL_SECONDS):
        refuse_if_stopped()


def _member(reservation: Reservation, host: Host) -> Any:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    wanted = dict(reservation.resources_per_host)
    actor: Any = ray.remote(Member)
    return actor.options(
        enable_task_events=False,  # its start; what it runs is shown, by the name of the step
        num_cpus=wanted.pop("CPU"),
        num_gpus=wanted.pop("GPU", 0),
        resources=wanted,
        scheduling_strategy=PlacementGroupSchedulingStrategy(
            reservation.placement_group, placement_group_bundle_index=host.index
        ),
    ).remote()


def _coordinator(attempt: str, switchboard: Any) -> str:
    """Where host 0 awaits the others; if it never begins, the gang is ended, and this wait with it."""
    import ray

    while (address := ray.get(switchboard.coordinator.remote(attempt))) is None:
        time.sleep(MEETING_POLL_SECONDS)
    return str(address)


@contextlib.contextmanager
def _held_address(host: str) -> Iterator[str]:
    """A port that nobody else gets meanwhile: bound, and shared with who asks to share it, as most servers do."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((host, 0))
        yield f"{host}:{holder.getsockname()[1]}"
