"""Wishes of somebody at another terminal about a detached run: to stop, and then to end at once.

They lie in the store, which every terminal and the driver reach, whichever way the cluster is reached. Ray hands a job
one signal and no more, so the driver looks for the second wish itself, while it drains.

They are no tellings (`told.py`), which are of a step, whichever run is at work on it, and stay, with an answer: a wish
is of one run, answered by its end and deleted then, and costs the driver one question a second in place of a listing.
"""

import time

from marin_dag.store import Store

WISHES = "wishes"
WISH_POLL_SECONDS = 1.0
RUN_NAME = "MARIN_DAG_RUN"
"""Set in the driver of a detached run: its name."""


class Wishes:
    """What was asked of the detached run called `name`."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._last_look = -WISH_POLL_SECONDS

    def stop(self) -> bool:
        """Notes that the run was asked to stop; False if it was before."""
        return self._store.create(self._path("stop"), b"")

    def end(self) -> None:
        """Asks it to end at once."""
        self._store.create(self._path("end"), b"")

    def is_to_end(self) -> bool:
        """Whether it is to end at once; asked of the store at most every WISH_POLL_SECONDS."""
        if time.monotonic() - self._last_look < WISH_POLL_SECONDS:
            return False
        self._last_look = time.monotonic()
        return self._store.exists(self._path("end"))

    def forget(self) -> None:
        """When the run has ended: its name never comes again."""
        for what in ("stop", "end"):
            self._store.delete(self._path(what))

    def _path(self, what: str) -> str:
        return f"{WISHES}/{self._name}/{what}"
