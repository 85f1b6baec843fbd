"""Marks: empty objects that say which done steps a plan must look at more closely, so that it reads no other record.

`marks/<key>/warned`: the record has warnings about its output. `marks/<key>/forced`: an attempt runs the step again. A
killed attempt leaves its mark, so that only a mark with a living lease counts.
"""

import contextlib
from collections.abc import Iterator
from typing import Literal

from marin_dag.store.retry import patiently
from marin_dag.store.store import Store, StoreError

MARKS = "marks"
Mark = Literal["warned", "forced"]


def add_mark(store: Store, key: str, mark: Mark) -> None:
    """Mark the output `key`; do nothing if it is marked."""
    patiently(lambda: store.create(f"{MARKS}/{key}/{mark}", b""))


@contextlib.contextmanager
def marked_as_forced(store: Store, key: str) -> Iterator[None]:
    """Mark the output `key` as long as an attempt runs its step again."""
    add_mark(store, key, "forced")
    try:
        yield
    finally:
        with contextlib.suppress(StoreError):  # without a lease the mark says nothing
            store.delete(f"{MARKS}/{key}/forced")
            store.tidy(f"{MARKS}/{key}/forced")


def marked(store: Store) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {"warned": set(), "forced": set()}
    for entry in store.list(MARKS):
        key, _, mark = entry.path.removeprefix(f"{MARKS}/").partition("/")
        found.setdefault(mark, set()).add(key)
    return found
