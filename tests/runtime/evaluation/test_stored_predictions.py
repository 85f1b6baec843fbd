"""Stored predictions: a damaged or foreign file is one kind of error, which names the file."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from runtime.evaluation.stored_predictions import COLUMNS, read_predictions, write_predictions
from runtime.tables.parquet_bytes import TableError
from tests.catalogue import expect_error


def table(columns: tuple[str, ...] = COLUMNS) -> pa.Table:
    return pa.table({name: np.random.default_rng(0).normal(size=100) for name in columns})


@pytest.mark.parametrize("place", [0.2, 0.5, 0.999], ids=str)
def test_a_flipped_bit_is_damage(place: float, tmp_path: Path) -> None:
    path = tmp_path / "predictions.parquet"
    write_predictions(str(path), table())
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 1
    path.write_bytes(data)
    with pytest.raises(TableError):
        read_predictions(str(path))


def test_a_file_that_was_cut_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "predictions.parquet"
    write_predictions(str(path), table())
    path.write_bytes(path.read_bytes()[:-5])
    with expect_error(TableError):
        read_predictions(str(path))


def test_a_table_without_a_column_is_refused_unless_it_is_not_read(tmp_path: Path) -> None:
    path = str(tmp_path / "predictions.parquet")
    write_predictions(path, table(COLUMNS[:-1]))
    assert read_predictions(path, COLUMNS[:3]).column_names == [*COLUMNS[:3]]
    with expect_error(TableError):
        read_predictions(path)


def test_a_missing_file_is_no_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_predictions(str(tmp_path / "predictions.parquet"))
