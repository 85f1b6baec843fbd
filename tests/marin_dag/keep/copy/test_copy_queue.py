"""Pins down: which copies are under way at once."""

import errno
import threading
import time
from collections.abc import Collection

import pytest

from marin_dag.keep.copy import copy_queue
from marin_dag.keep.copy.copy_errors import AtWorkThereError
from marin_dag.keep.copy.copy_queue import LAST_TRIES, CopyQueue
from marin_dag.keep.copy.copy_survey import keys_of
from marin_dag.keep.copy.copying import Copied, Copier
from marin_dag.ledger.epoch import LeaseLostError
from marin_dag.store.store import StoreError
from tests.marin_dag.toy_steps import WriteConfig, write

WAIT_SECONDS = 30.0


class Slow(Copier):
    """Copies nothing, and counts."""

    def __init__(self) -> None:
        self.most: dict[str, int] = {}
        self._lock, self._now = threading.Lock(), dict[str, int]()

    def copy(self, key: str) -> Copied:
        digest = key.partition("@")[0]
        with self._lock:
            self._now[digest] = self._now.get(digest, 0) + 1
            self.most[digest] = max(self.most.get(digest, 0), self._now[digest])
        time.sleep(0.01)
        with self._lock:
            self._now[digest] -= 1
        return Copied(key, "copied", None)


class Heard:
    def __init__(self) -> None:
        self.keys: list[str] = []

    def on_copied(self, copied: Copied) -> None:
        self.keys.append(copied.key)

    def on_postponed(self, key: str, pause_seconds: float, error: Exception) -> None:
        raise AssertionError(key)

    def on_failed(self, key: str, error: Exception) -> None:
        raise AssertionError(key)

    def on_full(self, keys: Collection[str], error: Exception) -> None:
        raise AssertionError(error)


def test_of_one_trajectory_one_milestone_is_under_way_and_none_twice() -> None:
    copier, heard = Slow(), Heard()
    queue = CopyQueue(copier, heard)
    queue.start()
    keys = [f"{digest}@{at}" for at in range(5) for digest in "abc"]
    for key in (*keys, *keys):
        queue.add(key)
    queue.end()
    assert queue.is_over(WAIT_SECONDS)
    assert sorted(set(heard.keys)) == sorted(keys)
    assert set(copier.most.values()) == {1}


class Failing(Copier):
    """Raises as long as there is something to raise."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.left, self.tries = error, times, 0
        self._cancelled = threading.Event()

    def copy(self, key: str) -> Copied:
        self.tries += 1
        if self.left:
            self.left -= 1
            raise self.error
        return Copied(key, "copied", None)


class Told:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.copied: list[str] = []
        self.failed: list[str] = []
        self.full: list[list[str]] = []
        self.is_postponed = threading.Event()

    def on_copied(self, copied: Copied) -> None:
        self.copied.append(copied.key)

    def on_postponed(self, key: str, pause_seconds: float, error: Exception) -> None:
        self.is_postponed.set()

    def on_failed(self, key: str, error: Exception) -> None:
        self.failed.append(key)

    def on_full(self, keys: Collection[str], error: Exception) -> None:
        self.full.append(list(keys))


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_queue, "FIRST_PAUSE_SECONDS", 0.001)


@pytest.mark.parametrize("is_over_in_time", [True, False])
def test_in_the_end_what_may_pass_is_tried_a_few_times_more(short_pauses: None, is_over_in_time: bool) -> None:
    copier = Failing(StoreError("down", is_transient=True), LAST_TRIES + (not is_over_in_time))
    queue = CopyQueue(copier, told := Told())
    queue.add("a")
    queue.end()
    queue.start()
    assert queue.is_over(WAIT_SECONDS)
    assert (told.copied, told.failed) == ((["a"], []) if is_over_in_time else ([], ["a"]))
    assert copier.tries == LAST_TRIES + 1


def test_what_waits_for_its_pause_when_the_end_comes_is_tried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_queue, "FIRST_PAUSE_SECONDS", 3600.0)
    monkeypatch.setattr(copy_queue, "LONGEST_PAUSE_SECONDS", 3600.0)
    queue = CopyQueue(Failing(StoreError("down", is_transient=True), 1), told := Told())
    queue.add("a@1")
    queue.start()
    assert told.is_postponed.wait(WAIT_SECONDS)
    queue.add("a@2")
    queue.end()
    assert queue.is_over(WAIT_SECONDS) and sorted(told.copied) == ["a@1", "a@2"] and queue.left == ()


@pytest.mark.parametrize("is_ending", [True, False])
def test_who_makes_it_there_is_waited_for_as_long_as_the_run_lasts(short_pauses: None, is_ending: bool) -> None:
    queue = CopyQueue(copier := Failing(AtWorkThereError("somebody is at work"), LAST_TRIES + 2), told := Told())
    queue.add("a")
    if is_ending:
        queue.end()
    queue.start()
    deadline = time.monotonic() + WAIT_SECONDS
    while not (told.copied or told.failed):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    queue.end()
    assert queue.is_over(WAIT_SECONDS)
    assert (told.copied, told.failed, copier.tries) == (([], ["a"], 1) if is_ending else (["a"], [], LAST_TRIES + 3))


def test_a_lost_lease_is_tried_again(short_pauses: None) -> None:
    queue = CopyQueue(Failing(LeaseLostError("lost"), 1), told := Told())
    queue.add("a")
    queue.end()
    queue.start()
    assert queue.is_over(WAIT_SECONDS) and told.copied == ["a"]


def test_ten_thousand_outputs_take_no_time_to_order() -> None:
    copier = Failing(StoreError(""), 0)
    queue, begun = CopyQueue(copier, told := Told()), time.process_time()
    for number in range(10_000):
        queue.add(f"{number:064x}")
    queue.end()
    queue.start()
    assert queue.is_over(WAIT_SECONDS) and len(told.copied) == 10_000
    assert time.process_time() - begun < 5


def test_the_keys_of_ten_thousand_steps_are_found_at_once() -> None:
    made, num_steps = write("web", WriteConfig(text="web")), 10_000
    begun = time.process_time()
    assert keys_of([made] * num_steps, [made.key, *(f"{number:064x}" for number in range(num_steps))]) == {
        made.key: "web"
    }
    assert time.process_time() - begun < 0.5


def full() -> StoreError:
    try:
        raise StoreError("t/x: No space left on device") from OSError(errno.ENOSPC, "No space left on device")
    except StoreError as error:
        return error


def test_a_full_target_is_left_alone_until_somebody_may_have_made_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_queue, "OUTPUTS_AT_ONCE", 1)
    copier, told = Failing(full(), 1), Told()
    queue = CopyQueue(copier, told)
    queue.start()
    queue.add("a")
    deadline = time.monotonic() + WAIT_SECONDS
    while not told.full:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    queue.add("b")
    time.sleep(0.1)
    assert copier.tries == 1 and told.full == [[]] and set(queue.left) == {"a", "b"}
    queue.end()  # somebody waits now
    assert queue.is_over(WAIT_SECONDS) and copier.tries == 3 and told.full == [[]]


def test_once_nothing_more_comes_a_full_target_ends_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_queue, "OUTPUTS_AT_ONCE", 1)
    copier, told = Failing(full(), 99), Told()
    queue = CopyQueue(copier, told)
    for key in "abc":
        queue.add(key)
    queue.end()
    queue.start()
    assert queue.is_over(WAIT_SECONDS) and copier.tries == 1 and told.full == [["a", "b", "c"]]
