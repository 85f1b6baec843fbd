"""Segments: full blocks of a run's tables, written once and shared by its temporary checkpoints.

The tables take hundreds of megabytes after a million steps. A checkpoint that other programs keep or copy holds them
whole instead.
"""

from collections.abc import Mapping
from typing import Any

from runtime.tables.column import BlockedTable
from runtime.training.checkpoint_files import CheckpointFiles, crc32c

FOLDER = "segments"
"""Name of the folder, beside those of the checkpoints."""

Entries = dict[str, list[dict[str, Any]]]
"""Name of a table's file -> `key`, `size` and `crc32c` of each of its segments, in order."""


class Segments:
    """The segments that one attempt at a phase writes; the tables given to it only grow."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._written: Entries = {}

    def write(self, tables: Mapping[str, BlockedTable]) -> Entries:
        """Write the full blocks that are not written yet; return all of them when they are durable.

        The name of a segment has its checksum: an attempt elsewhere, whose figures round differently, overwrites none.
        """
        found: Entries = {}
        for name, table in tables.items():
            entries = self._written.setdefault(name, [])
            for index in range(len(entries), table.num_blocks):
                data = table.block_to_parquet(index)
                checksum = crc32c(data)
                key = f"{name.removesuffix('.parquet')}-{index:06d}-{checksum:08x}.parquet"
                CheckpointFiles(self._folder).write(key, data)
                entries.append({"key": key, "size": len(data), "crc32c": checksum})
            found[name] = entries[: table.num_blocks]
        return {name: entries for name, entries in found.items() if entries}
