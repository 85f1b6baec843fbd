"""RayBackend: each step one named Ray task, its shards tasks of their own, on a cluster or on this machine.

A cluster that this starts is for this run alone: it listens on this machine only, asks for a token, and ends with it.
"""

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from marin_dag.attempt import failure_of, run_attempt
from marin_dag.backend import Listener
from marin_dag.errors import UserError
from marin_dag.local_backend import call_with_retries
from marin_dag.resources import Cpu, Gpu, Resources, Tpu
from marin_dag.task import Outcome, Progress, Task

TOKEN_FILE = Path("~/.ray/auth_token")
NUM_CPUS_LEAST = 2
OBJECT_STORE_IN_BYTES = 128 * 2**20
NEWS_SECONDS = 0.5
CANCEL_GRACE_SECONDS = 5.0
WORKER_DEATHS = 3
QUIET = {
    # Steps that ask for no accelerator see none, today and after Ray changes its default.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
}


class RayBackend:
    """See Backend. Joins the cluster of RAY_ADDRESS if that is set, and leaves it running."""

    max_running = 64

    def __init__(self) -> None:
        self._running: dict[Any, Task] = {}
        self._last_news = 0.0
        self._owns_cluster = False
        self._switchboard: Any = None

    def start(self, listener: Listener, largest_num_cpus: int) -> str:
        """See Backend."""
        self._listener = listener
        greeting = "" if _is_connected() else self._start_cluster(largest_num_cpus)
        import ray  # not above: it reads RAY_AUTH_MODE as it is imported

        self._switchboard = ray.remote(num_cpus=0)(_Switchboard).remote()
        self._run = ray.remote(_run_on_worker)
        return greeting

    def _start_cluster(self, largest_num_cpus: int) -> str:
        if not os.environ.get("RAY_ADDRESS"):
            require_a_token()
        import ray

        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        # Workers inherit it: they import the recipe's modules from wherever this process found them.
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(str(Path(path).absolute()) for path in sys.path))
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if os.environ.get("RAY_ADDRESS"):
            context = ray.init(**options)
        else:
            # A laptop runs a step that asks for more cores than it has; slower, but it runs.
            num_cpus = max(os.cpu_count() or 1, largest_num_cpus, NUM_CPUS_LEAST)
            context = ray.init(
                num_cpus=num_cpus,
                include_dashboard=True,
                dashboard_host="127.0.0.1",
                object_store_memory=OBJECT_STORE_IN_BYTES,
                **options,
            )
            self._owns_cluster = True
        if not context.dashboard_url:
            return "Ray cluster without a dashboard"
        return f"Ray dashboard http://{context.dashboard_url}  (it asks for a token: {_where_the_token_is()})"

    def submit(self, task: Task) -> None:
        """See Backend."""
        if self._owns_cluster:
            _refuse_what_never_fits(task)
        reference = self._run.options(name=task.name, max_retries=0, **_placement(task.resources)).remote(
            task, self._switchboard
        )
        self._running[reference] = task

    def wait(self, timeout_seconds: float) -> list[Outcome]:
        """See Backend."""
        import ray

        if not self._running:
            time.sleep(timeout_seconds)
            return []
        ended, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        if not ended:
            ended, _ = ray.wait(list(self._running), num_returns=1, timeout=timeout_seconds)
        self._pass_on_news(force=bool(ended))
        return [self._outcome(reference) for reference in ended]

    def _outcome(self, reference: Any) -> Outcome:
        import ray

        task = self._running.pop(reference)
        try:
            outcome = ray.get(reference)
        except ray.exceptions.TaskCancelledError:
            return Outcome(task, "cancelled")
        except ray.exceptions.RayError as error:
            return Outcome(task, "failed", failure=failure_of(task, _plain(error)))
        assert isinstance(outcome, Outcome)
        return outcome

    def _pass_on_news(self, *, force: bool) -> None:
        import ray

        if not force and time.monotonic() - self._last_news < NEWS_SECONDS:
            return
        self._last_news = time.monotonic()
        progress, published = ray.get(self._switchboard.take_news.remote())
        for key, item in progress.items():
            self._listener.on_progress(key, item)
        for key in published:
            self._listener.on_published(key)

    def request_stop(self) -> None:
        """See Backend."""
        self._switchboard.stop.remote(None)

    def cancel(self, key: str) -> None:
        """See Backend."""
        import ray

        for reference, task in list(self._running.items()):
            if task.key == key:
                self._switchboard.stop.remote(key)
                ray.cancel(reference, force=False, recursive=True)

    def close(self) -> None:
        """See Backend."""
        import ray

        for reference in self._running:
            ray.cancel(reference, force=False, recursive=True)
        if self._running:
            ray.wait(list(self._running), num_returns=len(self._running), timeout=CANCEL_GRACE_SECONDS)
        self._running.clear()
        if self._owns_cluster:
            ray.shutdown()
        elif self._switchboard is not None:
            ray.kill(self._switchboard)


