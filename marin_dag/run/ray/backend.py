"""RayBackend: each step one named Ray task, or a gang of one on each host; its shards tasks of their own."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from queue import Empty, Queue
from typing import Any

from marin_dag.errors import UserError
from marin_dag.graph.resources import Cpu, Gpu, Resources, Tpu, is_gang
from marin_dag.run.attempt import run_attempt
from marin_dag.run.backend import Listener
from marin_dag.run.ray.cluster import hear_ray, host_of_node, is_connected, join_cluster, start_cluster
from marin_dag.run.ray.gang import Gang
from marin_dag.run.ray.switchboard import NEWS_SECONDS, SwitchboardChannel, start_switchboard
from marin_dag.run.ray.worker_deaths import WorkerDeaths
from marin_dag.run.supply import refuse_what_never_fits, what_is_not_there_yet
from marin_dag.run.task import Outcome, Task
from marin_dag.store.retry import SHARD_PAUSES_SECONDS, patiently

CANCEL_GRACE_SECONDS = 5.0
REMARK_SECONDS = 2.0
"""So long Ray's remarks are held back: what they are about is told first, by the outcome of the step."""
WORKER_DEATHS = 3
QUICK_SECONDS = 1.0
"""Of a step that takes no longer only the end is told."""


class RayBackend:
    """See Backend. Joins the cluster of RAY_ADDRESS if that is set, and leaves it running.

    Args:
        job_name: what the dashboard calls this run, such as the pipeline's name.
    """

    max_running = 256
    max_alike = 64

    def __init__(self, job_name: str = "marin-dag") -> None:
        self._job_name = job_name
        self._running: dict[Any, Task] = {}
        self._gangs: dict[str, Gang] = {}
        self._outcomes_of_gangs: Queue[Outcome] = Queue()
        self._started: set[str] = set()
        self._untold_starts: dict[str, float] = {}
        self._last_news = 0.0
        self._owns_cluster = False
        self._is_stop_wanted = False
        self._is_stop_told = False
        self._has: dict[str, float] = {}
        self._switchboard: Any = None
        self._remarks: Queue[tuple[float, str]] = Queue()
        self._deaths = WorkerDeaths(host_of_node)

    @property
    def announcement(self) -> str:
        """See Backend."""
        if is_connected():
            return ""
        address = os.environ.get("RAY_ADDRESS")
        return f"joining Ray at {address}" if address else "starting Ray on this machine (a few seconds)"

    def start(self, listener: Listener, wanted: Mapping[str, Resources]) -> str:
        """See Backend. A cluster of one's own does not grow; one that is joined may, so that its steps wait."""
        self._listener = listener
        greeting = ""
        if not is_connected():
            self._owns_cluster = not os.environ.get("RAY_ADDRESS")
            if self._owns_cluster:
                largest = max((asked.num_cpus for asked in wanted.values() if isinstance(asked, Cpu)), default=1)
                greeting = start_cluster(largest, self._job_name)
            else:
                greeting = join_cluster(self._job_name)
        import ray  # not above: it reads RAY_AUTH_MODE as it is imported

        hear_ray(lambda text: self._remarks.put((time.monotonic(), text)))
        self._has = ray.cluster_resources()
        if self._owns_cluster:
            refuse_what_never_fits(wanted, self._has)
        lacking = what_is_not_there_yet(wanted, self._has)
        self._switchboard = start_switchboard()
        self._run = ray.remote(run_step)
        return "\n".join(line for line in (greeting, lacking) if line)

    def submit(self, task: Task) -> None:
        """See Backend."""
        if self._owns_cluster:
            refuse_what_never_fits({task.name: task.resources}, self._has)  # of a step that another run has given up
        self._started.discard(task.key)
        if is_gang(task.resources):
            self._gangs[task.key] = Gang(task, self._switchboard, self._outcomes_of_gangs.put)
            self._gangs[task.key].start()
            return
        reference = self._run.options(name=task.name, max_retries=0, **_placement(task.resources)).remote(
            task, self._switchboard
        )
        self._running[reference] = task

    def wait(self, timeout_seconds: float) -> list[Outcome]:
        """See Backend."""
        with _explained_end_of_ray():
            return self._wait(timeout_seconds)

    def _wait(self, timeout_seconds: float) -> list[Outcome]:
        import ray

        if self._is_stop_wanted and not self._is_stop_told:
            self._tell_to_stop()
        self._pass_on_remarks(REMARK_SECONDS)
        if not self._running:
            time.sleep(timeout_seconds)
            ended: list[Any] = []
        else:
            ended, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
            if not ended:
                ended, _ = ray.wait(list(self._running), num_returns=1, timeout=timeout_seconds)
        outcomes = [self._outcome(reference) for reference in ended] + self._take_gangs()
        # What a trajectory published comes before its end. Of a plain step that is done the end says all.
        self._pass_on_news(force=any(item.status != "done" or item.task.milestone is not None for item in outcomes))
        self._tell_starts(outcomes)
        return outcomes

    def _tell_starts(self, outcomes: Sequence[Outcome]) -> None:
        """That a step began is no news where its end is told in the same second."""
        for outcome in outcomes:
            if outcome.status == "done":
                self._untold_starts.pop(outcome.task.key, None)
            else:
                self._tell_start(outcome.task.key)
        for key, began in list(self._untold_starts.items()):
            if time.monotonic() - began >= QUICK_SECONDS:
                self._tell_start(key)

    def _tell_start(self, key: str) -> None:
        if self._untold_starts.pop(key, None) is not None:
            self._listener.on_started(key)

    def _pass_on_remarks(self, older_than_seconds: float) -> None:
        while not self._remarks.empty() and time.monotonic() - self._remarks.queue[0][0] >= older_than_seconds:
            if text := self._deaths.remark(self._remarks.get()[1]):
                self._listener.on_remark(f"Ray: {text}")

    def _take_gangs(self) -> list[Outcome]:
        outcomes = []
        while True:
            try:
                outcomes.append(self._outcomes_of_gangs.get_nowait())
            except Empty:
                return outcomes
            del self._gangs[outcomes[-1].task.key]

    def _outcome(self, reference: Any) -> Outcome:
        import ray

        task = self._running.pop(reference)
        try:
            outcome = ray.get(reference)
        except ray.exceptions.TaskCancelledError:
            return Outcome(task, "cancelled")
        except ray.exceptions.RayError as error:
            return Outcome(task, "failed", failure=self._deaths.failure(task, _plain(error)))
        assert isinstance(outcome, Outcome)
        return outcome

    def _pass_on_news(self, *, force: bool) -> None:
        import ray

        if not force and time.monotonic() - self._last_news < NEWS_SECONDS:
            return
        self._last_news = time.monotonic()
        news = ray.get(self._switchboard.take_news.remote())
        self._started.update(news.started)
        self._untold_starts |= dict.fromkeys(news.started, time.monotonic())
        for key, item in news.progress.items():
            self._listener.on_progress(key, item)
        for key in news.published:
            self._listener.on_published(key)
        for text in news.remarks:
            self._listener.on_remark(text)

    def request_stop(self) -> None:
        """See Backend. Only a note: it is called by a signal's handler, which may interrupt any call of Ray's."""
        self._is_stop_wanted = True

    def _tell_to_stop(self) -> None:
        import ray

        self._is_stop_told = True
        self._switchboard.stop.remote(None)
        self._pass_on_news(force=True)
        for gang in self._gangs.values():
            gang.request_stop()
        for reference, task in self._running.items():
            if task.key not in self._started:  # what waits for its resources has nothing to save
                ray.cancel(reference, force=False, recursive=True)

    def withdraw(self, key: str) -> None:
        """See Backend. The switchboard knows what has begun: news of it come later, and are passed on later still."""
        import ray

        with _explained_end_of_ray():
            for reference, task in self._running.items():
                if task.key == key and ray.get(self._switchboard.withdraw.remote(task.attempt)):
                    ray.cancel(reference, force=False, recursive=True)
        if (gang := self._gangs.get(key)) is not None:
            gang.request_stop()

    def cancel(self, key: str) -> None:
        """See Backend."""
        import ray

        for reference, task in list(self._running.items()):
            if task.key == key:
                self._switchboard.stop.remote(task.attempt)
                ray.cancel(reference, force=False, recursive=True)
        if (gang := self._gangs.get(key)) is not None:
            gang.cancel()

    def close(self) -> None:
        """See Backend."""
        if not is_connected():  # starting failed, or was interrupted in the middle of importing Ray
            return
        import ray

        self._pass_on_remarks(0)
        for gang in list(self._gangs.values()):
            gang.cancel()
        for force in (False, True):  # one that does not listen would go on in a cluster that is not this driver's
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
        elif self._switchboard is not None:
            ray.kill(self._switchboard)


