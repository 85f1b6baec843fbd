"""Fencing: an attempt that lost its lease is cancelled within a heartbeat, and publishes nothing, however late."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from pydantic import BaseModel

from marin_dag.graph.step import Runtime, StepContext, StepStopped, step
from marin_dag.ledger import lease
from marin_dag.ledger.epoch import seal
from marin_dag.ledger.records import Records
from marin_dag.run import retries
from marin_dag.run.driver import Run
from marin_dag.run.local.backend import LocalBackend
from marin_dag.run.task import Backend
from marin_dag.store import retry as transient
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Entry, StoreError
from tests.marin_dag.kill_everywhere import committed_bytes
from tests.marin_dag.run.test_driver import Recorder, run
from tests.marin_dag.run.test_kill import driver, finish
from tests.marin_dag.toy_steps import FailConfig, Text, WriteConfig, executions, fail, mark, write
from tests.marin_dag.zombie_driver import the_signed_step, the_step


def start_zombie_driver(folder: Path, name: str = "held") -> subprocess.Popen[str]:
    command = [sys.executable, "tests/marin_dag/zombie_driver.py", str(folder / "runs"), str(folder / "marks"), name]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_paused_attempt_whose_step_was_taken_over_publishes_nothing(tmp_path: Path):
    marks = tmp_path / "marks"
    marks.mkdir()
    (marks / "hold").touch()
    with start_zombie_driver(tmp_path) as zombie:
        wait_for_mark(tmp_path, "count7", 1, zombie)
        zombie.send_signal(signal.SIGSTOP)
        (marks / "hold").unlink()
        with start_zombie_driver(tmp_path) as successor:
            output, _ = successor.communicate(timeout=480)
        assert successor.returncode == 0, output
        before = committed_bytes(tmp_path / "runs")
        zombie.send_signal(signal.SIGCONT)
        output, _ = zombie.communicate(timeout=480)
    assert zombie.returncode == 0, output
    assert re.findall(r"\bheld +(\w+)", output)[-2:] == ["lost", "done"]
    assert committed_bytes(tmp_path / "runs") == before
    records = Records(LocalStore(str(tmp_path / "runs")))
    epochs = {at: record.provenance.lease_epoch for at, record in records.milestones(the_step("").digest).items()}
    assert epochs == {5: 1, 10: 2, 12: 2}
    assert executions(marks) == {f"count{n}": 2 if 5 <= n <= 9 else 1 for n in sorted(range(12), key=str)}


def wait_for_mark(folder: Path, name: str, times: int, *alive: subprocess.Popen[str]) -> None:
    while executions(folder / "marks").get(name, 0) < times:
        for process in alive:
            assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)


def test_a_paused_worker_changes_no_shard_that_another_attempt_has_made_again(tmp_path: Path):
    marks = tmp_path / "marks"
    marks.mkdir()
    (marks / "hold").touch()
    with start_zombie_driver(tmp_path, "signed") as zombie:
        wait_for_mark(tmp_path, "shard2", 1, zombie)
        zombie.send_signal(signal.SIGSTOP)
        (marks / "hold").unlink()
        (marks / "hold-reading").touch()
        with start_zombie_driver(tmp_path, "signed") as successor:
            wait_for_mark(tmp_path, "finished2", 1, successor)
            zombie.send_signal(signal.SIGCONT)
            wait_for_mark(tmp_path, "finished2", 2, successor)
            (marks / "hold-reading").unlink()
            output, _ = successor.communicate(timeout=480)
        assert successor.returncode == 0, output
        output, _ = zombie.communicate(timeout=480)
        assert zombie.returncode == 0, output
    record = Records(LocalStore(str(tmp_path / "runs"))).get(the_signed_step("").key)
    assert record.result == {"made_by": [zombie.pid, zombie.pid, successor.pid, successor.pid]}
    folder = tmp_path / "runs" / record.output_path
    files = [int((folder / f"shards/{index:05d}/made-by.txt").read_text()) for index in range(4)]
    assert files == record.result["made_by"]


def test_two_drivers_of_one_graph_at_once_run_each_step_once(tmp_path: Path):
    both = [driver(tmp_path, "local", 0.05) for _ in range(2)]
    for code, output in map(finish, both):
        assert code == 0, output
    counts = executions(tmp_path / "marks")
    # The branch leaves main at 5, and counts on to 8.
    assert {name: number for name, number in counts.items() if number > 1} == {"count5": 2, "count6": 2, "count7": 2}
    code, output = finish(driver(tmp_path / "alone", "local", 0))
    assert code == 0, output
    assert committed_bytes(tmp_path / "runs") == committed_bytes(tmp_path / "alone" / "runs")


class EndlessConfig(BaseModel, frozen=True, extra="forbid"):
    marks: Runtime[str]


@step()
def endless_once(config: EndlessConfig, context: StepContext) -> Text:
    """Run until asked to stop; return at once the second time."""
    mark(config.marks, "endless")
    while executions(Path(config.marks))["endless"] == 1:
        if context.stop_requested():
            raise StepStopped("as asked")
        time.sleep(0.01)
    return Text(file="none", num_bytes=0)


def test_a_lease_that_is_lost_cancels_the_running_step(
    tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.1)
    prefix, marks = str(tmp_path / "runs"), tmp_path / "marks"
    item = endless_once("endless", EndlessConfig(marks=str(marks)))

    def take_over() -> None:
        while not executions(marks):
            time.sleep(0.02)
        seal(open_store(prefix), item.digest, 1)

    other = threading.Thread(target=take_over)
    other.start()
    code, display = run(prefix, [item], backend)
    other.join()
    assert code == 0, display.text
    assert "lost" in display.events_of("endless")
    assert executions(marks) == {"endless": 2}
    assert Records(open_store(prefix)).get(item.key).provenance.lease_epoch == 2


class Stumbling(LocalStore):
    """A store that refuses some kind of request a number of times."""

    def __init__(self, prefix: str, times: int, where: str) -> None:
        super().__init__(prefix)
        self.num_left, self._where = times, where

    def _stumble(self, path: str) -> None:
        if path.startswith(self._where) and self.num_left:
            self.num_left -= 1
            raise StoreError(f"{path}: 503", is_transient=True)

    def list(self, folder: str, starting_with: str = "") -> list[Entry]:
        self._stumble(f"list {folder}/{starting_with}")
        return super().list(folder, starting_with)

    def read(self, path: str) -> bytes:
        self._stumble(f"read {path}")
        return super().read(path)

    def create(self, path: str, data: bytes) -> bool:
        self._stumble(f"create {path}")
        return super().create(path, data)


@pytest.mark.parametrize("where", ["list leases/", "create leases/", "read commits/"])
def test_transient_errors_at_the_start_of_a_step_delay_it_only(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(transient, "PAUSES_SECONDS", (0.0,))
    store = Stumbling(str(tmp_path / "runs"), 5, where)
    marks = tmp_path / "marks"
    display, item = Recorder(), write("a", WriteConfig(text="aaa", marks=str(marks)))
    code = Run([item], store, LocalBackend(), display, command="", back_off_seconds=0.001).run()
    assert code == 0, display.text
    assert store.num_left == 0
    assert executions(marks) == {"a": 1}


def test_each_start_of_a_step_may_be_postponed_as_often_as_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Otherwise a long run with many attempts would give up a step for rare errors of the store."""
    monkeypatch.setattr(transient, "PAUSES_SECONDS", ())
    monkeypatch.setattr(retries, "STARTS_POSTPONED", 1)
    marks, store = tmp_path / "marks", Stumbling(str(tmp_path / "runs"), 1, "create leases/")
    config = FailConfig(message="reset", kind="transient", num_failures=1, marks=str(marks))

    class Meddler(Recorder):
        def event(self, name: str, what: str, detail: str) -> None:
            super().event(name, what, detail)
            store.num_left += what == "retrying"

    display, step = Meddler(), fail("passing", config)
    code = Run([step], store, LocalBackend(), display, command="", back_off_seconds=0.001).run()
    assert code == 0, display.text
    assert (store.num_left, display.text.count("for the store")) == (0, 2)


def test_transient_errors_after_a_failed_attempt_do_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transient, "PAUSES_SECONDS", (0.0,))
    marks = tmp_path / "marks"
    config = FailConfig(message="reset", kind="transient", num_failures=1, marks=str(marks))
    store, display = Stumbling(str(tmp_path / "runs"), 2, "list work/"), Recorder()
    steps = [fail("passing", config), write("after", WriteConfig(text="a", marks=str(marks)))]
    code = Run(steps, store, LocalBackend(), display, command="", back_off_seconds=0.001).run()
    assert code == 0, display.text
    assert store.num_left == 0
    assert executions(marks) == {"after": 1, "passing": 2}
