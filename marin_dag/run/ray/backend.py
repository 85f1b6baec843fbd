"""RayBackend: runs each step as a named Ray task, or as a gang of one task on each host; its shards are tasks, too."""

import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from queue import Queue
from typing import Any, cast

from pydantic import BaseModel

from marin_dag.errors import UserError
from marin_dag.graph.resources import Cpu, Gpu, Resources, is_gang
from marin_dag.ledger.records import Failure
from marin_dag.run.attempt import run_attempt
from marin_dag.run.error_filter import redact_standard_error
from marin_dag.run.ray.cluster import is_connected, join_cluster, start_cluster
from marin_dag.run.ray.control_actor import UPDATE_SECONDS, ControlChannel, control_actor, start_control_actor
from marin_dag.run.ray.gang import Gang
from marin_dag.run.ray.ray_internals import capture_ray_messages
from marin_dag.run.supply import check_one_machine, lower_process_priority, missing_resources
from marin_dag.run.task import Listener, Outcome, Task
from marin_dag.store.retry import SHARD_PAUSES_SECONDS, patiently

CANCEL_GRACE_SECONDS = 5.0
MESSAGE_SECONDS = 30.0
"""How long Ray's messages are held back, so that the failure of the step that they concern comes first."""
WORKER_DEATHS = 3
MEMORY_USED = re.compile(r"was ([\d.]+GB / [\d.]+GB)")


class NoConfig(BaseModel, frozen=True):
    """Stands for the config of a task that comes back to its driver."""


