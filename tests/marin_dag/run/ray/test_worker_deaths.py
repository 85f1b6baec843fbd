"""Worker deaths: one line as the failure, and Ray's whole message in the log of the step."""

from pathlib import Path

import pytest
import ray.exceptions

from marin_dag.ledger.provenance import collect_provenance
from marin_dag.run.ray import worker_deaths
from marin_dag.run.ray.worker_deaths import failure_on_worker, shortened
from marin_dag.run.task import KindReference, Task
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store, StoreError
from tests.catalogue import check_message
from tests.marin_dag.toy_steps import WriteConfig, write

MESSAGE = (
    "A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, "
    "check the logs for the dead worker. Lease ID: 0900 Worker ID: ddb1 Node ID: 88e6 Worker IP address: 192.0.2.2 "
    "Worker port: 39621 Worker PID: 31177 Worker exit type: SYSTEM_ERROR Worker exit detail: RPC error: Socket closed"
)
LOG = "2026-11-26 11:05:03,248 INFO step.a: attempt x on here pid 31177, 1 cpu\n"


@pytest.fixture
def task(tmp_path: Path) -> Task:
    store, step = open_store(str(tmp_path)), write("a", WriteConfig(text="a"))
    return Task(
        prefix=str(tmp_path),
        name="a",
        kind=KindReference.to(step.kind),
        digest=step.digest,
        milestone=None,
        identity=step.identity,
        config=step.config,
        resources=step.resources,
        attempt="x",
        lease_epoch=1,
        provenance=collect_provenance(store),
    )


@pytest.fixture
def log(task: Task) -> Path:
    path = Path(task.prefix, "outputs", f"a-{task.digest[:8]}", "x.log")
    path.parent.mkdir(parents=True)
    path.write_text(LOG)
    return path


def test_a_killed_process_is_one_line_and_its_log_has_the_message_of_ray(task: Task, log: Path) -> None:
    failure = failure_on_worker(task, ray.exceptions.WorkerCrashedError())
    check_message(failure.error)
    assert failure.is_transient and failure.error_type == "WorkerCrashedError"
    assert log.read_text() == f"{LOG}Ray: {ray.exceptions.WorkerCrashedError()}\n"


def test_a_process_killed_for_its_memory_shows_the_figures(task: Task, log: Path) -> None:
    text = "Task was killed due to the node running low on memory.\nMemory on the node was 30.2GB / 31.0GB (0.97)."
    failure = failure_on_worker(task, ray.exceptions.OutOfMemoryError(text))
    check_message(failure.error)
    assert log.read_text() == f"{LOG}Ray: {text}\n"


def test_only_messages_about_dead_workers_are_shortened() -> None:
    check_message(shortened(MESSAGE))
    assert shortened("The node 10.0.0.2 died.") == "The node 10.0.0.2 died."


def test_an_attempt_without_a_log_gets_none_and_other_errors_stay_as_they_are(task: Task) -> None:
    assert "pid" not in failure_on_worker(task, ray.exceptions.WorkerCrashedError()).error
    assert not list(Path(task.prefix).rglob("*.log"))
    assert failure_on_worker(task, ValueError("no")).error == "no"


def test_no_secret_of_a_command_line_reaches_the_log(task: Task, log: Path) -> None:
    text = "Top 10 memory users:\nPID MEM(GB) COMMAND\n7 3.1 python serve.py --api-key=abcdefgh12345678"
    failure_on_worker(task, ray.exceptions.OutOfMemoryError(text))
    assert "python serve.py --api-key=***" in log.read_text() and "abcdefgh12345678" not in log.read_text()


def test_an_unreachable_store_does_not_hide_the_failure(task: Task, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(prefix: str) -> Store:
        raise StoreError("Cloud Storage cannot be reached", is_transient=True)

    monkeypatch.setattr(worker_deaths, "open_store", unreachable)
    failure = failure_on_worker(task, ray.exceptions.WorkerCrashedError())
    assert failure.is_transient and "pid" not in failure.error
