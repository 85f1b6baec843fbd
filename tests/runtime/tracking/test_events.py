"""Event logs survive a kill, and no run fails because of its event log."""

import errno
import resource
import threading
import time
import uuid
from collections.abc import Callable

import fsspec
import pytest

from runtime.tracking import events as events_module
from runtime.tracking.events import EventLog, is_of_first_host, read_events


def test_events_are_on_the_disk_line_by_line_and_a_torn_last_line_is_ignored(tmp_path):
    path = tmp_path / "events" / "attempt.jsonl"
    log = EventLog(str(path))
    log.write("begin", step=1, kernels={"loss": "chunked"})
    assert [event["event"] for event in read_events(str(path))] == ["begin"]
    with path.open("a") as file:
        file.write('{"event": "cut sho')
    (event,) = read_events(str(path))
    assert event["kernels"] == {"loss": "chunked"}
    assert set(event) == {"event", "time", "elapsed_seconds", "step", "kernels"}
    log.close()


def test_a_new_log_is_empty_and_a_missing_log_is_an_error(tmp_path):
    with EventLog(str(tmp_path / "attempt.jsonl")):
        assert read_events(str(tmp_path / "attempt.jsonl")) == []
    with pytest.raises(FileNotFoundError):
        read_events(str(tmp_path / "other.jsonl"))


class Bucket:
    """Objects in memory; records the thread of each write, and fails `failures_left` writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = f"memory://{uuid.uuid4().hex}"
        self.writes: list[tuple[str, str]] = []
        self.failures_left = 0
        self.error = ConnectionError("no bucket today")
        self._open = fsspec.open
        monkeypatch.setattr(fsspec, "open", self.open)

    def open(self, url: str, mode: str, **options):
        if mode == "w":
            self.writes.append((url.rpartition("/")[2], threading.current_thread().name))
            if self.failures_left:
                self.failures_left -= 1
                raise self.error
        return self._open(url, mode, **options)

    def steps(self) -> list[int]:
        return [event["step"] for event in read_events(f"{self.folder}/attempt.jsonl")]


def test_events_in_a_bucket_are_written_by_a_thread_and_complete_once_closed(monkeypatch):
    bucket = Bucket(monkeypatch)
    monkeypatch.setattr(events_module, "REMOTE_FLUSH_SECONDS", 1e9)
    with EventLog(f"{bucket.folder}/attempt.jsonl") as log:
        log.write("step", step=0)
        wait_until(lambda: len(bucket.writes) == 1)
        log.write("step", step=1)
        log.write("step", step=2)
    assert bucket.writes[0] == ("attempt.jsonl", "event log")
    assert len(bucket.writes) == 2 and bucket.steps() == [0, 1, 2]


def test_a_long_log_in_a_bucket_is_in_parts_and_read_as_one(monkeypatch):
    bucket = Bucket(monkeypatch)
    monkeypatch.setattr(events_module, "REMOTE_FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(events_module, "REMOTE_PART_BYTES", 1)
    with EventLog(f"{bucket.folder}/attempt.host2.jsonl") as log:
        for step in range(3):
            log.write("step", step=step)
            wait_until(lambda: len(bucket.writes) == step + 1)  # noqa: B023 -- called at once
    parts = ["attempt.host2.jsonl", "attempt.host2.part0002.jsonl", "attempt.host2.part0003.jsonl"]
    assert [name for name, _ in bucket.writes] == parts
    assert [event["step"] for event in read_events(f"{bucket.folder}/attempt.host2.jsonl")] == [0, 1, 2]
    assert [name for name in ["attempt.jsonl", "attempt.part0002.jsonl", *parts] if is_of_first_host(name)] == [
        "attempt.jsonl"
    ]


def test_a_failed_write_to_a_bucket_loses_no_line(monkeypatch, caplog):
    bucket = Bucket(monkeypatch)
    bucket.failures_left = 1
    monkeypatch.setattr(events_module, "REMOTE_FLUSH_SECONDS", 0.01)
    with EventLog(f"{bucket.folder}/attempt.jsonl") as log:
        log.write("step", step=0)
        wait_until(lambda: len(bucket.writes) == 2)
        log.write("step", step=1)
    assert bucket.steps() == [0, 1]
    assert [record.args[1:] for record in caplog.records] == [("ConnectionError", bucket.error)]


def test_a_bucket_that_stays_unreachable_fails_no_run(monkeypatch, caplog):
    bucket = Bucket(monkeypatch)
    bucket.failures_left = 100
    monkeypatch.setattr(events_module, "CLOSE_PAUSES_SECONDS", (0.0, 0.0, 0.0))
    with EventLog(f"{bucket.folder}/attempt.jsonl") as log:
        log.write("end", step=0)
    assert len(caplog.records) >= 3


def test_a_full_disk_loses_no_line(tmp_path, caplog):
    path = tmp_path / "attempt.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with EventLog(str(path)) as log:
        log.write("step", step=0)
        log.write("step", step=1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, hard))  # Python ignores the signal
        try:
            log.write("step", step=2)
            assert len(read_events(str(path))) == 2
            log.write("step", step=3)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        log.write("step", step=4)
        assert [event["step"] for event in read_events(str(path))] == [0, 1, 2, 3, 4]
    assert [record.args[2].errno for record in caplog.records] == [errno.EFBIG] * 2


def test_a_disk_that_stays_full_fails_no_run(caplog):
    with EventLog("/dev/full") as log:
        log.write("end", step=0)
    assert [record.args[2].errno for record in caplog.records] == [errno.ENOSPC] * 2


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
