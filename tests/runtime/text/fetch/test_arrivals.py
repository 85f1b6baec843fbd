"""Pins down: of many files at once every byte that is here counts, and none that came before counts as speed."""

import logging
import threading

import pytest

from runtime.text.fetch import arrivals
from runtime.text.fetch.arrivals import ArrivalNote, Arrivals, Wanted
from tests.catalogue import expect_error

LOG = logging.getLogger("arrivals")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """Time that passes by hand; no look but the first, so that nothing races."""
    found = Clock()
    monkeypatch.setattr(arrivals, "time", found)
    monkeypatch.setattr(arrivals, "LOOK_SECONDS", threading.TIMEOUT_MAX)
    return found


def names(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_what_a_killed_attempt_left_counts_from_the_first_word_on_and_is_no_speed(tmp_path, clock):
    folder, told = str(tmp_path / "arrivals"), []
    ArrivalNote(folder, "a")(200, 300)
    wanted = [Wanted("a", None), Wanted("b", None), Wanted("c", 50)]
    with Arrivals(folder, wanted, told.append, LOG) as waiting:
        waiting.count(1, 3)
        assert told == []  # c was fetched before, and is not counted yet
        waiting.end(2, 50)
        assert told == [(1, 250, 350, 1, 0.0)]
        clock.now += 10
        waiting.end(0, 300)
        assert told[-1] == (2, 350, 350, 1, 10.0)
        clock.now += 10
        waiting.end(1, 100)
    assert told[-1] == (3, 450, 450, 0, 10.0)


def test_the_rate_is_that_of_the_last_minute(tmp_path, clock):
    told = []
    with Arrivals(str(tmp_path), [Wanted(str(number), 600) for number in range(4)], told.append, LOG) as waiting:
        waiting.count(0, 4)
        for index, seconds in enumerate((60, 60, 600, 60)):
            clock.now += seconds
            waiting.end(index, 600)
    assert [arrived.bytes_per_second for arrived in told] == [0.0, 10.0, 10.0, 1.0, 10.0]


def test_a_file_that_failed_keeps_what_is_kept_of_it(tmp_path, clock):
    told = []
    ArrivalNote(str(tmp_path), "a")(200, 300)
    with Arrivals(str(tmp_path), [Wanted("a", None)], told.append, LOG) as waiting:
        waiting.count(0, 1)
        waiting.end(0, None)
    assert told[-1] == (1, 200, 300, 0, 0.0)


def test_a_note_is_written_now_and_then_and_neither_its_name_nor_its_size_says_how_far_a_file_is(tmp_path, clock):
    note = ArrivalNote(str(tmp_path), "https://somewhere/a")
    note(1, None)
    (written,) = tmp_path.iterdir()
    first = written.read_bytes()
    note(10**15, 10**16)
    assert written.read_bytes() == first
    clock.now += arrivals.NOTE_SECONDS
    note(10**15, 10**16)
    assert written.read_bytes() != first
    assert (names(tmp_path), len(written.read_bytes())) == ([written.name], len(first))
    note.forget()
    note.forget()
    assert names(tmp_path) == []


def test_notes_are_read_while_files_come(tmp_path, monkeypatch):
    monkeypatch.setattr(arrivals, "LOOK_SECONDS", 0.01)
    half_here = threading.Event()

    def tell(arrived):
        if arrived[:4] == (0, 150, 300, 0):
            half_here.set()

    with Arrivals(str(tmp_path), [Wanted("a", None)], tell, LOG) as waiting:
        waiting.count(0, 1)
        (tmp_path / "of a file that nobody wants").write_bytes(bytes(16))
        ArrivalNote(str(tmp_path), "a")(150, 300)
        assert half_here.wait(60)


def test_notes_that_cannot_be_read_are_no_reason_to_stop_and_are_told_once(tmp_path, monkeypatch, caplog):
    told = threading.Semaphore(0)
    monkeypatch.setattr(arrivals, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(arrivals.fsspec.core, "url_to_fs", None)
    waiting = Arrivals(str(tmp_path), [Wanted("a", 5)], lambda arrived: told.release(), LOG)
    waiting.count(0, 1)
    with waiting:
        for _ in range(4):
            assert told.acquire(timeout=480)
        monkeypatch.undo()
    assert caplog.text.count("no progress within files is told") == 1


def test_what_the_one_who_is_told_raises_reaches_the_one_who_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(arrivals, "LOOK_SECONDS", 0.01)
    raised = threading.Event()

    def tell(arrived):
        if threading.current_thread() is not threading.main_thread():
            raised.set()
            raise ValueError("the code changed")

    with (
        expect_error(ValueError),
        Arrivals(str(tmp_path), [Wanted("a", 5)], tell, LOG) as waiting,
    ):
        waiting.count(0, 1)
        assert raised.wait(60)
