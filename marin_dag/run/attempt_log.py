"""AttemptLog: the log file beside an attempt, without secrets, readable while the step runs."""

import codecs
import contextlib
import ctypes
import io
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

from marin_dag.run.error_filter import redact_standard_error
from marin_dag.store.local import LocalStore
from marin_dag.store.redact import remember_field
from marin_dag.store.redacted_output import LinesWithoutSecrets, Redaction
from marin_dag.store.store import LIMITS, Store, StoreError
from marin_dag.values.walk import children

UPLOAD_SECONDS = 15.0
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
STANDARD_OUTPUT = 1
FREED_BYTES = 1 << 20
"""Captured output is deleted from the disk in pieces of this size when it is passed on."""
CHILD_OUTPUT_SECONDS = 0.2


def step_logger(name: str) -> logging.Logger:
    """Return the logger of a step. Only the first call sets a level: that clears a cache of each logger there is."""
    steps = logging.getLogger("step")
    if steps.level != logging.INFO:
        steps.setLevel(logging.INFO)
    return steps.getChild(name)


def remember_secrets(config: object) -> None:
    """Let this process hide the values of fields of `config` with names of secrets, wherever they appear later."""
    pending = [config]
    for value in pending:
        for name, item in children(value):
            remember_field(name, item)
            pending.append(item)


class AttemptLog(io.TextIOBase):
    """Context manager that writes what this process logs, and what is printed to it, to `{path}` in the store.

    On a disk the file grows line by line. An object cannot grow, so on Cloud Storage the whole file is written every
    UPLOAD_SECONDS and at the end.
    """

    def __init__(self, store: Store, path: str, logger: logging.Logger) -> None:
        self._store = store
        self._path = path
        self._logger = logger
        self._ended = threading.Event()
        self._uploader: threading.Thread | None = None
        self._lost: OSError | None = None
        """The error that lost some of the log."""

    def __enter__(self) -> "AttemptLog":
        self._file: IO[str]
        if isinstance(self._store, LocalStore):
            target = Path(self._store.url(self._path))
            self._file = target.open("a", buffering=1, encoding="utf-8", errors="replace")
        else:
            self._file = tempfile.NamedTemporaryFile("w+", buffering=1, suffix=".log", errors="replace")
            self._uploader = threading.Thread(target=self._upload_repeatedly, name="log upload", daemon=True)
            self._uploader.start()
        self._printed = LinesWithoutSecrets(self._write)
        self._handler = _Handler(self._write)
        logging.getLogger().addHandler(self._handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger().removeHandler(self._handler)
        self._printed.close()
        if self._uploader is not None:
            self._ended.set()
            self._uploader.join()
            self._upload()
        with self._full_disk_noted():
            self._file.close()
        # On a local disk the step itself fails with the same error.
        if self._lost is not None and self._uploader is not None:
            self._logger.warning("some of the log %s is lost: %s", self._path, self._lost)

    @contextlib.contextmanager
    def capturing_prints(self) -> Iterator[None]:
        """Write the output of this process and its children; below Python, standard error is only redacted."""
        redact_standard_error()
        with contextlib.redirect_stdout(self), contextlib.redirect_stderr(self), child_output(self._write):
            yield

    def write(self, text: str) -> int:
        """Write what a step prints, line by line: a piece of a line may be a piece of a secret."""
        return self._printed.write(text)

    def _write(self, text: str) -> None:
        with self._full_disk_noted():
            self._file.write(text)

    def _upload_repeatedly(self) -> None:
        while not self._ended.wait(UPLOAD_SECONDS):
            self._upload()

    def _upload(self) -> None:
        with self._full_disk_noted():
            self._file.flush()
        try:
            self._store.write(self._path, Path(self._file.name).read_bytes())
        except StoreError as error:  # the next upload has all of it; a log fails no step
            self._logger.warning("the log %s could not be written: %s", self._path, error)

    @contextlib.contextmanager
    def _full_disk_noted(self) -> Iterator[None]:
        """Note an error about a full disk instead of raising it: a log fails no step."""
        try:
            yield
        except OSError as error:
            if error.errno not in LIMITS:
                raise
            self._lost = error


@contextlib.contextmanager
def child_output(write: Callable[[str], object] | None = None) -> Iterator[None]:
    """Redact what children and native libraries write to standard output, and pass it on, or give it to `write`."""
    kept = os.dup(STANDARD_OUTPUT)
    # No pipe: a full one would stop a library that prints while it holds Python's lock.
    captured = tempfile.TemporaryFile()  # noqa: SIM115 -- closed below
    ended = threading.Event()

    def pump() -> None:
        lines = LinesWithoutSecrets(write or (lambda text: os.write(kept, text.encode(errors="replace"))))
        decoder, is_last = codecs.getincrementaldecoder("utf-8")("replace"), False
        offset = freed = 0
        with contextlib.suppress(OSError):  # the reader of standard output has gone
            while not is_last:
                is_last = ended.wait(CHILD_OUTPUT_SECONDS)
                while data := os.pread(captured.fileno(), 1 << 16, offset):
                    offset += len(data)
                    lines.write(decoder.decode(data))
                    freed = _free(captured.fileno(), freed, offset)
            lines.close()

    thread = threading.Thread(target=pump, name="child output", daemon=True)
    thread.start()
    os.dup2(captured.fileno(), STANDARD_OUTPUT)
    try:
        yield
    finally:
        os.dup2(kept, STANDARD_OUTPUT)
        ended.set()
        thread.join()
        captured.close()
        os.close(kept)


def _free(descriptor: int, freed: int, end: int) -> int:
    """Free the disk blocks of a file up to `end`, a block at a time; return the end of the freed bytes.

    Linux can punch a hole into a file that other processes append to. If that fails, the file keeps its bytes.
    """
    if end - freed < FREED_BYTES or sys.platform != "linux":
        return freed
    keep_size_and_punch_hole = 3
    ctypes.CDLL(None).fallocate(descriptor, keep_size_and_punch_hole, ctypes.c_int64(0), ctypes.c_int64(end))
    return end


@contextlib.contextmanager
def child_output_in_place() -> Iterator[None]:
    """Redact the output of child processes on its way, except to a terminal, where a person may debug."""
    redact_standard_error(again=True)
    with contextlib.nullcontext() if os.isatty(STANDARD_OUTPUT) else child_output():
        yield


class _Handler(logging.Handler):
    def __init__(self, write: Callable[[str], object]) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(FORMAT))
        self._write = write
        self._redact = Redaction()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write(f"{self._redact(self.format(record))}\n")
        except Exception:
            self.handleError(record)