class _Switchboard:
    """An actor between the driver and the steps: figures one way, the wish to stop the other."""

    def __init__(self) -> None:
        self._progress: dict[str, Progress] = {}
        self._published: list[str] = []
        self._stopped: set[str | None] = set()

    def report(self, key: str, progress: Progress) -> bool:
        """Takes a figure; answers whether to stop."""
        self._progress[key] = progress
        return self.is_stopped(key)

    def published(self, key: str) -> None:
        """Takes the key of a milestone."""
        self._published.append(key)

    def stop(self, key: str | None) -> None:
        """Asks one step to stop, or all of them."""
        self._stopped.add(key)

    def is_stopped(self, key: str) -> bool:
        """Whether that step is to stop."""
        return None in self._stopped or key in self._stopped

    def take_news(self) -> tuple[dict[str, Progress], list[str]]:
        """What came in since the last call."""
        news = self._progress, self._published
        self._progress, self._published = {}, []
        return news


class _SwitchboardChannel:
    """A step's end of the switchboard; asks and tells at most every NEWS_SECONDS, since a step may do so each batch."""

    def __init__(self, key: str, switchboard: Any) -> None:
        self._key = key
        self._switchboard = switchboard
        self._last_report = 0.0
        self._last_question = 0.0
        self._is_stopped = False

    def report(self, key: str, progress: Progress) -> None:
        """See Channel."""
        if time.monotonic() - self._last_report >= NEWS_SECONDS or progress.done == progress.total:
            self._last_report = time.monotonic()
            self._switchboard.report.remote(key, progress)

    def published(self, key: str) -> None:
        """See Channel."""
        self._switchboard.published.remote(key)

    def stop_requested(self) -> bool:
        """See Channel."""
        import ray

        if not self._is_stopped and time.monotonic() - self._last_question >= NEWS_SECONDS:
            self._last_question = time.monotonic()
            self._is_stopped = bool(ray.get(self._switchboard.is_stopped.remote(self._key)))
        return self._is_stopped


class RayFanOut:
    """Shards as Ray tasks of one core each, named after the step."""

    def __init__(self, step_name: str) -> None:
        self._step_name = step_name

    def run(
        self, calls: Sequence[Callable[[], Any]], in_flight: int, label: str, stop_requested: Callable[[], bool]
    ) -> Iterator[int]:
        """See FanOut."""
        import ray

        remote = ray.remote(num_cpus=1, max_retries=WORKER_DEATHS)(call_with_retries)
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


def _run_on_worker(task: Task, switchboard: Any) -> Outcome:
    channel = _SwitchboardChannel(task.key, switchboard)
    return run_attempt(task, channel, RayFanOut(task.name), capture_prints=True)


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
        case Tpu(slice_name, _):
            return {"num_cpus": 1, "resources": {f"TPU-{slice_name}-head": 1}}


def _refuse_what_never_fits(task: Task) -> None:
    """A task that no machine can hold would wait for ever; this cluster does not grow."""
    import ray

    wanted = dict(_placement(task.resources))
    needs = {"CPU": wanted["num_cpus"], "GPU": wanted.get("num_gpus", 0), **wanted.get("resources", {})}
    if "accelerator_type" in wanted:
        needs[f"accelerator_type:{wanted['accelerator_type']}"] = 0.001
    has = ray.cluster_resources()
    missing = [f"{amount:g} {name}" for name, amount in needs.items() if amount > has.get(name, 0)]
    if missing:
        raise UserError(
            f"{task.name}: asks for {task.resources}, and this machine lacks {', '.join(missing)}; set RAY_ADDRESS to "
            "a cluster that has them, or give the step other resources."
        )


def _is_connected() -> bool:
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def require_a_token() -> None:
    """Whoever may reach the cluster may run code as this user: so it always asks for a token."""
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    # Else Ray has read the variable already, and would start a server that asks and a client that does not answer;
    # left alone it turns tokens on by itself.
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return
    path = TOKEN_FILE.expanduser()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Ray would make the file readable by all users of the machine.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    except FileExistsError:
        return
    except OSError as error:
        raise UserError(
            f"{path}: {error.strerror}: the token that guards the Ray dashboard cannot be kept there; set "
            "RAY_AUTH_TOKEN to a secret of your own."
        ) from error


def _where_the_token_is() -> str:
    if os.environ.get("RAY_AUTH_TOKEN"):
        return "the value of RAY_AUTH_TOKEN"
    return f"cat {os.environ.get('RAY_AUTH_TOKEN_PATH') or TOKEN_FILE}"