class RayBackend:
    """See Backend. Joins the cluster at RAY_ADDRESS if set, and leaves it running; the dashboard shows `job_name`."""

    max_running = 256
    max_alike = 64

    def __init__(self, job_name: str = "marin-dag") -> None:
        self._job_name = job_name
        self._running: dict[Any, Task] = {}
        self._gangs: dict[str, Gang] = {}
        self._gang_outcomes: Queue[Outcome] = Queue()
        self._started: set[str] = set()
        self._last_update = 0.0
        self._owns_cluster = self._is_stop_wanted = self._is_stop_sent = False
        self._has: dict[str, float] = {}
        self._control: Any = None
        self._messages: Queue[tuple[float, str]] = Queue()

    def start(self, listener: Listener, wanted: Mapping[str, Resources]) -> None:
        """See Backend. A private cluster never grows; steps wait for a joined one to grow."""
        self._listener = listener
        if not is_connected():
            address = os.environ.get("RAY_ADDRESS")
            self._owns_cluster = not address
            if self._owns_cluster:
                listener.say("starting Ray on this machine (a few seconds)")
                largest = max((asked.num_cpus for asked in wanted.values() if isinstance(asked, Cpu)), default=1)
                listener.say(start_cluster(largest, self._job_name, listener.say))
            else:
                listener.say(f"joining Ray at {address}")
                listener.say(join_cluster(self._job_name))
        import ray  # not above: the import reads RAY_AUTH_MODE

        capture_ray_messages(lambda text: self._messages.put((time.monotonic(), text)))
        self._has = ray.cluster_resources()
        if self._owns_cluster:
            check_one_machine(wanted, self._has)
        self._control, self._control_name = start_control_actor()
        self._run = ray.remote(run_step)
        # Its process ends with the step: a lowered priority cannot be raised again.
        self._run_in_background = ray.remote(max_calls=1)(run_step)
        if missing := missing_resources(wanted, self._has):
            listener.say(missing)

    def submit(self, task: Task) -> None:
        if self._owns_cluster:
            check_one_machine({task.name: task.resources}, self._has)  # a step that another driver has given up
        self._started.discard(task.key)
        if is_gang(task.resources):
            self._gangs[task.key] = Gang(task, self._control, self._gang_outcomes.put)
            self._gangs[task.key].start()
            return
        resources = task.resources
        placement: dict[str, Any] = {"num_cpus": 1}
        if isinstance(resources, Gpu):
            placement |= {"num_gpus": resources.count, "accelerator_type": resources.kind}
        elif isinstance(resources, Cpu):
            placement = {"num_cpus": resources.num_cpus}
        kind = self._run_in_background if task.is_in_background else self._run
        run = kind.options(name=task.name, max_retries=0, **placement)
        self._running[run.remote(task, self._control_name)] = task

    def wait(self, timeout_seconds: float) -> list[Outcome]:
        with _ray_death_explained():
            return self._wait(timeout_seconds)

    def _wait(self, timeout_seconds: float) -> list[Outcome]:
        import ray

        if self._is_stop_wanted and not self._is_stop_sent:
            self._send_stop()
        self._pass_on_messages(MESSAGE_SECONDS)
        if not self._running:
            time.sleep(timeout_seconds)
            ended: list[Any] = []
        else:
            ended, others = ray.wait(list(self._running), num_returns=1, timeout=timeout_seconds)
            if ended and others:
                ended += ray.wait(others, num_returns=len(others), timeout=0)[0]
        outcomes = [self._outcome(reference) for reference in ended] + self._take_gangs()
        # Published milestones must come before the end of their step. A plain step that is done has none.
        force = any(item.status != "done" or item.task.milestone is not None for item in outcomes)
        self._pass_on_updates({item.task.key for item in outcomes if item.status == "done"}, force=force)
        return outcomes

    def _pass_on_messages(self, older_than_seconds: float) -> None:
        while not self._messages.empty() and time.monotonic() - self._messages.queue[0][0] >= older_than_seconds:
            self._listener.say(f"Ray: {self._messages.get()[1].partition('. ')[0]}")

    def _take_gangs(self) -> list[Outcome]:
        outcomes = []
        while not self._gang_outcomes.empty():
            outcomes.append(self._gang_outcomes.get())
            del self._gangs[outcomes[-1].task.key]
        return outcomes

    def _outcome(self, reference: Any) -> Outcome:
        import ray

        task = self._running.pop(reference)
        try:
            return dataclasses.replace(cast(Outcome, ray.get(reference)), task=task)
        except ray.exceptions.TaskCancelledError:
            return Outcome(task, "cancelled")
        except ray.exceptions.RayError as error:
            return Outcome(task, "failed", failure=failure_on_worker(task, _unwrapped(error)))

    def _pass_on_updates(self, done: Collection[str] = (), *, force: bool) -> None:
        """Pass on the updates of the control actor, without the starts of steps that are `done` already."""
        import ray

        if not force and time.monotonic() - self._last_update < UPDATE_SECONDS:
            return
        self._last_update = time.monotonic()
        updates = ray.get(self._control.take_updates.remote())
        self._started.update(updates.started)
        for key in updates.started:
            if key not in done:
                self._listener.started(key)
        for key, item in updates.progress.items():
            self._listener.report(key, item)
        for key in updates.published:
            self._listener.published(key)
        for text in updates.lines:
            self._listener.say(text)

    def request_stop(self) -> None:
        """See Backend. Only sets a flag: a signal handler calls it, and may interrupt any call of Ray."""
        self._is_stop_wanted = True

    def _send_stop(self) -> None:
        import ray

        self._is_stop_sent = True
        self._control.stop.remote(None)
        self._pass_on_updates(force=True)
        for gang in self._gangs.values():
            gang.request_stop()
        for reference, task in self._running.items():
            if task.key not in self._started:  # it waits for its resources, and has nothing to save
                ray.cancel(reference, force=False, recursive=True)

    def withdraw(self, key: str) -> None:
        """See Backend. Asks the control actor which tasks have started: updates arrive later."""
        import ray

        with _ray_death_explained():
            for reference, task in self._running.items():
                if task.key == key and ray.get(self._control.withdraw.remote(task.attempt)):
                    ray.cancel(reference, force=False, recursive=True)
        if key in self._gangs:
            self._gangs[key].request_stop()

    def cancel(self, key: str) -> None:
        import ray

        for reference, task in list(self._running.items()):
            if task.key == key:
                self._control.stop.remote(task.attempt)
                ray.cancel(reference, force=False, recursive=True)
        if key in self._gangs:
            self._gangs[key].cancel()

    def close(self) -> None:
        if not is_connected():  # the start failed, or Ctrl-C interrupted the import of Ray
            return
        import ray

        self._pass_on_messages(0)
        for gang in list(self._gangs.values()):
            gang.cancel()
        for force in (False, True):  # a step that ignores the first would go on in a joined cluster
            for reference in self._running:
                ray.cancel(reference, force=force, recursive=True)
            if self._running:
                _, left = ray.wait(list(self._running), num_returns=len(self._running), timeout=CANCEL_GRACE_SECONDS)
                self._running = {reference: self._running[reference] for reference in left}
        for gang in list(self._gangs.values()):
            gang.join(CANCEL_GRACE_SECONDS)
        self._running.clear()
        if self._owns_cluster:
            ray.shutdown()
        elif self._control is not None:
            ray.kill(self._control)


