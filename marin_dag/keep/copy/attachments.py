"""Attachments: what of a prefix leads to its outputs, explains them or keeps them, and so goes along with a copy.

Small objects that are created once, found by a listing on both sides: names, acceptances, pins, migrations, what steps
were told, forks. And the logs of attempts and event logs of steps, which may be growing. What only serves work in
progress (leases, checkpoints, failures) stays: it is fenced by the leases of its own prefix; of a trajectory the newest
certified state is another matter (certified_copies.py).
"""

import functools
import hashlib
import json
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

from marin_dag.keep.collect import EVENTS, WORK
from marin_dag.keep.copy.copy_errors import CopyCancelledError, is_full
from marin_dag.keep.copy.copying import Copier
from marin_dag.keep.copy.loose_files import logs_of
from marin_dag.ledger.acceptances import ACCEPTED, Acceptances
from marin_dag.ledger.pins import PINS
from marin_dag.ledger.provenance import now, user_name
from marin_dag.ledger.records import CHECKSUM_THREADS, LABELS, Record
from marin_dag.ledger.requests import REQUESTS
from marin_dag.store.retry import is_transient, patiently
from marin_dag.store.store import Store, StoreError

COPIES = "copies"
"""Below it, a word from each prefix whose outputs were copied here."""


class Attachments:
    """Those of the outputs that `copier` copies; `copy` is called by one thread at a time.

    Args:
        copier: from where, and to where.
        forks_folder: of the forks that go along, all of them: without its fork nothing leads to what one has made.
    """

    def __init__(self, copier: Copier, forks_folder: str) -> None:
        self._copier, self._forks_folder = copier, forks_folder
        self._source, self._target = copier.source, copier.target
        self._logs_of: dict[str, set[tuple[str, str]]] = {}
        """Where the logs of attempts lie whose outputs are known to be copies, by digest."""
        self._fresh: set[str] = set()
        self._fresh_before: set[str] = set()
        """Digests of fresh copies, and of those before the last call: the logs grow for some seconds more."""
        self._looked_at: set[str] = set()
        """Digests whose logs are there, as they were then."""
        self._same: set[str] = set()
        """Paths of acceptances that are known to be the same on both sides."""
        self._problems: list[str] = []
        self._is_given_up = False
        self._lock = threading.Lock()

    def leave_word(self) -> None:
        """Says at the target, once, that outputs of this source come there; the first write, before a run begins."""
        word = {"from": self._source.prefix, "since": now(), "author": user_name()}
        name = hashlib.sha256(self._source.prefix.encode()).hexdigest()[:16]
        self._target.create(f"{COPIES}/{name}.json", json.dumps(word, indent=1).encode())

    def know(self, record: Record) -> None:
        """Takes an output that is there as a copy, from any thread: the logs of its attempt belong to it."""
        with self._lock:
            self._logs_of.setdefault(record.digest, set()).add(logs_of(record))

    def add(self, record: Record) -> None:
        """Takes an output that has just been copied, from any thread."""
        self.know(record)
        with self._lock:
            self._fresh.add(record.digest)

    def copy(self, keys: Collection[str], growing: Collection[str] = ()) -> list[str]:
        """Makes all that belongs to these keys exist at the target; what is there stays, and what is gone is left out.

        Args:
            keys: of outputs that are at the target.
            growing: digests whose logs may have grown since the last call; those of others are looked at once.

        Returns:
            What could not be copied, each with the cure, a line each. Who cancels the copier ends it early.
        """
        self._problems, self._is_given_up = [], False
        keys = frozenset(keys)
        digests = frozenset(key.partition("@")[0] for key in keys)

        def of_digest(path: str) -> bool:
            return path.split("/")[1] in digests

        try:
            self._along(LABELS, lambda path: path.rpartition("/")[2] in keys)
            self._along(PINS, lambda path: path.removeprefix(f"{PINS}/").removesuffix(".json") in keys)
            self._along(REQUESTS, of_digest)
            self._acceptances(of_digest)
            self._forks()
            with self._lock:
                fresh, self._fresh = self._fresh, set()
            again = fresh | self._fresh_before | frozenset(growing)
            self._fresh_before = fresh
            self._logs([digest for digest in digests if digest in again or digest not in self._looked_at])
        except CopyCancelledError:
            pass
        return self._problems

    def _tried(self, operation: Callable[[], object]) -> bool:
        """Whether it went well; else it is among the problems, or what it was about is gone. After an error that passes
        and did not, nothing more is tried: the store does not answer; nor after that of a full one."""
        self._copier.refuse_cancelled()
        if self._is_given_up:
            return False
        try:
            patiently(operation)
        except FileNotFoundError:  # taken back since it was listed
            return False
        except StoreError as error:
            with self._lock:
                if not self._is_given_up:
                    self._is_given_up = is_transient(error) or is_full(error)
                    self._problems.append(self._copier.said(error))
            return False
        return True

    def _listed(self, store: Store, folder: str) -> dict[str, int]:
        """Paths and sizes; of a folder that cannot be listed none."""
        found: dict[str, int] = {}
        self._tried(lambda: found.update({entry.path: entry.size_in_bytes for entry in store.list(folder)}))
        return found

    def _along(self, folder: str, is_wanted: Callable[[str], bool]) -> list[str]:
        """Creates what is not there of a folder; returns what was."""
        there = self._listed(self._target, folder)
        wanted = {path: size for path, size in self._listed(self._source, folder).items() if is_wanted(path)}
        for path, size in wanted.items():
            if path not in there:
                self._tried(functools.partial(self._create, path, size))
        return [path for path in wanted if path in there]

    def _create(self, path: str, size: int) -> None:
        self._target.create(path, self._source.read(path) if size else b"")

    def _acceptances(self, is_wanted: Callable[[str], bool]) -> None:
        """Entry by entry under the same names, so that whoever copies them, and how many at once, a revocation stays
        behind what it revokes. Where another entry has the name, the two logs have gone apart."""
        apart: set[str] = set()
        for path in self._listed(self._source, ACCEPTED):
            digest = path.split("/")[1]
            if is_wanted(path) and path not in self._same and digest not in apart:
                if self._tried(functools.partial(self._carry, path)) and path in self._same:
                    continue
                apart.add(digest)  # or it could not be copied, and no later one may come before it

    def _carry(self, path: str) -> None:
        data = self._source.read(path)
        if self._target.create(path, data) or self._target.read(path) == data:
            self._same.add(path)
            return
        name = Acceptances(self._source).read(path).name
        self._problems.append(
            f"{name}: what was accepted of it at the target is not what was accepted here, and stays; "
            f"with --prefix {self._target.prefix}, `accept {name}` says it there"
        )

    def _forks(self) -> None:
        for path in self._along(self._forks_folder, lambda path: True):
            self._tried(functools.partial(self._compare_fork, path))

    def _compare_fork(self, path: str) -> None:
        if self._source.read(path) != self._target.read(path):
            name = path.removeprefix(f"{self._forks_folder}/").removesuffix(".json")
            self._problems.append(
                f"the fork {name} is another one at the target, and stays; with --prefix {self._target.prefix}, "
                f"`drop {name}` forgets it there"
            )

    def _logs(self, digests: Iterable[str]) -> None:
        """Those of attempts, and the event logs."""

        def of_digest(digest: str) -> None:
            with self._lock:
                of_attempts = sorted(self._logs_of.get(digest, ()))
            places = (*of_attempts, (WORK, f"{digest}/{EVENTS}/"))
            are_there = [self._tried(functools.partial(self._copier.loose.copy_grown, *place)) for place in places]
            if all(are_there):
                self._looked_at.add(digest)

        pool = ThreadPoolExecutor(CHECKSUM_THREADS)
        try:
            for future in [pool.submit(of_digest, digest) for digest in digests]:
                future.result()
        except KeyboardInterrupt:
            self._copier.cancel()  # else it waits for what is under way
            raise
        finally:
            pool.shutdown(cancel_futures=True)
