"""GcsStore: a Store on Google Cloud Storage through gcsfs, whose reads and listings are strongly consistent."""

import asyncio
import base64
import contextlib
import datetime
import logging
import os
import uuid
from collections.abc import Iterator
from typing import IO, Any

import aiohttp.client_exceptions
import fsspec.asyn
import google.auth.exceptions
import requests.exceptions
from gcsfs.core import GCSFileSystem
from gcsfs.retry import HttpError

from marin_dag.store import Entry, Store, StoreError, checked

FIRST_CONTACT_TIMEOUT_SECONDS = 20.0
CREATOR = "creator"
UNREACHABLE = (
    requests.exceptions.RequestException,
    aiohttp.client_exceptions.ClientError,
    fsspec.asyn.FSTimeoutError,
    asyncio.TimeoutError,
    ConnectionError,
)


class GcsStore(Store):
    """`gs://bucket/folder`, through the plain gcsfs class: its successor asks for the kind of bucket by gRPC."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix.rstrip("/")
        self._root = self.prefix.removeprefix("gs://")
        self._bucket = self._root.split("/")[0]
        self._in_contact = False
        # gcsfs logs a traceback for each error that it also raises; the raised one is explained here.
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
        emulator = os.environ.get("STORAGE_EMULATOR_HOST")
        self._fs = GCSFileSystem(token="anon" if emulator else None, use_listings_cache=False)

    def list(self, folder: str, starting_with: str = "") -> list[Entry]:
        with self._explained(folder):
            found = self._fs.find(self._path(folder), prefix=starting_with, detail=True)
        beginning = self._path(folder) + "/" + starting_with
        return sorted(
            Entry(path[len(self._root) + 1 :], int(info["size"]), _seconds(info["updated"]))
            for path, info in found.items()
            if path.startswith(beginning) and not path.endswith("/")
        )

    def read(self, path: str) -> bytes:
        with self._explained(path):
            return self._fs.cat_file(self._path(path))

    def create(self, path: str, data: bytes) -> bool:
        # gcsfs sends a request again when the reply was lost; the second then meets the object of the first. The
        # random creator tells this call's own object from another's, even where both hold the same bytes.
        creator = uuid.uuid4().hex
        with self._explained(path):
            try:
                self._fs.pipe_file(self._path(path), data, mode="create", metadata={CREATOR: creator})
            except FileExistsError:
                metadata = self._fs.info(self._path(path)).get("metadata") or {}
                return metadata.get(CREATOR) == creator
        return True

    def write(self, path: str, data: bytes) -> None:
        with self._explained(path):
            self._fs.pipe_file(self._path(path), data)

    def delete(self, path: str) -> None:
        with self._explained(path), contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._path(path))

    def exists(self, path: str) -> bool:
        with self._explained(path):
            try:
                return bool(self._fs.info(self._path(path))["type"] == "file")
            except FileNotFoundError:
                return False

    def open(self, path: str, mode: str = "rb") -> IO[bytes]:
        with self._explained(path):
            return self._fs.open(self._path(path), mode)

    def copy(self, source: str, target: str) -> None:
        with self._explained(target):
            self._fs.cp_file(self._path(source), self._path(target))

    def settle(self, path: str) -> tuple[int, str]:
        with self._explained(path):
            info = self._fs.info(self._path(path))
        return int(info["size"]), base64.b64decode(info["crc32c"]).hex()

    def _path(self, path: str) -> str:
        return f"{self._root}/{checked(path)}"

    @contextlib.contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        url = f"{self.prefix}/{path}"
        try:
            if not self._in_contact:
                self._make_contact()
            yield
        except UNREACHABLE as error:
            raise StoreError(
                f"{url}: Cloud Storage cannot be reached ({_first_line(error)}); check the network and the proxy, "
                "then run the same command again, nothing finished is lost.",
                is_transient=True,
            ) from error
        except google.auth.exceptions.GoogleAuthError as error:
            raise StoreError(f"{url}: {_first_line(error)}; {LOG_IN}.") from error
        except HttpError as error:
            raise StoreError(
                f"{url}: Cloud Storage answered {error.code} ({_first_line(error)}); "
                + (LOG_IN if error.code in (401, 403) else "run the same command again, nothing finished is lost")
                + ".",
                is_transient=str(error.code) in {"408", "429", "500", "502", "503", "504"},
            ) from error
        except OSError as error:
            if str(error).startswith("Forbidden"):
                raise StoreError(f"{url}: {' '.join(str(error).split())}; {LOG_IN}.") from error
            raise

    def _make_contact(self) -> None:
        """The first request, with a limit of its own: gcsfs would retry a dead network for half a minute and more."""

        async def first_page() -> Any:
            return await self._fs._call("GET", "b/{}/o", self._bucket, maxResults="1", json_out=True)

        try:
            fsspec.asyn.sync(self._fs.loop, first_page, timeout=FIRST_CONTACT_TIMEOUT_SECONDS)
        except FileNotFoundError as error:
            raise StoreError(
                f"{self.prefix}: there is no bucket {self._bucket}; make it (`gcloud storage buckets create "
                f"gs://{self._bucket}`) or pass another --prefix."
            ) from error
        self._in_contact = True


LOG_IN = "log in with `gcloud auth application-default login`, or ask for the role Storage Object User on the bucket"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _seconds(updated: Any) -> float:
    if isinstance(updated, datetime.datetime):
        return updated.timestamp()
    return datetime.datetime.fromisoformat(str(updated).replace("Z", "+00:00")).timestamp()
