"""Segments: full blocks of a run's tables, written once and linked into each of its checkpoints.

The tables take hundreds of megabytes after a million steps. A save writes only the rows after the newest full block,
and every checkpoint is whole by itself.
"""

from collections.abc import Mapping

from runtime.tables.column import BlockedTable
from runtime.training.checkpoint_files import CheckpointFiles, recorded

FOLDER = "segments"
"""Name of the folder, beside those of the temporary checkpoints."""


def part_key(table: str, index: int) -> str:
    """Return the key of a part of a table, beside a checkpoint."""
    return f"{table}/{index:06d}.parquet"


class Segments:
    """The segments that one attempt at a phase writes; the tables given to it only grow."""

    def __init__(self, folder: str) -> None:
        self._files = CheckpointFiles(folder)
        self._written: dict[str, list[tuple[str, dict[str, int]]]] = {}

    def link(self, tables: Mapping[str, BlockedTable], files: CheckpointFiles) -> dict[str, dict[str, int]]:
        """Write the full blocks that are not written yet, and link all of them into `files`.

        The name of a segment has its checksum: an attempt elsewhere, whose figures round differently, overwrites none.

        Returns:
            Size and CRC32C of each linked file, by its key.
        """
        sources, found = {}, {}
        for name, table in tables.items():
            blocks = self._written.setdefault(name, [])
            for index in range(len(blocks), table.num_blocks):
                data = table.block_to_parquet(index)
                entry = recorded(data)
                segment = f"{name.removesuffix('.parquet')}-{index:06d}-{entry['crc32c']:08x}.parquet"
                self._files.write(segment, data)  # a block counts as written once it is
                blocks.append((segment, entry))
            for index, (segment, entry) in enumerate(blocks[: table.num_blocks]):
                key = part_key(name, index)
                sources[key], found[key] = segment, entry
        files.link(sources, self._files)
        return found
