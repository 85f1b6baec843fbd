"""The watchdog: a device that does not answer ends the process, and nothing else does."""

import itertools
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from runtime.tracking.events import read_events
from runtime.training import watchdog
from runtime.training.watchdog import EXIT_CODE, SETTLING_ANSWERS, Watchdog
from tests.runtime.training import small_run

HANGS_AT = 9
HANGING = f"""
import logging, sys, time
from pathlib import Path
from runtime.training import watchdog
from tests.runtime.training import small_run

logging.basicConfig(level=logging.INFO)
watchdog.HANG_SECONDS, watchdog.FLUSH_SECONDS = 3.0, 0.0
count = 0

def waits_for_a_host_that_is_gone(*arguments):
    global count
    count += 1
    if count == {HANGS_AT}:
        time.sleep(600)
    return small_run.train_step(*arguments)

small_run.run(Path(sys.argv[1]), lease_epoch=1, step_function=waits_for_a_host_that_is_gone)
"""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "HANG_SECONDS", 0.5)
    monkeypatch.setattr(watchdog, "FLUSH_SECONDS", 0.0)


def settled(dog: Watchdog) -> Watchdog:
    for step in range(SETTLING_ANSWERS):
        with dog.awaits(step):
            pass
    return dog


def test_a_run_whose_device_hangs_ends_and_resumes_with_the_same_bytes(tmp_path: Path):
    command = [sys.executable, "-c", HANGING, str(tmp_path / "hung")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[3])
    assert ended.returncode == EXIT_CODE, ended.stderr
    assert "in waits_for_a_host_that_is_gone" in ended.stderr, "the stacks of all threads are logged"
    *_, last = read_events(str(tmp_path / "hung/events/1.jsonl"))
    assert (last["event"], last["step"]) == ("hang", HANGS_AT)
    small_run.run(tmp_path / "hung", lease_epoch=2)
    assert read_events(str(tmp_path / "hung/events/2.jsonl"))[0]["step"] == 8
    small_run.run(tmp_path / "undisturbed", lease_epoch=1)
    assert small_run.committed_bytes(tmp_path / "hung") == small_run.committed_bytes(tmp_path / "undisturbed")


@pytest.mark.usefixtures("quick")
def test_the_first_answers_may_take_any_time():
    ends: list[int] = []
    dog = Watchdog(end=ends.append)
    with dog.watching(), dog.awaits(1):
        time.sleep(1.0)
    assert ends == []


@pytest.mark.usefixtures("quick")
def test_other_waits_are_not_watched():
    ends: list[int] = []
    dog = settled(Watchdog(end=ends.append))
    with dog.watching():
        time.sleep(0.7)
        with dog.awaits(9):
            time.sleep(0.01)
        time.sleep(0.7)
    assert ends == []


def test_the_patience_grows_with_the_longest_wait(monkeypatch: pytest.MonkeyPatch):
    moments = itertools.count(0.0, 100.0)
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: next(moments))
    dog = settled(Watchdog())
    assert dog.patience_seconds == 600.0, "the first answers compile"
    with dog.awaits(9):
        pass
    assert dog.patience_seconds == 2_000.0


@pytest.mark.usefixtures("quick")
def test_a_device_that_answers_late_ends_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(watchdog, "FLUSH_SECONDS", 1.5)
    ends: list[int] = []
    reported: list[int] = []
    dog = settled(Watchdog(on_hang=lambda number, seconds: reported.append(number), end=ends.append))
    with dog.watching(), dog.awaits(9):
        time.sleep(1.0)
    assert ends == [] and reported == [9]


@pytest.mark.usefixtures("quick")
def test_the_process_ends_even_if_the_report_fails(caplog: pytest.LogCaptureFixture):
    ended = threading.Event()

    def full_disk(number: int, seconds: float) -> None:
        raise OSError(28, "No space left on device")

    dog = settled(Watchdog("batch", on_hang=full_disk, end=lambda code: ended.set()))
    with dog.watching(), dog.awaits(9):
        assert ended.wait(60)
    assert len(caplog.records) == 2
