"""Background threads: lower priority, and functions repeated while a block lasts."""

import os
import sys
import threading

import pytest

from runtime.training.background import NICENESS, lower_priority, repeated


def test_only_the_calling_thread_gets_a_lower_priority() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    seen: list[int] = []

    def run() -> None:
        lower_priority()
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
    assert seen == [max(before, NICENESS) if sys.platform == "linux" else before]


def test_the_pause_is_read_before_each_call():
    pauses = iter([0.0, 0.0, 3_600.0])
    calls: list[str] = []
    third_pause = threading.Event()

    def pause_seconds() -> float:
        pause = next(pauses)
        if pause:
            third_pause.set()
        return pause

    with repeated(lambda: calls.append(threading.current_thread().name), pause_seconds=pause_seconds, name="repeats"):
        assert third_pause.wait(60)
    assert calls == ["repeats", "repeats"], "the block does not sit out the last pause"


def test_the_block_waits_for_the_call_under_way_also_after_an_error():
    began, goes_on, has_ended = threading.Event(), threading.Event(), threading.Event()

    def function() -> None:
        began.set()
        assert goes_on.wait(60)
        has_ended.set()

    with (
        pytest.raises(ZeroDivisionError),
        repeated(function, pause_seconds=lambda: 0.0, name="repeats"),
    ):
        assert began.wait(60)
        threading.Timer(0.05, goes_on.set).start()
        raise ZeroDivisionError
    assert has_ended.is_set()
    assert "repeats" not in [thread.name for thread in threading.enumerate()]
