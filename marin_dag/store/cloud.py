"""CloudStore: what stores in a cloud have in common: an address, files through fsspec, errors told with the cure."""

import functools
import socket
import urllib.parse
import urllib.request
from abc import abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from marin_dag.store.redact import redact
from marin_dag.store.retry import patiently
from marin_dag.store.store import Entry, ExplainedFile, Store, StoreError, checked

FIRST_CONTACT_TIMEOUT_SECONDS = 20.0
"""Of the first request: a dead network should show sooner than a lost connection."""
NO_NETWORK_PAUSES_SECONDS = (0.5, 1.0)
MAX_OBJECT_NAME_IN_BYTES = 1_024
"""Of Cloud Storage and of S3; what stands behind the bucket counts."""


class CloudStore(Store):
    """`scheme://bucket/folder`; `files` is fsspec's file system for it."""

    service: ClassVar[str]
    """What errors call it."""
    way_there: ClassVar[str]
    """What is to be checked where it cannot be reached."""

    def __init__(self, prefix: str, files: Any) -> None:
        self.prefix = prefix.rstrip("/")
        self._root = self.prefix.partition("://")[2]
        self._bucket, _, folder = self._root.partition("/")
        self._folder = f"{folder}/" if folder else ""
        self.max_path_in_bytes = MAX_OBJECT_NAME_IN_BYTES - len(self._folder.encode())
        self._in_contact = False
        self._fs = files

    def make_contact(self) -> None:
        with self._explained(""):
            pass

    def exists(self, path: str) -> bool:
        with self._explained(path):
            try:
                self._info(path)
            except FileNotFoundError:
                return False
            return True

    def open(self, path: str, mode: str = "rb") -> ExplainedFile:
        with self._explained(path):
            file = self._fs.open(self._path(path), mode)
        return ExplainedFile(file, functools.partial(self._explained, path))

    def write_blocks(self, path: str, blocks: Iterable[bytes]) -> None:
        with self._explained(path):
            file = self._fs.open(self._path(path), "wb")
            try:
                for block in blocks:
                    file.write(block)
            except BaseException:
                self._abandon(file)
                raise
            file.close()

    def _abandon(self, file: Any) -> None:
        """Of a file that was begun, no object comes about."""
        file.closed = True  # else it is finished when it is freed

    def copy(self, source: str, target: str) -> None:
        with self._explained(target):
            self._fs.cp_file(self._path(source), self._path(target))

    @abstractmethod
    def _info(self, path: str) -> Any:
        """What the store knows of an object; raises FileNotFoundError."""

    @abstractmethod
    def _explained(self, path: str) -> AbstractContextManager[None]:
        """Makes contact first, if there was none; turns what the client raises into a StoreError with the cure."""

    @classmethod
    def _refuse_no_network(cls, url: str, address: str) -> None:
        """Raises StoreError where the host of `address` has no address: clients look a quarter of a minute for
        credentials, or ask as long again, before they find out."""
        if urllib.request.getproxies():  # which resolve it
            return

        def resolve() -> None:
            try:
                socket.getaddrinfo(urllib.parse.urlsplit(address).hostname, None)
            except socket.gaierror as error:
                raise cls._unreachable(url, error) from error

        patiently(resolve, NO_NETWORK_PAUSES_SECONDS)

    @classmethod
    def _unreachable(cls, url: str, error: BaseException) -> StoreError:
        return StoreError(
            f"{url}: {cls.service} cannot be reached ({first_line(error)}); check {cls.way_there}, then run the same "
            "command again, nothing finished is lost.",
            is_transient=True,
        )

    def _entries(self, items: Iterable[tuple[str, int, float]]) -> list[Entry]:
        """A listing, from keys, sizes and times; without what some tools leave to stand for a folder."""
        skip = len(self._folder)
        return sorted(Entry(key[skip:], size, updated) for key, size, updated in items if not key.endswith("/"))

    def _key(self, path: str) -> str:
        return f"{self._folder}{checked(path)}"

    def _path(self, path: str) -> str:
        return f"{self._root}/{checked(path)}"


def first_line(error: BaseException) -> str:
    """Kind and first line of an error, without secrets."""
    lines = redact(str(error)).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
