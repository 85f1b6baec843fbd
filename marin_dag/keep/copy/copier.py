"""Copier: copies one output to another prefix and compares each file there with the manifest.

A copy is an output like any other: its record is created last and create-only, under the lease of its step at the
target. So no reader sees half a copy, of two copiers one waits, and `gc` deletes nothing that is being copied.
"""

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Literal, NamedTuple

import google_crc32c

from marin_dag.errors import UserError
from marin_dag.ledger.attempt_files import logs_of
from marin_dag.ledger.damage import Finding, compare, finding_lines
from marin_dag.ledger.epoch import Epoch, LeaseLostError
from marin_dag.ledger.lease import COPIES, Held, Lease, Leases
from marin_dag.ledger.records import CHECKSUM_THREADS, FileEntry, Record, Records, UnreadableRecordError, record_path
from marin_dag.ledger.source_archive import source_path
from marin_dag.ledger.work_files import EVENTS, WORK
from marin_dag.store.retry import patiently
from marin_dag.store.store import Store, StoreError

POLL_SECONDS = 1.0


class Copied(NamedTuple):
    """The outcome of a copy: `gone` means that `gc` has deleted the output at the source."""

    outcome: Literal["copied", "repaired", "there", "other attempt", "gone"]
    num_files: int = 0
    size_in_bytes: int = 0


class DamagedSourceError(UserError):
    """Files at the source differ from their record; none of them is copied."""

    def __init__(self, url: str, findings: Sequence[Finding]) -> None:
        self.findings = tuple(sorted(findings))
        super().__init__(f"{len(findings)} of its files differ from the record, in {url}:\n{finding_lines(findings)}")


class _DamagedFileError(Exception):
    def __init__(self, finding: Finding) -> None:
        super().__init__(finding)
        self.finding = finding


class HeldAtTargetError(UserError):
    """Another process makes the output at the target, or deletes it there."""


class CopyCancelledError(Exception):
    """The copier was cancelled."""


