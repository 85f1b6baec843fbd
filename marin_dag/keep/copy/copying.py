"""Copier: one committed output to another prefix, each file compared there with the manifest before the record is made.

The copy of an output is an output like any other: it exists if and only if its record does, which is created last and
create-only, under the lease that the step has at the target. So half a copy is never seen, of two copiers one waits,
and nothing is deleted there under a copy's hands.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Literal, NamedTuple

import google_crc32c

from marin_dag.errors import UserError
from marin_dag.keep.copy.copy_errors import AtWorkThereError, CopyCancelledError, DamagedSourceError, said_of
from marin_dag.keep.copy.loose_files import LooseFiles
from marin_dag.ledger.damage import Finding
from marin_dag.ledger.epoch import Epoch, LeaseLostError
from marin_dag.ledger.lease import COPIES, Held, Lease, Leases
from marin_dag.ledger.records import (
    CHECKSUM_THREADS,
    FileEntry,
    Record,
    Records,
    UnreadableRecordError,
    record_path,
)
from marin_dag.ledger.source_archive import SOURCES
from marin_dag.store.retry import TRANSIENT_NUMBERS, patiently
from marin_dag.store.store import Store, StoreError, explain_os_error

BLOCK_IN_BYTES = 8 << 20
"""What is in memory of each of the `CHECKSUM_THREADS` files under way, beside the buffers of a client."""
FILES_AT_HAND = 2 * CHECKSUM_THREADS
"""Of one output that wait for a thread: another output need not wait for 100,000 of them."""
POLL_SECONDS = 1.0

What = Literal["copied", "there", "mended", "anothers", "gone"]


class Copied(NamedTuple):
    """What became of one output: `anothers` is there from another attempt, `gone` was collected at the source."""

    key: str
    what: What
    record: Record | None
    num_files: int = 0
    """That were written; what was there with the right checksum is not among them."""
    size_in_bytes: int = 0
    """Of those."""
    seconds: float = 0.0
    is_same: bool = True
    """Whether what is there has the files of the record."""


class _BadFileError(Exception):
    def __init__(self, finding: Finding) -> None:
        super().__init__(finding)
        self.finding = finding


class Copier:
    """Copies outputs from `source` to `target`; several may be under way, not two of one digest.

    Args:
        source: read, and never written.
        target: where the copies go.
        say: takes a line for the user, from any thread.
        check: whether what is there already is compared with its record too, and replaced where it is damaged.
        option: by which the user gave the target.
    """

    def __init__(
        self,
        source: Store,
        target: Store,
        *,
        say: Callable[[str], None] = lambda text: None,
        check: bool = False,
        option: str = "--to",
    ) -> None:
        self.source, self.target, self.option = source, target, option
        self.records, self.target_records = Records(source), Records(target)
        self.bytes_done = 0
        """Of files written or found right, since the beginning; for progress."""
        self.loose = LooseFiles(source, target, self.refuse_cancelled)
        self._say, self.check = say, check
        self._named: set[str] = set()
        """Paths that records refer to, and that are at the target: most outputs share them."""
        self._files = ThreadPoolExecutor(CHECKSUM_THREADS, thread_name_prefix="copy")
        self._cancelled = threading.Event()
        self._counting = threading.Lock()
        self._of_digest: dict[str, threading.Lock] = {}

    def cancel(self) -> None:
        """What is under way ends between two blocks, and leaves what it has for the next copy."""
        self._cancelled.set()

    @property
    def is_cancelled(self) -> bool:
        """Whether it was told to leave."""
        return self._cancelled.is_set()

    def close(self) -> None:
        """Waits for the threads."""
        self._files.shutdown(cancel_futures=True)

    def copy(self, key: str) -> Copied:
        """Makes the output `key` exist at the target too.

        Raises:
            DamagedSourceError: of files that are not as recorded; the others are at the target, without a record.
            AtWorkThereError: somebody else holds the step there.
            StoreError: either store.
            LeaseLostError: its lease there was lost; the next try finds what there is.
            CopyCancelledError: see `cancel`.
        """
        begun = time.monotonic()
        record = self.records.find(key)
        if record is None:
            return Copied(key, "gone", None)
        there = self._record_there(record)
        if there is not None and self._stays(record, there):
            return _as_there(record, there)
        try:
            copied = self._under_lease(record)
        except DamagedSourceError:
            if self.records.find(key) is None:  # `gc` has taken it away meanwhile
                return Copied(key, "gone", None)
            raise
        return copied._replace(seconds=time.monotonic() - begun)

    def _record_there(self, record: Record) -> Record | None:
        """What the target has under its key; refuses what no copier and no attempt would have written there."""
        try:
            there = self.target_records.find(record.key)
            is_damaged = there is not None and there.attempt == record.attempt and there != record
        except UnreadableRecordError:
            is_damaged = True
        if is_damaged:
            path = self.target.url(record_path(record.key))
            raise UserError(f"its record at the target is damaged; delete {path}, and run the same command again.")
        return there

    def _stays(self, record: Record, there: Record) -> bool:
        """Whether what is there is left as it is: always where another attempt made other files."""
        return not (self.check and there.manifest == record.manifest)

    def _under_lease(self, record: Record) -> Copied:
        with self.leased(record.digest, label(record)) as lease:
            there = self._record_there(record)  # another copier may have made it while this one waited
            if there is not None and self._stays(record, there):
                return _as_there(record, there)
            folder = (there or record).output_path
            num_files, size = self.copy_files(record.output_path, folder, record.manifest, lease)
            if there is not None:
                return self._mended(record, there, num_files, size)
            self._copy_what_it_names(record)
            winner = Epoch(self.target, record.digest, lease.epoch).commit(record)
            if winner.attempt != record.attempt:
                return _as_there(record, winner)
            return Copied(record.key, "copied", record, num_files, size)

    def _mended(self, record: Record, there: Record, num_files: int, size: int) -> Copied:
        """Of an output whose files are right by now, so many of them written: what leads to it and explains it, too."""
        self.target_records.commit(there)  # it is there; its name or the mark of its code may be lost
        sizes = self._copy_what_it_names(record) if there.attempt == record.attempt else []
        num_files += len(sizes)
        return Copied(record.key, "mended" if num_files else "there", there, num_files, size + sum(sizes))

    @contextlib.contextmanager
    def leased(self, digest: str, name: str) -> Iterator[Lease]:
        """The lease of a step at the target, for the block; one thread of this copier has it at a time.

        Raises:
            AtWorkThereError: somebody else makes the step there.
            CopyCancelledError: see `cancel`.
            StoreError: the target.
        """
        leases = Leases(self.target)
        with self._counting:
            one_at_a_time = self._of_digest.setdefault(digest, threading.Lock())
        try:
            with one_at_a_time:
                lease = self._lease(leases, digest, name)
                try:
                    yield lease
                finally:
                    with contextlib.suppress(StoreError):  # it goes stale by itself
                        lease.release()
        finally:
            leases.close()

    def _lease(self, leases: Leases, digest: str, name: str) -> Lease:
        is_told = False
        # Whoever works asks `is_lost` before each block, and needs no call.
        while isinstance(got := leases.acquire(digest, f"copy of {name}", lambda: None, does=COPIES), Held):
            holder = got.holder
            who = f"{holder.host} pid {holder.pid}"
            if holder.does != COPIES:
                raise AtWorkThereError(f"{who} is at work on it there since {holder.since}; it is left to that")
            if not is_told:
                is_told = True
                self._say(f"{name}: {who} copies it there too; waiting for it")
            if self._cancelled.wait(POLL_SECONDS):
                raise CopyCancelledError
        return got

    def copy_files(
        self, source_folder: str, folder: str, manifest: Sequence[FileEntry], lease: Lease
    ) -> tuple[int, int]:
        """Makes these files of `source_folder` exist in `folder` at the target; number and size of those written.

        Raises: as `copy` does; of an interrupt that comes meanwhile, when nothing is written any more.
        """
        self.target.make_folder(folder)  # a step may list what another left, and that may be nothing
        self.target.sweep(folder)  # nobody else writes there
        listed = patiently(lambda: self.target.list(folder))
        there = {entry.path.removeprefix(f"{folder}/"): entry.size_in_bytes for entry in listed}
        given_up, at_hand = threading.Event(), threading.BoundedSemaphore(FILES_AT_HAND)

        def copied(entry: FileEntry) -> bool | None:
            try:
                if given_up.is_set():
                    return None
                return self._copy_file(source_folder, folder, entry, there.get(entry.path), lease)
            except _BadFileError:  # all that is damaged is told at once
                raise
            except BaseException:
                given_up.set()
                raise
            finally:
                at_hand.release()

        futures = []
        try:
            for entry in manifest:
                at_hand.acquire()
                futures.append(self._files.submit(copied, entry))
            wait(futures)  # the lease is held as long as one of them writes
        except KeyboardInterrupt:
            self.cancel()
            wait(futures)
            raise
        errors = [error for future in futures if (error := future.exception()) is not None]
        of_futures = list(zip(manifest, futures, strict=True))
        if errors:  # the next try finds these right, and counts them
            done = (entry for entry, future in of_futures if future.exception() is None and future.result() is not None)
            self._count(-sum(entry.size_in_bytes for entry in done))
        for error in errors:
            if not isinstance(error, _BadFileError):
                raise error
        if errors:
            raise DamagedSourceError(
                source_folder, [error.finding for error in errors if isinstance(error, _BadFileError)]
            )
        written = [entry for entry, future in of_futures if future.result()]
        return len(written), sum(entry.size_in_bytes for entry in written)

    def _copy_file(
        self, source_folder: str, folder: str, entry: FileEntry, size_there: int | None, lease: Lease
    ) -> bool:
        """Whether it had to be written."""
        path, target = f"{source_folder}/{entry.path}", f"{folder}/{entry.path}"
        wanted = entry.size_in_bytes, entry.crc32c
        is_there = size_there == entry.size_in_bytes and patiently(lambda: self.target.settle(target)) == wanted
        if not is_there:
            patiently(lambda: self._write(path, target, entry, lease))
        else:
            self._count(entry.size_in_bytes)
        return not is_there

    def _write(self, path: str, target: str, entry: FileEntry, lease: Lease) -> None:
        self._refuse_lost(lease)
        sent = 0

        def blocks() -> Iterator[bytes]:
            nonlocal sent
            for block in self._checked_blocks(path, entry):
                self._refuse_lost(lease)
                sent += len(block)
                self._count(len(block))
                yield block

        try:
            if path == target and self.target.can_copy_from(self.source):
                self._refuse_damaged(path, entry)
                self.target.copy_from(self.source, path)
                sent = entry.size_in_bytes
                self._count(sent)
            else:
                try:
                    self.target.write_blocks(target, blocks())
                except FileNotFoundError as error:  # who took the lease over has swept it away
                    raise StoreError(f"{self.target.url(target)}: gone while written", is_transient=True) from error
            found = self.target.settle(target)
            if found != (entry.size_in_bytes, entry.crc32c):
                raise StoreError(
                    f"{self.target.url(target)}: what the store holds has {found[0]} bytes and CRC32C {found[1]}, and "
                    f"{entry.size_in_bytes} and {entry.crc32c} were sent; run the same command again.",
                    is_transient=True,
                )
        except BaseException:
            self._count(-sent)
            raise

    def _refuse_damaged(self, path: str, entry: FileEntry) -> None:
        """Of a store that knows the checksums of what it holds: before anything is copied inside it."""
        try:
            size, checksum = self.source.settle(path)
        except FileNotFoundError:
            raise _BadFileError(Finding(entry.path, "is missing")) from None
        _refuse_other_bytes(entry, size, checksum)

    def _checked_blocks(self, path: str, entry: FileEntry) -> Iterator[bytes]:
        """The bytes of a file; of one that is not as recorded the last block never comes."""
        checksum, size, held = google_crc32c.Checksum(), 0, b""
        try:
            with self.source.open(path) as file:
                while block := file.read(BLOCK_IN_BYTES):
                    checksum.update(block)
                    size += len(block)
                    if held:
                        yield held
                    held = block
        except FileNotFoundError:
            raise _BadFileError(Finding(entry.path, "is missing")) from None
        except OSError as error:  # of the disk that is read, told as that of the one which is written otherwise
            passes = error.errno in TRANSIENT_NUMBERS
            raise StoreError(explain_os_error(error, self.source.url(path)), is_transient=passes) from error
        _refuse_other_bytes(entry, size, checksum.digest().hex())
        yield held

    def _copy_what_it_names(self, record: Record) -> list[int]:
        """What the record refers to, and the log beside its attempt as it is now; the bytes of each file written, but
        for the logs, which grow."""
        paths = {record.provenance.environment}
        if "code" in record.identity:
            paths.add(f"{SOURCES}/{record.identity['code']['fingerprint']}.json.gz")
        sizes = [self.loose.create(path, check=self.check) for path in sorted(paths - self._named)]
        self._named |= paths
        self.loose.copy_logs(record)
        return [size for size in sizes if size]

    def said(self, error: Exception, *, told: set[str] | None = None) -> str:
        """First lines of an error, as the user who named the target by an option is to read them; see `said_of`."""
        return said_of(error, self.source, self.option, told)

    def refuse_cancelled(self) -> None:
        """Raises CopyCancelledError where it was told to leave."""
        if self._cancelled.is_set():
            raise CopyCancelledError

    def _refuse_lost(self, lease: Lease) -> None:
        self.refuse_cancelled()
        if lease.is_lost:
            raise LeaseLostError("the lease at the target was lost, for want of a heartbeat; its copy begins again.")

    def _count(self, size: int) -> None:
        with self._counting:
            self.bytes_done += size


def _refuse_other_bytes(entry: FileEntry, size: int, checksum: str) -> None:
    if size != entry.size_in_bytes:
        raise _BadFileError(Finding(entry.path, f"has {size} bytes, recorded {entry.size_in_bytes}"))
    if checksum != entry.crc32c:
        raise _BadFileError(Finding(entry.path, f"has CRC32C {checksum}, recorded {entry.crc32c}"))


def _as_there(record: Record, there: Record) -> Copied:
    what: What = "there" if there.attempt == record.attempt else "anothers"
    is_same = there.manifest == record.manifest and there.result == record.result
    return Copied(record.key, what, there, is_same=is_same)


def label(record: Record) -> str:
    """What a person calls an output."""
    return record.name if record.milestone is None else f"{record.name}@{record.milestone}"
