"""Items come in order, errors reach the reader, the thread ends, and waits are measured."""

import itertools
import threading
import time

from runtime.data.prefetch import Prefetch
from tests.catalogue import expect_error


def test_items_come_in_order_and_then_it_ends():
    with Prefetch(iter(range(50)), depth=3) as items:
        assert list(items) == list(range(50))
        assert list(items) == []


def test_it_runs_ahead_by_its_depth_and_no_further():
    made, reached, far = [], threading.Event(), threading.Event()

    def source():
        for item in itertools.count():
            made.append(item)
            if item == 3:
                reached.set()
            if item == 4:
                far.set()
            yield item

    with Prefetch(source(), depth=3) as items:
        assert reached.wait(5)  # three wait to be taken, a fourth is in hand
        assert not far.wait(0.05)
        assert next(items) == 0
        assert far.wait(5)
    assert len(made) == 5


def test_an_error_comes_to_the_reader_at_its_place_with_its_type():
    def source():
        yield 1
        raise KeyError("torn")

    items = Prefetch(source(), depth=4)
    assert next(items) == 1
    with expect_error(KeyError):
        next(items)
    assert list(items) == []


def test_closing_early_ends_the_thread():
    items = Prefetch(itertools.count(), depth=2)
    assert next(items) == 0
    items.close()
    items.close()
    assert not items._thread.is_alive()
    assert list(items) == []


def test_the_wait_for_each_item_is_measured():
    def items():
        yield "a"
        time.sleep(0.2)
        yield "b"

    with Prefetch(items(), depth=1) as ahead:
        assert next(ahead) == "a" and ahead.last_wait_seconds < 0.2
        assert next(ahead) == "b" and 0 < ahead.last_wait_seconds <= 1


def test_a_depth_of_zero_is_refused():
    with expect_error(ValueError):
        Prefetch(iter(()), depth=0)
