"""Worker deaths: one line for a person, and all that Ray said in the log of the step whose process it was."""

from pathlib import Path

import pytest
import ray.exceptions

from marin_dag.ledger.provenance import collect_provenance
from marin_dag.run.ray import worker_deaths
from marin_dag.run.ray.worker_deaths import WorkerDeaths
from marin_dag.run.task import KindReference, Task
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store, StoreError
from tests.marin_dag.toy_steps import WriteConfig, write

REMARK = (
    "A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, "
    "check the logs for the dead worker. Lease ID: 0900 Worker ID: ddb1 Node ID: {node} Worker IP address: 192.0.2.2 "
    "Worker port: 39621 Worker PID: {pid} Worker exit type: SYSTEM_ERROR Worker exit detail: RPC error: Socket closed"
)
HERE, THERE = "88e6", "73c1"
LOG = "2026-11-26 11:05:03,248 INFO step.a: attempt x on here pid 31177, 1 cpu\n"


def host_of(node_id: str) -> str:
    return {HERE: "here", THERE: "there"}[node_id]


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


def test_a_killed_process_is_one_line_and_what_ray_said_of_it_is_in_the_log_of_its_step(task: Task, log: Path) -> None:
    deaths = WorkerDeaths(host_of)
    failure = deaths.failure(task, ray.exceptions.WorkerCrashedError())
    assert failure.error.startswith("its process (pid 31177) died without a word: killed (kill -9, or the system was")
    assert "\n" not in failure.error and failure.is_transient and failure.error_type == "WorkerCrashedError"
    assert deaths.remark(REMARK.format(node=HERE, pid=31177)) == ""
    first, crashed, remark = log.read_text().splitlines()
    assert (first, crashed) == (LOG.strip(), f"Ray: {ray.exceptions.WorkerCrashedError()}")
    assert remark == f"Ray: {REMARK.format(node=HERE, pid=31177)}"


def test_a_process_that_ray_killed_for_its_memory_says_so_with_the_figures(task: Task, log: Path) -> None:
    said = "Task was killed due to the node running low on memory.\nMemory on the node was 30.2GB / 31.0GB (0.97)."
    failure = WorkerDeaths(host_of).failure(task, ray.exceptions.OutOfMemoryError(said))
    assert failure.error == "Ray killed its process (pid 31177): its machine was short of memory (30.2GB / 31.0GB)"
    assert log.read_text() == f"{LOG}Ray: {said}\n"


def test_of_a_process_that_is_no_step_s_the_line_is_short_and_every_other_line_as_it_came(
    task: Task, log: Path
) -> None:
    deaths = WorkerDeaths(host_of)
    deaths.failure(task, ray.exceptions.WorkerCrashedError())
    before = log.read_text()
    for node, pid in ((HERE, 99), (THERE, 31177)):
        said = deaths.remark(REMARK.format(node=node, pid=pid))
        assert said == f"a worker (pid {pid}) was killed or crashed (SYSTEM_ERROR); Ray's logs have more"
    assert deaths.remark("The node 10.0.0.2 died.") == "The node 10.0.0.2 died."
    assert log.read_text() == before


def test_an_attempt_that_never_began_has_no_log_and_other_errors_stay_as_they_are(task: Task) -> None:
    deaths = WorkerDeaths(host_of)
    assert deaths.failure(task, ray.exceptions.WorkerCrashedError()).error.startswith("its process died without a word")
    assert not list(Path(task.prefix).rglob("*.log"))
    assert deaths.failure(task, ValueError("no")).error == "no"


def test_no_secret_of_a_command_line_that_ray_lists_reaches_the_log(task: Task, log: Path) -> None:
    said = "Top 10 memory users:\nPID MEM(GB) COMMAND\n7 3.1 python serve.py --api-key=abcdefgh12345678"
    WorkerDeaths(host_of).failure(task, ray.exceptions.OutOfMemoryError(said))
    assert "python serve.py --api-key=***" in log.read_text() and "abcdefgh12345678" not in log.read_text()


def test_a_store_that_cannot_be_reached_ends_no_run(task: Task, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(prefix: str) -> Store:
        raise StoreError("Cloud Storage cannot be reached", is_transient=True)

    monkeypatch.setattr(worker_deaths, "open_store", unreachable)
    failure = WorkerDeaths(host_of).failure(task, ray.exceptions.WorkerCrashedError())
    assert failure.error.startswith("its process died without a word") and failure.is_transient
