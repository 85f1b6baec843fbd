"""Shard records: the small objects below `work/<digest>/` that say which shards of a step are finished."""

import contextlib
from collections.abc import Iterable

from marin_dag.store.store import Store


def num_kept(paths: Iterable[str]) -> int:
    """Number of shards that are finished, each once, of the files below a work folder."""
    return len({(path.rpartition("/")[0], key_and_epoch(path)[0]) for path in paths if path.startswith("shards/")})


def carried_shards(store: Store, old_digest: str, new_digest: str) -> None:
    """Lets a step take over what was finished under another digest of its own."""
    for entry in store.list(f"work/{old_digest}/shards"):
        folder, _, name = entry.path.removeprefix(f"work/{old_digest}/").rpartition("/")
        with contextlib.suppress(FileNotFoundError):
            # Older than any epoch of the new digest.
            path = f"work/{new_digest}/{folder}/{key_and_epoch(name)[0]}.{0:08d}.json"
            store.create(path, store.read(entry.path))


def key_and_epoch(path: str) -> tuple[str, int]:
    """What a finished shard is, and the lease's epoch in which it was finished; 0 where records did not say."""
    key, _, epoch = path.rpartition("/")[2].removesuffix(".json").partition(".")
    return key, int(epoch or 0)
