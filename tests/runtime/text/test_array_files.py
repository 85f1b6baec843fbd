"""Array files: rows round trip on disks and stores, and little else is read."""

import uuid

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from runtime.text.array_files import num_rows, read_bytes, read_rows, write_array
from tests.catalogue import expect_error

ROWS = np.random.default_rng(0).integers(0, 1 << 32, (3_000, 112), np.uint32)
ROW_BYTES = 4 * 112


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Return paths of the same rows on a disk and in a store."""
    found = [str(tmp_path_factory.mktemp("rows") / "rows.npy"), f"memory://{uuid.uuid4().hex}/rows.npy"]
    for path in found:
        write_array(path, ROWS)
    return found


@given(st.sets(st.integers(0, len(ROWS) - 1), max_size=40))
def test_read_rows_match_the_array(paths, numbers):
    rows = np.array(sorted(numbers), np.int64)
    for path in paths:
        assert num_rows(path) == len(ROWS)
        assert np.array_equal(read_rows(path, rows), ROWS[rows])


def test_a_store_is_asked_for_little_more_than_the_rows(paths, monkeypatch):
    read = []
    one = MemoryFileSystem.cat_file

    def noted(self, path, start=None, end=None, **options):
        read.append(end - start)
        return one(self, path, start=start, end=end, **options)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", noted)
    read_rows(paths[1], np.array([3, 1_500, 1_510, 2_999]))
    assert sorted(read) == [128, ROW_BYTES, ROW_BYTES, 11 * ROW_BYTES]


def test_a_file_that_is_cut_short_is_refused(paths):
    path = f"memory://{uuid.uuid4().hex}/short.bin"
    with fsspec.open(path, "wb") as file:
        file.write(bytes(10))
    assert read_bytes(path, 2, 10) == bytes(8)
    with expect_error(ValueError):
        read_bytes(path, 0, 16)
    with expect_error(ValueError):
        num_rows(path)


def test_a_file_of_another_shape_is_refused(tmp_path):
    np.save(tmp_path / "line.npy", np.arange(4))
    with expect_error(ValueError):
        num_rows(str(tmp_path / "line.npy"))