class RayFanOut:
    """Shards as Ray tasks of one core each, named after the step."""

    def __init__(self, step_name: str) -> None:
        self._step_name = step_name

    def run(
        self, calls: Sequence[Callable[[], Any]], in_flight: int, label: str, stop_requested: Callable[[], bool]
    ) -> Iterator[int]:
        """See FanOut."""
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
            ended, _ = ray.wait(list(running), num_returns=1, timeout=NEWS_SECONDS) if running else ([], [])
            for reference in ended:
                index = running.pop(reference)
                try:
                    ray.get(reference)
                except ray.exceptions.RayError as error:
                    failure = failure or _plain(error)  # what is in flight is paid for: let it finish and be kept
                else:
                    yield index
        if failure is not None:
            raise failure


# The dashboard shows these two by their names, beside that of the step.


def run_step(task: Task, switchboard: Any) -> Outcome:
    """One attempt, on a worker."""
    channel = SwitchboardChannel(task.attempt, switchboard)
    channel.begin(task.key)
    return run_attempt(task, channel, RayFanOut(task.name), capture_prints=True)


def run_shard(call: Callable[[], Any]) -> None:
    """One shard, on a worker."""
    patiently(call, SHARD_PAUSES_SECONDS)


@contextlib.contextmanager
def _explained_end_of_ray() -> Iterator[None]:
    import ray

    try:
        yield
    # The switchboard's, which no step can be without.
    except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
        is_full = isinstance(error, ray.exceptions.OutOfMemoryError)
        cause = "this machine ran out of memory" if is_full else "something killed it, or asked Ray to stop"
        raise UserError(
            f"The process of Ray's that all steps talk to ended while steps ran: {cause}. What was finished or saved "
            "is kept; run the same command again."
        ) from error


def _plain(error: BaseException) -> BaseException:
    """What the function raised on the worker, without Ray's wrapping."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error


def _placement(resources: Resources) -> dict[str, Any]:
    match resources:
        case Cpu(num_cpus):
            return {"num_cpus": num_cpus}
        case Gpu(kind, count):
            return {"num_cpus": 1, "num_gpus": count, "accelerator_type": kind}
        case Tpu():
            raise AssertionError("a slice is reserved as a whole, by a gang")
