"""Direct files: bytes written to a local disk past its page cache, where nobody will read them soon.

A page cache costs the processor far more than the copy of the bytes: 26 MB took 74 ms through it and 2 ms past it, on a
virtual machine whose train step wanted both cores. And others read again what a large checkpoint pushes out of it.
Disks take such writes in whole blocks, from memory that begins at one, so the bytes go through a buffer; the end is
filled up to a block and cut off again.
"""

import contextlib
import errno
import mmap
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from runtime.training.background import step_back

BLOCK_IN_BYTES = 4_096
BUFFER_IN_BYTES = 2**22
WRITERS = 4
UNABLE = (errno.EINVAL, errno.EOPNOTSUPP)
"""What file systems say that have no direct writes, such as those in memory; they are written to like any other."""

_DIRECT = getattr(os, "O_DIRECT", 0)  # only on Linux
_writers = ThreadPoolExecutor(WRITERS, thread_name_prefix="direct file", initializer=step_back)
_of_thread = threading.local()


def start_write(path: str, data: np.ndarray) -> "Future[None]":
    """A future of the durable write of the array's C-order memory; `data` must not change before it is done.

    Until then, and for good if this process dies, the file may hold a part of the bytes.
    """
    return _writers.submit(_write, Path(path), np.ascontiguousarray(data).reshape(-1).view(np.uint8))


def _write(path: Path, data: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if not _DIRECT:
            raise OSError(errno.EOPNOTSUPP, "no direct writes on this platform")
        with _opened(path, _DIRECT) as file:
            _write_blocks(file, data)
    except OSError as error:
        if error.errno not in UNABLE:
            raise
        with _opened(path, 0) as file:
            _write_all(file, data.data)
    flush_folder(path.parent)


def flush_folder(path: Path) -> None:
    """Makes the names in a folder durable."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """A new file, synced at the end."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flags, 0o666)
    try:
        yield file
        os.fsync(file)
    finally:
        os.close(file)


def _write_blocks(file: int, data: np.ndarray) -> None:
    buffer = _buffer()
    for start in range(0, len(data), BUFFER_IN_BYTES):
        piece = data[start : start + BUFFER_IN_BYTES]
        whole = -(-len(piece) // BLOCK_IN_BYTES) * BLOCK_IN_BYTES
        memory = np.frombuffer(buffer, np.uint8)
        memory[: len(piece)] = piece
        memory[len(piece) : whole] = 0
        _write_all(file, memoryview(buffer)[:whole])
    os.ftruncate(file, len(data))


def _write_all(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]


def _buffer() -> mmap.mmap:
    """Of this thread; begins at a page."""
    if not hasattr(_of_thread, "buffer"):
        _of_thread.buffer = mmap.mmap(-1, BUFFER_IN_BYTES)
    return _of_thread.buffer
