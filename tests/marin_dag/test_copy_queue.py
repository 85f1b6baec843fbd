"""Pins down: which copies are under way at once."""

import threading
import time

from marin_dag.copy_queue import CopyQueue
from marin_dag.copying import Copied, Copier

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
