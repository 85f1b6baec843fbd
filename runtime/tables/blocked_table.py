"""Blocked table: rows that only grow, written whole or as full blocks, which never change, and the rows after them."""

import abc

from runtime.tables import column


class BlockedTable(abc.ABC):
    """A table of columns whose full blocks of `column.BLOCK_ROWS` rows can be written once."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def rows_to_parquet(self, rows: slice) -> bytes:
        """Return a Parquet file of a block, of the rows after all blocks, or of all rows."""

    @property
    def num_blocks(self) -> int:
        """Number of full blocks of rows."""
        return len(self) // column.BLOCK_ROWS

    def to_parquet(self) -> bytes:
        """Return a Parquet file of all rows; equal rows give equal bytes (with one version of pyarrow)."""
        return self.rows_to_parquet(slice(None))

    def block_to_parquet(self, index: int) -> bytes:
        """Return a Parquet file of a full block of rows, which never changes."""
        return self.rows_to_parquet(slice(index * column.BLOCK_ROWS, (index + 1) * column.BLOCK_ROWS))

    def newest_to_parquet(self) -> bytes:
        """Return a Parquet file of the rows after all full blocks."""
        return self.rows_to_parquet(slice(self.num_blocks * column.BLOCK_ROWS, len(self)))
