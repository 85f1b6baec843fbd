"""Work files: what lies below `work/<digest>/`, the state that an unfinished step resumes from.

A step may mark a folder there as one to keep, by a file named `KEEP_MARKER` in it. Such a folder is kept as long as the
output of its step. A folder whose name ends in `-epoch-N` belongs to the attempt with lease epoch N.
"""

import re
from collections.abc import Iterable

from marin_dag.store.store import Entry

WORK = "work"
EVENTS = "events"
"""Folder of event logs: how the output was made, on which hardware, and what went wrong."""
KEEP_MARKER = "good.json"
SEALS = (KEEP_MARKER, "manifest.json")
"""Files that declare the files beside them complete. `gc` deletes them first and a copy writes them last, so a kill
leaves nothing that looks complete and is not."""
LEASE_EPOCH = re.compile(r"(?<=-epoch-)\d+(?=/|$)")


def kept_folders(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Return the files of each marked folder; `entries` are files below the work folders of steps."""
    entries = list(entries)
    marked = (entry.path.removesuffix(f"/{KEEP_MARKER}") for entry in entries if entry.path.endswith(f"/{KEEP_MARKER}"))
    marks = {folder for folder in marked if folder.count("/") >= 2}  # below work/<digest>, never all of it
    found: dict[str, list[Entry]] = {folder: [] for folder in sorted(marks)}
    for entry in entries:
        folders = entry.path.split("/")
        inside = next((f for n in range(len(folders)) if (f := "/".join(folders[:n])) in marks), None)
        if inside is not None:
            found[inside].append(entry)
    return found


def seal_rank(path: str) -> int:
    """Return the place of a file among `SEALS`; other files come after them."""
    name = path.rpartition("/")[2]
    return SEALS.index(name) if name in SEALS else len(SEALS)


def without_lease_epoch(path: str) -> str:
    """Return the path under lease epoch 0, which no attempt has: for copies at another prefix, with its own leases."""
    return LEASE_EPOCH.sub(lambda epoch: "0" * len(epoch[0]), path)


def num_finished_shards(paths: Iterable[str]) -> int:
    """Return the number of finished shards among the files of a work folder."""
    return len({(path.rpartition("/")[0], key_and_epoch(path)[0]) for path in paths if path.startswith("shards/")})


def key_and_epoch(path: str) -> tuple[str, int]:
    """Return the key of a finished shard and the lease epoch in which it was finished."""
    key, _, epoch = path.rpartition("/")[2].removesuffix(".json").partition(".")
    return key, int(epoch or 0)
