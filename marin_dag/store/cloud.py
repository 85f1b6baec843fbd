"""CloudStore: what the stores on a cloud service share: addresses, first contact, errors with their fix."""

import contextlib
import socket
import urllib.parse
import urllib.request
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

from marin_dag.store.redact import redact
from marin_dag.store.retry import patiently
from marin_dag.store.store import Entry, Store, StoreError, checked

FIRST_CONTACT_TIMEOUT_SECONDS = 20.0
"""Timeout of the first request: a dead network should show sooner than a lost connection."""
NO_NETWORK_PAUSES_SECONDS = (0.5, 1.0)
MAX_OBJECT_NAME_IN_BYTES = 1_024
"""The limit of Cloud Storage and of S3, without the name of the bucket."""
CONCURRENT_READS = 32
MAX_REASON_CHARACTERS = 500
"""A proxy may answer with a page of any size."""
CREATOR = "creator"
"""Metadata key of a random value by which a repeated create recognizes its own object after a lost reply."""


class CloudStore(Store):
    """A store at `scheme://bucket/folder`."""

    max_records_checked = 512
    service: ClassVar[str]
    errors: ClassVar[tuple[type[Exception], ...]]
    """Errors of the client."""
    way_there: ClassVar[str]
    """Things for the user to check when the service cannot be reached."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.rstrip("/")
        self._in_contact = False
        self._root = self.prefix.partition("://")[2]
        self._bucket, _, folder = self._root.partition("/")
        self._folder = f"{folder}/" if folder else ""
        self.max_path_in_bytes = MAX_OBJECT_NAME_IN_BYTES - len(self._folder.encode())

    def make_contact(self) -> None:
        with self._explained(""):
            pass

    def read_all(self, paths: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        def read(path: str) -> tuple[str, bytes] | None:
            try:
                return path, self.read(path)
            except FileNotFoundError:
                return None

        with ThreadPoolExecutor(CONCURRENT_READS) as pool:
            yield from (found for found in pool.map(read, paths) if found is not None)

    @contextlib.contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        """Make contact if there was none yet; turn errors of the client into a StoreError with the fix."""
        try:
            if not self._in_contact:
                self._make_contact()
                self._in_contact = True
            yield
        except FileNotFoundError:
            raise
        except self.errors as error:
            raise self._explanation(f"{self.prefix}/{path}", error) from error

    @abstractmethod
    def _make_contact(self) -> None:
        """Make the first request; raise StoreError if the bucket does not exist."""

    @abstractmethod
    def _explanation(self, url: str, error: Exception) -> Exception:
        """Return an error of the client as a StoreError with the fix, or as FileNotFoundError."""

    def _check_network(self, address: str) -> None:
        """Raise StoreError if the host of `address` does not resolve; a client would take 15 seconds to notice."""
        if urllib.request.getproxies():  # the proxy resolves names
            return

        def resolve() -> None:
            try:
                socket.getaddrinfo(urllib.parse.urlsplit(address).hostname, None)
            except socket.gaierror as error:
                raise self._unreachable(self.prefix, error) from error

        patiently(resolve, NO_NETWORK_PAUSES_SECONDS)

    @classmethod
    def _unreachable(cls, url: str, error: BaseException) -> StoreError:
        return StoreError(
            f"{url}: {cls.service} cannot be reached, or sent half an answer ({first_line(error)}). Check "
            f"{cls.way_there}, then run the same command again; nothing finished is lost.",
            is_transient=True,
        )

    def _entries(self, items: Iterable[tuple[str, int, float]]) -> list[Entry]:
        """Return a listing of keys, sizes and times, without the objects by which some tools mark a folder."""
        skip = len(self._folder)
        return sorted(Entry(key[skip:], size, updated) for key, size, updated in items if not key.endswith("/"))

    def _key(self, path: str) -> str:
        return f"{self._folder}{checked(path)}"


def first_line(error: BaseException) -> str:
    """Return type and first line of an error, without secrets."""
    lines = redact(str(error)).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:MAX_REASON_CHARACTERS]}" if lines else type(error).__name__
