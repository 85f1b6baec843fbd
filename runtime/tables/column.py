"""Column: numbers of one type that only grow, in blocks, so that a copy costs the same however long the column is.

A table of columns is written whole, or as its full blocks of rows, which never change, and the rows after them.
"""

import abc
import array
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np

BLOCK_ROWS = 65_536


class Column(Sequence[Any]):
    """Packed numbers: full blocks, which never change and which copies share, and the newest rows.

    Args:
        typecode: of `array` and NumPy, such as "q" or "d".
    """

    def __init__(self, typecode: str) -> None:
        self.typecode = typecode
        self._blocks: list[np.ndarray] = []
        self._newest: array.array[Any] = array.array(typecode)

    def __len__(self) -> int:
        return len(self._blocks) * BLOCK_ROWS + len(self._newest)

    def __getitem__(self, index: Any) -> Any:
        position = range(len(self))[index]
        block, row = divmod(position, BLOCK_ROWS)
        return self._newest[row] if block == len(self._blocks) else self._blocks[block][row].item()

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain(itertools.chain.from_iterable(block.tolist() for block in self._blocks), self._newest)

    def append(self, value: float) -> None:
        """Add a number; raise OverflowError where it does not fit into the type."""
        self._newest.append(value)
        self._seal()

    def extend(self, numbers: np.ndarray) -> None:
        """Add numbers of this column's type."""
        done = 0
        while done < len(numbers):
            part = numbers[done : done + BLOCK_ROWS - len(self._newest)]
            self._newest.frombytes(np.ascontiguousarray(part, self.typecode).tobytes())
            done += len(part)
            self._seal()

    def _seal(self) -> None:
        if len(self._newest) == BLOCK_ROWS:
            self._blocks.append(np.frombuffer(self._newest, self.typecode))
            self._newest = array.array(self.typecode)

    def keep_newest_block(self) -> None:
        """Drop the numbers of all full blocks but the newest."""
        del self._blocks[:-1]

    def copy(self) -> "Column":
        """Return a column that numbers added to this one do not reach."""
        column = Column(self.typecode)
        column._blocks, column._newest = list(self._blocks), self._newest[:]
        return column

    def to_numpy(self, rows: slice = slice(None)) -> np.ndarray:
        """Return the numbers of `rows`, which is a block, the rows after all blocks, or all rows."""
        begin, end, _ = rows.indices(len(self))
        first, last = begin // BLOCK_ROWS, end // BLOCK_ROWS
        parts = [*self._blocks[first:last]]
        if end > len(self._blocks) * BLOCK_ROWS:
            parts.append(np.array(self._newest, self.typecode))
        return np.concatenate(parts) if parts else np.empty(0, self.typecode)


class BlockedTable(abc.ABC):
    """A table of columns whose full blocks of `BLOCK_ROWS` rows can be written once."""

    _columns: dict[str, Column]

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def copy(self) -> Self:
        """Return a table to which later rows of this one are not added."""
        table = type(self)()
        table._columns = {name: column.copy() for name, column in self._columns.items()}
        return table

    @abc.abstractmethod
    def rows_to_parquet(self, rows: slice) -> bytes:
        """Return a Parquet file of a block, of the rows after all blocks, or of all rows."""

    def forget_blocks(self) -> None:
        """Drop all full blocks but the newest; the rest is a table of the newest rows."""
        for column in self._columns.values():
            column.keep_newest_block()

    @property
    def num_blocks(self) -> int:
        """Number of full blocks of rows."""
        return len(self) // BLOCK_ROWS

    def to_parquet(self) -> bytes:
        """Return a Parquet file of all rows; equal rows give equal bytes (with one version of pyarrow)."""
        return self.rows_to_parquet(slice(None))

    def block_to_parquet(self, index: int) -> bytes:
        """Return a Parquet file of a full block of rows, which never changes."""
        return self.rows_to_parquet(slice(index * BLOCK_ROWS, (index + 1) * BLOCK_ROWS))

    def newest_to_parquet(self) -> bytes:
        """Return a Parquet file of the rows after all full blocks."""
        return self.rows_to_parquet(slice(self.num_blocks * BLOCK_ROWS, len(self)))
