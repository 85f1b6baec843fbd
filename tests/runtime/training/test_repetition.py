"""Repetition: called again and again, after pauses that may change, and never once the block has ended."""

import threading

from runtime.training.repetition import repeated

from tests.catalogue import expect_error


def test_a_function_is_called_after_each_pause_and_each_pause_is_asked_for_anew():
    pauses = iter([0.0, 0.0, 3_600.0])
    calls: list[str] = []
    third_pause = threading.Event()

    def pause_seconds() -> float:
        pause = next(pauses)
        if pause:
            third_pause.set()
        return pause

    with repeated(lambda: calls.append(threading.current_thread().name), pause_seconds=pause_seconds, name="looks"):
        assert third_pause.wait(60)
    assert calls == ["looks", "looks"], "the block does not sit out the last pause"


def test_the_block_ends_when_the_call_under_way_has_and_by_an_error_too():
    began, goes_on, has_ended = threading.Event(), threading.Event(), threading.Event()

    def function() -> None:
        began.set()
        assert goes_on.wait(60)
        has_ended.set()

    with (
        expect_error(ValueError),
        repeated(function, pause_seconds=lambda: 0.0, name="looks"),
    ):
        assert began.wait(60)
        threading.Timer(0.05, goes_on.set).start()
        raise ValueError("of the block")
    assert has_ended.is_set()
    assert "looks" not in [thread.name for thread in threading.enumerate()]
