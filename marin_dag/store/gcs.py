"""GcsStore: a Store on Google Cloud Storage through gcsfs, whose reads and listings are strongly consistent."""

import asyncio
import base64
import contextlib
import datetime
import json
import logging
import os
import uuid
from collections.abc import Iterator
from typing import Any

import aiohttp.client_exceptions
import fsspec.asyn
import fsspec.config
import gcsfs.core
import google.auth.exceptions
import google_crc32c
import requests.exceptions
from gcsfs.retry import ChecksumError, HttpError

from marin_dag.store.cloud import FIRST_CONTACT_TIMEOUT_SECONDS, CloudStore, first_line
from marin_dag.store.gcs_requests import CheckedFileSystem, DownloadError
from marin_dag.store.redact import redact
from marin_dag.store.retry import TRANSIENT_CODES
from marin_dag.store.store import Entry, Store, StoreError, checked

PAGE_SIZE = 1000
CREATOR = "creator"
UNREACHABLE = (
    requests.exceptions.RequestException,
    aiohttp.client_exceptions.ClientError,
    fsspec.asyn.FSTimeoutError,
    asyncio.TimeoutError,
    ConnectionError,
    DownloadError,
    ChecksumError,
)


class GcsStore(CloudStore):
    """`gs://bucket/folder`."""

    service = "Cloud Storage"
    way_there = "the network and the proxy"

    def __init__(self, prefix: str) -> None:
        # gcsfs logs a traceback for each error that it also raises; the raised one is explained here.
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
        # Google's client looks for credentials before it finds out that there is no network.
        address = fsspec.config.apply_config(CheckedFileSystem, {}).get("endpoint_url") or gcsfs.core._location()
        self._refuse_no_network(prefix, address)
        emulator = os.environ.get("STORAGE_EMULATOR_HOST")
        super().__init__(prefix, CheckedFileSystem(token="anon" if emulator else None, use_listings_cache=False))

    def list(self, folder: str, starting_with: str = "") -> list[Entry]:
        beginning = f"{self._folder}{checked(folder)}/{starting_with}"
        with self._explained(folder):
            items = fsspec.asyn.sync(self._fs.loop, _all_pages, self._fs, self._bucket, beginning)
        return self._entries((item["name"], int(item["size"]), _seconds(item["updated"])) for item in items)

    def read(self, path: str) -> bytes:
        with self._explained(path):
            media = f"{self._fs._location}/download/storage/v1/b/{{}}/o/{{}}"
            _, contents = self._fs.call("GET", media, self._bucket, self._key(path), alt="media")
            return bytes(contents)

    def create(self, path: str, data: bytes) -> bool:
        # A request is sent again when its reply was lost; the second then meets the object of the first. The random
        # creator tells this call's own object from another's, even where both hold the same bytes.
        creator = uuid.uuid4().hex
        with self._explained(path):
            try:
                self._upload(path, data, {CREATOR: creator}, if_generation_match="0")
            except FileExistsError:
                try:
                    return (self._info(path).get("metadata") or {}).get(CREATOR) == creator
                except FileNotFoundError:  # somebody's, deleted since; not made by this call as far as it knows
                    return False
        return True

    def write(self, path: str, data: bytes) -> None:
        with self._explained(path):
            self._upload(path, data, {}, if_generation_match=None)

    def delete(self, path: str) -> None:
        with self._explained(path), contextlib.suppress(FileNotFoundError):
            self._fs.call("DELETE", "b/{}/o/{}", self._bucket, self._key(path))

    def settle(self, path: str) -> tuple[int, str]:
        with self._explained(path):
            info = self._info(path)
        return int(info["size"]), base64.b64decode(info["crc32c"]).hex()

    def can_copy_from(self, other: Store) -> bool:
        return isinstance(other, GcsStore)

    def copy_from(self, other: Store, path: str) -> None:
        assert isinstance(other, GcsStore)
        with self._explained(path):
            self._fs.cp_file(other._path(path), self._path(path))

    def _upload(self, path: str, data: bytes, metadata: dict[str, str], *, if_generation_match: str | None) -> None:
        """In one request, which carries the checksum: the store keeps all of the bytes, unchanged, or none."""
        checksum = base64.b64encode(google_crc32c.Checksum(data).digest()).decode()
        resource = json.dumps({"name": self._key(path), "crc32c": checksum, "metadata": metadata}).encode()
        boundary = uuid.uuid4().hex.encode()
        lines = [b"--" + boundary, b"Content-Type: application/json; charset=UTF-8", b"", resource]
        lines += [b"--" + boundary, b"Content-Type: application/octet-stream", b"", data, b"--" + boundary + b"--"]
        self._fs.call(
            "POST",
            f"{self._fs._location}/upload/storage/v1/b/{self._bucket}/o",
            uploadType="multipart",
            headers={"Content-Type": f"multipart/related; boundary={boundary.decode()}"},
            data=b"\r\n".join(lines),
            ifGenerationMatch=if_generation_match,
        )

    def _info(self, path: str) -> Any:
        _, contents = self._fs.call(
            "GET", "b/{}/o/{}", self._bucket, self._key(path), fields="name,size,crc32c,metadata"
        )
        return json.loads(contents)

    @contextlib.contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        url = f"{self.prefix}/{path}"
        try:
            if not self._in_contact:
                self._make_contact()
            yield
        except UNREACHABLE as error:
            raise self._unreachable(url, error) from error
        except google.auth.exceptions.GoogleAuthError as error:
            raise StoreError(f"{url}: {first_line(error)}; {LOG_IN}.", is_transient=error.retryable) from error
        except HttpError as error:
            raise StoreError(
                f"{url}: Cloud Storage answered {error.code} ({first_line(error)}); "
                + (LOG_IN if error.code in (401, 403) else "run the same command again, nothing finished is lost")
                + ".",
                is_transient=str(error.code) in {str(code) for code in TRANSIENT_CODES},
            ) from error
        except json.JSONDecodeError as error:
            raise StoreError(f"{url}: half an answer came ({first_line(error)}).", is_transient=True) from error
        except ValueError as error:
            if not str(error).startswith("Bad Request"):  # gcsfs's own word for some answers of 400
                raise
            raise StoreError(f"{url}: Cloud Storage refused the request ({first_line(error)}).") from error
        except OSError as error:
            if str(error).startswith("Forbidden"):
                raise StoreError(f"{url}: {redact(' '.join(str(error).split()))}; {LOG_IN}.") from error
            raise

    def _make_contact(self) -> None:
        async def first_page() -> Any:
            return await self._fs._call("GET", "b/{}/o", self._bucket, maxResults="1", json_out=True)

        try:
            fsspec.asyn.sync(self._fs.loop, first_page, timeout=FIRST_CONTACT_TIMEOUT_SECONDS)
        except FileNotFoundError as error:
            raise StoreError(
                f"{self.prefix}: there is no bucket {self._bucket}; make it (`gcloud storage buckets create "
                f"gs://{self._bucket}`) or name another."
            ) from error
        self._in_contact = True


async def _all_pages(filesystem: CheckedFileSystem, bucket: str, beginning: str) -> list[dict[str, str]]:
    items: list[dict[str, str]] = []
    token: str | None = None
    while True:
        page = await filesystem._call(
            "GET",
            "b/{}/o",
            bucket,
            prefix=beginning,
            maxResults=str(PAGE_SIZE),
            fields="items(name,size,updated),nextPageToken",
            pageToken=token,
            json_out=True,
        )
        items += page.get("items", [])
        token = page.get("nextPageToken")
        if not token:
            return items


LOG_IN = "log in with `gcloud auth application-default login`, or ask for the role Storage Object User on the bucket"


def _seconds(updated: str) -> float:
    return datetime.datetime.fromisoformat(updated.replace("Z", "+00:00")).timestamp()
