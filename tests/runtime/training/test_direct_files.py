"""Pins down: a direct file holds the bytes of the array, whatever its size and wherever it lies."""

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from runtime.training import direct_files
from runtime.training.direct_files import BLOCK_IN_BYTES, BUFFER_IN_BYTES, start_write
from tests.catalogue import expect_error


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """On a disk, where other tests write into memory."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    "size", [0, 1, BLOCK_IN_BYTES - 1, BLOCK_IN_BYTES, BUFFER_IN_BYTES, BUFFER_IN_BYTES + BLOCK_IN_BYTES + 3]
)
def test_every_byte_and_no_other_is_in_the_file(tmp_path: Path, size: int) -> None:
    path = tmp_path / "new" / "folder" / "file"
    for _ in range(2):  # the second over the first, from a buffer that has held another
        data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
        start_write(str(path), data).result()
        assert path.read_bytes() == data.tobytes()
        start_write(str(path), np.zeros(3, np.uint8)).result()
        assert path.read_bytes() == bytes(3)


def test_an_array_counts_as_its_memory_in_c_order(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6).T
    start_write(str(tmp_path / "file"), array).result()
    assert (tmp_path / "file").read_bytes() == array.tobytes(order="C")


@pytest.mark.parametrize("flags", [direct_files._DIRECT, 0], ids=["direct", "as any other"])
def test_the_file_and_then_its_folder_are_flushed_to_the_disk_before_a_write_counts_as_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int
) -> None:
    path, data = tmp_path / "new" / "file", np.arange(5_000, dtype=np.int64)
    fsync, flushed = os.fsync, []

    def noting(file: int) -> None:
        fsync(file)
        of = Path(os.readlink(f"/proc/self/fd/{file}"))  # noqa: PTH115 -- of a descriptor
        flushed.append((of, path.stat().st_size))

    monkeypatch.setattr(direct_files, "_DIRECT", flags)
    monkeypatch.setattr(direct_files.os, "fsync", noting)
    start_write(str(path), data).result()
    assert flushed == [(path, data.nbytes), (path.parent, data.nbytes)]  # and the file as long as it will stay


def test_where_the_file_system_has_no_direct_writes_the_bytes_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refused(path: Path, flags: int, *mode: int) -> int:
        if flags & direct_files._DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return opened(path, flags, *mode)

    monkeypatch.setattr(direct_files.os, "open", refused)
    start_write(str(tmp_path / "file"), np.arange(5_000, dtype=np.int64)).result()
    assert (tmp_path / "file").read_bytes() == np.arange(5_000, dtype=np.int64).tobytes()


def test_what_the_disk_refuses_is_an_error_and_not_a_shorter_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(direct_files.os, "write", full)
    with expect_error(OSError):
        start_write(str(tmp_path / "file"), np.zeros(9, np.uint8)).result()