class RayFanOut:
    """Runs shards as Ray tasks of one CPU each, named after the step."""

    def __init__(self, step_name: str) -> None:
        self._step_name = step_name

    def run(
        self, calls: Sequence[Callable[[], Any]], in_flight: int, label: str, stop_requested: Callable[[], bool]
    ) -> Iterator[int]:
        import ray

        remote = ray.remote(num_cpus=1, max_retries=WORKER_DEATHS)(run_shard)
        running: dict[Any, int] = {}
        following = 0
        failure: BaseException | None = None
        while running or following < len(calls):
            if failure is not None or stop_requested():
                following = len(calls)
            while following < len(calls) and len(running) < in_flight:
                name = f"{self._step_name}: {label} {following + 1}/{len(calls)}"
                running[remote.options(name=name).remote(calls[following])] = following
                following += 1
            ended, _ = ray.wait(list(running), num_returns=1, timeout=UPDATE_SECONDS) if running else ([], [])
            for reference in ended:
                index = running.pop(reference)
                try:
                    ray.get(reference)
                except ray.exceptions.RayError as error:
                    failure = failure or _unwrapped(error)  # shards in flight finish, and are kept
                else:
                    yield index
        if failure is not None:
            raise failure


# The dashboard shows the names of these two functions beside that of the step.


def run_step(task: Task, control: str) -> Outcome:
    """Run one attempt, on a worker; `control` is the name of the control actor."""
    if task.is_in_background:
        lower_process_priority()
    channel = ControlChannel(task.attempt, control_actor(control))
    channel.start(task.key)
    outcome = run_attempt(task, channel, RayFanOut(task.name), capture_prints=True)
    # The driver has the task. Its identity and the results in its config may be larger than all the rest.
    return dataclasses.replace(outcome, task=dataclasses.replace(task, identity={}, config=NoConfig()))


def run_shard(call: Callable[[], Any]) -> None:
    redact_standard_error()
    patiently(call, SHARD_PAUSES_SECONDS)


@contextlib.contextmanager
def _ray_death_explained() -> Iterator[None]:
    """Raise UserError when the control actor is gone, which every step needs."""
    import ray

    try:
        yield
    except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
        is_full = isinstance(error, ray.exceptions.OutOfMemoryError)
        cause = "this machine ran out of memory" if is_full else "it was killed, or Ray was asked to stop"
        raise UserError(
            f"Ray's process that connects the steps with the driver ended while steps were running: {cause}. Finished "
            "and saved work is kept; run the same command again."
        ) from error


def _unwrapped(error: BaseException) -> BaseException:
    """Return what the function raised on the worker, without Ray's wrapping."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error


def failure_on_worker(task: Task, error: BaseException) -> Failure:
    """Return `error` as the failure of the attempt, in one line if it says that the process is dead."""
    failure = task.failure_of(error)
    match failure.error_type:
        case "WorkerCrashedError":
            cause = "its process ended without an error: killed (kill -9, or the system was out of memory), or crashed"
        case "OutOfMemoryError":
            used = MEMORY_USED.search(str(error))
            cause = f"Ray killed its process: its machine was short of memory{f' ({used[1]})' if used else ''}"
        case _:
            return failure
    return failure.model_copy(update={"error": cause})
