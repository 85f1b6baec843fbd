"""LooseFiles: copies of what no manifest knows, as it is now: logs, which may be growing, and what records refer to."""

import contextlib
import gzip
import zlib
from collections.abc import Callable, Iterator

from marin_dag.ledger.provenance import ENVIRONMENTS, environment_path
from marin_dag.ledger.records import Record
from marin_dag.ledger.source_archive import SOURCES
from marin_dag.store.retry import patiently
from marin_dag.store.store import Store, StoreError

BLOCK_IN_BYTES = 8 << 20
STALE_SECONDS = 3600.0
"""Where no lease is held, what a writer has left for so long is nobody's."""


class LooseFiles:
    """Those of `source`, copied to `target`.

    Args:
        source: read, and never written.
        target: where the copies go.
        refuse_cancelled: raises where the copier was told to leave; asked before each file and each block.
    """

    def __init__(self, source: Store, target: Store, refuse_cancelled: Callable[[], None]) -> None:
        self._source, self._target, self._refuse_cancelled = source, target, refuse_cancelled

    def create(self, path: str, *, check: bool = False) -> int:
        """Copies a small file that is created once; one that the source lacks is none. Returns the bytes written.

        One that is there stays, but where it is to be checked, is damaged, and is whole at the source.
        """
        try:
            data = patiently(lambda: self._source.read(path))
        except FileNotFoundError:  # of records from before it was kept
            return 0
        if patiently(lambda: self._target.create(path, data)):
            return len(data)
        if not check or not is_whole(path, data) or is_whole(path, patiently(lambda: self._target.read(path))):
            return 0
        patiently(lambda: self._target.write(path, data))
        return len(data)

    def copy_logs(self, record: Record) -> None:
        """The logs beside the attempt, as they are now; they grow for a while after the record is made."""
        self.copy_grown(*logs_of(record))

    def copy_grown(self, folder: str, starting_with: str) -> None:
        """The files which the source has there and the target has not, or with another size."""
        here = patiently(lambda: self._source.list(folder, starting_with))
        listed = patiently(lambda: self._target.list(folder, starting_with)) if here else []
        there = {entry.path: entry.size_in_bytes for entry in listed}
        grown = [entry.path for entry in here if there.get(entry.path) != entry.size_in_bytes]
        for parent in {path.rpartition("/")[0] for path in grown}:
            self._target.sweep(parent, older_than_seconds=STALE_SECONDS)
        errors: list[StoreError] = []
        for path in grown:
            self._refuse_cancelled()
            try:
                self._copy(path)
            except StoreError as error:  # the others are copied all the same
                errors.append(error)
        if errors:
            raise errors[0]

    def _copy(self, path: str) -> None:
        """One that may be growing, as it is now; nothing, if it is there no more."""

        def blocks() -> Iterator[bytes]:
            with self._source.open(path) as file:
                while block := file.read(BLOCK_IN_BYTES):
                    self._refuse_cancelled()
                    yield block

        with contextlib.suppress(FileNotFoundError):
            patiently(lambda: self._target.write_blocks(path, blocks()))


def logs_of(record: Record) -> tuple[str, str]:
    """Where the logs beside the attempt lie, one a host: the folder, and what their paths in it begin with."""
    beside, _, _ = record.output_path.partition(record.attempt)
    folder, _, inside = beside.partition("/")
    return folder, f"{inside}{record.attempt}."


def is_whole(path: str, data: bytes) -> bool:
    """Whether `data` is what was kept there once, as far as sources and environments tell it of themselves."""
    if path.startswith(f"{SOURCES}/"):
        try:
            gzip.decompress(data)
        except (OSError, EOFError, zlib.error):
            return False
    if path.startswith(f"{ENVIRONMENTS}/"):
        return path == environment_path(data)
    return True
