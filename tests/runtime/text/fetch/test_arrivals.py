"""Progress of many files: every byte that is here counts, and bytes of an earlier attempt are no speed."""

import threading

import pytest

from runtime.text.fetch import arrivals
from runtime.text.fetch.arrivals import Arrivals


class Clock:
    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets; the folder of parts is not polled."""
    found = Clock()
    monkeypatch.setattr(arrivals, "time", found)
    monkeypatch.setattr(arrivals, "POLL_SECONDS", threading.TIMEOUT_MAX)
    return found


def reporting(tmp_path, reported):
    return Arrivals(str(tmp_path), lambda *arrived: reported.append(arrived)).polled()


def test_bytes_of_an_earlier_attempt_count_from_the_first_report_on_and_are_no_speed(tmp_path, clock):
    reported = []
    with reporting(tmp_path, reported) as waiting:
        waiting.count(1, 3)
        assert reported == []  # the file of the earlier attempt is not counted yet
        waiting.end(50)
        assert reported == [(1, 50, 0.0)]
        clock.now += 10
        waiting.end(300)
        assert reported[-1] == (2, 350, 30.0)


def test_parts_count_while_their_files_are_unfinished(tmp_path, monkeypatch):
    monkeypatch.setattr(arrivals, "POLL_SECONDS", 0.01)
    is_half_here = threading.Event()

    def report(num_files, num_bytes, rate):
        if (num_files, num_bytes) == (0, 150):
            is_half_here.set()

    with Arrivals(str(tmp_path), report).polled() as waiting:
        waiting.count(0, 1)
        (tmp_path / "00000").write_bytes(bytes(150))
        assert is_half_here.wait(60)


def test_a_store_that_fails_stops_no_download(tmp_path, monkeypatch):
    monkeypatch.setattr(arrivals, "POLL_SECONDS", 0.01)
    asked = threading.Semaphore(0)

    def fail(path):
        asked.release()
        raise OSError("gone")

    monkeypatch.setattr(arrivals.fsspec.core, "url_to_fs", fail)
    with reporting(tmp_path, []) as waiting:
        waiting.count(0, 1)
        for _ in range(3):
            assert asked.acquire(timeout=60)
        waiting.end(5)
