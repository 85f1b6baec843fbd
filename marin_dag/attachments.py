"""Attachments: what of a prefix leads to its outputs, explains them or keeps them, and so goes along with a copy.

Small objects that are created once, found by a listing on both sides: names, acceptances, pins, migrations, what steps
were told, forks. And the event logs of a step, which may be growing. What only serves work in progress (leases,
checkpoints, failures) stays: it is fenced by the leases of its own prefix.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from marin_dag.acceptances import Acceptances
from marin_dag.collect import EVENTS, WORK
from marin_dag.copying import Copier
from marin_dag.migrations import MIGRATIONS
from marin_dag.pins import PINS
from marin_dag.provenance import now, user_name
from marin_dag.records import CHECKSUM_THREADS, LABELS
from marin_dag.store import StoreError
from marin_dag.told import TOLD

COPIES = "copies"
"""Below it, a word from each prefix whose outputs were copied here."""


class Attachments:
    """Those of the outputs that `copier` copies.

    Args:
        copier: from where, and to where.
        forks_folder: of the forks that go along, all of them: without its fork nothing leads to what one has made.
    """

    def __init__(self, copier: Copier, forks_folder: str) -> None:
        self._copier, self._forks_folder = copier, forks_folder
        self._source, self._target = copier.source, copier.target

    def leave_word(self) -> None:
        """Says at the target, once, that outputs of this source come there; the first write, before a run begins."""
        word = {"from": self._source.prefix, "since": now(), "author": user_name()}
        name = hashlib.sha256(self._source.prefix.encode()).hexdigest()[:16]
        self._target.create(f"{COPIES}/{name}.json", json.dumps(word, indent=1).encode())

    def copy(self, keys: Collection[str]) -> list[str]:
        """Makes all that belongs to these keys exist at the target; what is there stays.

        Returns:
            What could not be copied, each with the cure, a line each.
        """
        digests = dict.fromkeys(key.partition("@")[0] for key in keys)

        def of_digest(path: str) -> bool:
            return path.split("/")[1] in digests

        self._along(LABELS, lambda path: path.rpartition("/")[2] in keys)
        self._along(PINS, lambda path: path.removeprefix(f"{PINS}/").removesuffix(".json") in keys)
        self._along(MIGRATIONS, of_digest)
        self._along(TOLD, of_digest)
        with ThreadPoolExecutor(CHECKSUM_THREADS) as pool:
            list(pool.map(self._events, digests))
        return [*self._acceptances(digests), *self._forks()]

    def _along(self, folder: str, is_wanted: Callable[[str], bool]) -> list[str]:
        """Creates what is not there of a folder; returns what was."""
        there = {entry.path for entry in self._target.list(folder)}
        wanted = [entry for entry in self._source.list(folder) if is_wanted(entry.path)]
        for entry in wanted:
            if entry.path not in there:
                self._target.create(entry.path, self._source.read(entry.path) if entry.size_in_bytes else b"")
        return [entry.path for entry in wanted if entry.path in there]

    def _acceptances(self, digests: Iterable[str]) -> Iterator[str]:
        """Entries of a log, in their order, behind those of the target's own."""
        here, there = Acceptances(self._source), Acceptances(self._target)
        for digest in digests:
            try:
                known = there.log(digest)
                for entry in here.log(digest):
                    if entry not in known:
                        there.carry(entry)
            except StoreError as error:
                yield str(error)

    def _forks(self) -> Iterator[str]:
        for path in self._along(self._forks_folder, lambda path: True):
            if self._source.read(path) != self._target.read(path):
                name = path.removeprefix(f"{self._forks_folder}/").removesuffix(".json")
                yield (
                    f"the fork {name} is another one at the target, and stays; with --prefix {self._target.prefix}, "
                    f"`drop {name}` forgets it there"
                )

    def _events(self, digest: str) -> None:
        """They grow as long as the step runs."""
        self._copier.copy_grown(WORK, f"{digest}/{EVENTS}/")
