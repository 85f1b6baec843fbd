"""Pauses of Python's garbage collector.

A plan makes about a million objects and keeps nearly all of them; searching them for cycles took a third of its time.
"""

import contextlib
import gc
from collections.abc import Iterator

SELDOM = 50_000, 20, 100
"""Thresholds of `gc.set_threshold`; Python's own first one is 700 objects."""


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Pause the collector inside; afterwards it does not search what was made, before other objects are as many."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.freeze()
            gc.unfreeze()  # into the oldest generation, with what others froze
            gc.enable()


@contextlib.contextmanager
def collection_of_a_command(*, is_run: bool) -> Iterator[None]:
    """Collect seldom while one command runs, and not at its end, as the process ends too.

    A run collects as often as ever: its steps may hold much memory in few objects.
    """
    before = gc.get_threshold()
    if not is_run:
        gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.freeze()