class Copier:
    """Copies outputs from `source` to `target`, several at once if their digests differ.

    With `check`, it compares the files of outputs that are at the target, and replaces damaged ones.
    """

    def __init__(self, source: Store, target: Store, *, check: bool = False) -> None:
        self.source, self.target, self.check = source, target, check
        self.bytes_done = 0
        """Bytes written, or found equal, by files that are finished."""
        self._shared: set[str] = set()
        """Paths at the target that many records refer to."""
        self._files = ThreadPoolExecutor(CHECKSUM_THREADS, thread_name_prefix="copy")
        self._cancelled = threading.Event()
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """End all copies at their next block; finished files stay for the next copy."""
        self._cancelled.set()

    def close(self) -> None:
        self._files.shutdown(cancel_futures=True)

    def copy(self, key: str) -> Copied:
        """Make the output `key` exist at the target too.

        Raises:
            DamagedSourceError: files differ from the record; the others are at the target, without a record.
            HeldAtTargetError: another process holds the step there.
            LeaseLostError: the lease at the target was lost; the next try continues.
        """
        records = Records(self.source)
        record = records.find(key)
        if record is None:
            return Copied("gone")
        there = self._record_there(record)
        if there is not None and not (self.check and there.manifest == record.manifest):
            return Copied("there" if there.attempt == record.attempt else "other attempt")
        with self.leased(record.digest, record.name) as lease:
            folder = (there or record).output_path
            try:
                num_files, size = self.copy_files(record.output_path, folder, record.manifest, lease)
            except DamagedSourceError:
                if records.find(key) is None:  # `gc` has deleted it meanwhile
                    return Copied("gone")
                raise
            self.copy_beside(record)
            winner = Epoch(self.target, record.digest, lease.epoch).commit(there or record)
        if there is not None:
            return Copied("repaired" if num_files else "there", num_files, size)
        return Copied("copied" if winner.attempt == record.attempt else "other attempt", num_files, size)

    def _record_there(self, record: Record) -> Record | None:
        try:
            there = Records(self.target).find(record.key)
            is_damaged = there is not None and there.attempt == record.attempt and there != record
        except UnreadableRecordError:
            is_damaged = True
        if is_damaged:
            path = self.target.url(record_path(record.key))
            raise UserError(f"its record at the target is damaged. Delete {path}, and run the same command again.")
        return there

    @contextlib.contextmanager
    def leased(self, digest: str, name: str) -> Iterator[Lease]:
        """Hold the lease of a step at the target for a block; wait for other copiers. Raise as `copy`."""
        leases = Leases(self.target)
        try:
            # The lease needs no callback: `is_lost` is read before each block.
            while isinstance(got := leases.acquire(digest, f"copy of {name}", lambda: None, does=COPIES), Held):
                if got.holder.does != COPIES:
                    raise HeldAtTargetError(
                        f"another process works on it at the target: {got.holder.description}. Wait for it."
                    )
                if self._cancelled.wait(POLL_SECONDS):
                    raise CopyCancelledError
            try:
                yield got
            finally:
                with contextlib.suppress(StoreError):  # an unreleased lease expires
                    got.release()
        finally:
            leases.close()

    def copy_files(
        self, source_folder: str, folder: str, manifest: Sequence[FileEntry], lease: Lease
    ) -> tuple[int, int]:
        """Make these files exist in `folder` at the target; return number and size of those written. See `copy`."""
        self.target.make_folder(folder)  # an output may be empty, and its folder is listed all the same
        self.target.sweep(folder)  # temporary files of a killed copier; the lease keeps others away
        listed = patiently(lambda: self.target.list(folder))
        there = {entry.path.removeprefix(f"{folder}/"): entry.size_in_bytes for entry in listed}
        has_failed, findings = threading.Event(), list[Finding]()

        def copied(entry: FileEntry) -> int | None:
            if has_failed.is_set():
                return None
            try:
                return self._copy_file(source_folder, folder, entry, there.get(entry.path), lease)
            except _DamagedFileError as error:  # report all damaged files at once
                findings.append(error.finding)
                return None
            except BaseException:
                has_failed.set()
                raise

        futures = [self._files.submit(copied, entry) for entry in manifest]
        wait(futures)  # the lease is held until no thread writes
        sizes = [size for future in futures if (size := future.result()) is not None]
        if findings:
            raise DamagedSourceError(self.source.url(source_folder), findings)
        return len(sizes), sum(sizes)

    def _copy_file(
        self, source_folder: str, folder: str, entry: FileEntry, size_there: int | None, lease: Lease
    ) -> int | None:
        """Return the bytes written, or None if the file was at the target."""
        path, target = f"{source_folder}/{entry.path}", f"{folder}/{entry.path}"
        wanted = entry.size_in_bytes, entry.crc32c
        self._check_going(lease)
        is_there = size_there == entry.size_in_bytes and patiently(lambda: self.target.settle(target)) == wanted
        if not is_there:
            patiently(lambda: self._write(path, target, entry, lease))
        with self._lock:
            self.bytes_done += entry.size_in_bytes
        return None if is_there else entry.size_in_bytes

    def _write(self, path: str, target: str, entry: FileEntry, lease: Lease) -> None:
        check = functools.partial(_check_bytes, entry)
        try:
            is_copied = path == target and self.target.copy_from(self.source, path, check)
        except FileNotFoundError:
            raise _DamagedFileError(Finding(entry.path, "is missing")) from None
        if not is_copied:
            try:
                self.target.write_blocks(target, self._blocks(path, entry, lease))
            except FileNotFoundError as error:  # swept by a process that took the lease over
                raise StoreError(f"{self.target.url(target)}: deleted while written", is_transient=True) from error
        size, checksum = self.target.settle(target)
        if (size, checksum) != (entry.size_in_bytes, entry.crc32c):
            raise StoreError(
                f"{self.target.url(target)}: the store has {size} bytes with CRC32C {checksum} instead of "
                f"{entry.size_in_bytes} with {entry.crc32c}. Run the same command again.",
                is_transient=True,
            )

    def _blocks(self, path: str, entry: FileEntry, lease: Lease) -> Iterator[bytes]:
        """Yield the bytes of a file, but raise before the last block if they differ from the record."""
        checksum, size, held = google_crc32c.Checksum(), 0, b""
        try:
            for block in self.source.blocks(path):
                self._check_going(lease)
                checksum.update(block)
                size += len(block)
                if held:
                    yield held
                held = block
        except FileNotFoundError:
            raise _DamagedFileError(Finding(entry.path, "is missing")) from None
        _check_bytes(entry, size, checksum.digest().hex())
        yield held

    def copy_beside(self, record: Record) -> None:
        """Copy what explains an output: its environment and sources, and its logs and events as they are now."""
        paths = {record.provenance.environment}
        if "code" in record.identity:
            paths.add(source_path(record.identity["code"]["fingerprint"]))
        for path in sorted(paths - self._shared):
            copy_small(self.source, self.target, path)
        self._shared |= paths
        self._copy_grown(*logs_of(record))
        self._copy_grown(WORK, f"{record.digest}/{EVENTS}/")

    def _copy_grown(self, folder: str, starting_with: str) -> None:
        here = patiently(lambda: self.source.list(folder, starting_with))
        listed = patiently(lambda: self.target.list(folder, starting_with)) if here else []
        there = {entry.path: entry.size_in_bytes for entry in listed}
        for entry in here:
            if there.get(entry.path) != entry.size_in_bytes:
                self._check_going()
                with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
                    data = patiently(functools.partial(self.source.read, entry.path))
                    patiently(functools.partial(self.target.write, entry.path, data))

    def _check_going(self, lease: Lease | None = None) -> None:
        if self._cancelled.is_set():
            raise CopyCancelledError
        if lease is not None and lease.is_lost:
            raise LeaseLostError("the lease at the target was lost for want of a heartbeat; the copy starts again")


def _check_bytes(entry: FileEntry, size: int, checksum: str) -> None:
    finding = compare(entry, size, checksum)
    if finding is not None:
        raise _DamagedFileError(finding)


def copy_small(source: Store, target: Store, path: str) -> bool:
    """Copy a small object, if the source has it; return False if the target has another one at its path."""
    try:
        data = patiently(lambda: source.read(path))
        return patiently(lambda: target.create(path, data) or target.read(path) == data)
    except FileNotFoundError:  # never there, or deleted since it was listed
        return True
