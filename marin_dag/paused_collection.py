"""Collection: Python's own garbage collector, made to wait.

A plan makes some million objects (syntax trees, identities) and keeps nearly all of them; looking among them for
circles again and again took a third of its time. A command that looks imports and reads as much, and what it has made
goes with its process: to look for circles among it all once more at the end took as long as the command.
"""

import contextlib
import gc
from collections.abc import Iterator

SELDOM = 50_000, 20, 100
"""Objects made before the young ones are looked through, and how often that is before those that stayed are: Python
looks at every 700th."""


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """No circles are looked for inside; what was on before is on again after it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextlib.contextmanager
def collection_of_a_command(*, is_run: bool) -> Iterator[None]:
    """Of a process that carries out one command and ends: in the end no circles are looked for.

    While it goes on they are, seldom; and as often as ever by a run, whose steps may hold much memory in few objects.
    """
    before = gc.get_threshold()
    if not is_run:
        gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.freeze()
