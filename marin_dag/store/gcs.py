"""GcsStore: a Store on Google Cloud Storage, whose reads and listings are strongly consistent."""

import base64
import contextlib
import datetime
import functools
import json
import logging
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import google.api_core.exceptions
import google.auth.exceptions
import google.cloud.storage.exceptions
import google_crc32c
import requests
from google.api_core.retry import Retry
from google.cloud import storage

from marin_dag.store.cloud import CREATOR, FIRST_CONTACT_TIMEOUT_SECONDS, MAX_REASON_CHARACTERS, CloudStore, first_line
from marin_dag.store.redact import redact
from marin_dag.store.retry import TRANSIENT_CODES, is_transient
from marin_dag.store.store import Entry, Store, StoreError, checked

ADDRESS = "https://storage.googleapis.com"
EMULATOR = "STORAGE_EMULATOR_HOST"
"""Environment variable of Google's clients: the address of a server that stands in for Cloud Storage."""
CONNECT_SECONDS, SILENCE_SECONDS = 10.0, 60.0
SLOWEST_BYTES_PER_SECOND = 100_000
"""A large upload may be silent for as long as it takes at this rate."""
CREATE_ATTEMPTS = 3
BLOCK_IN_BYTES = 8 << 20
NO_BUCKET_REQUESTS = "DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA"
"""Environment variable: Google's client asks for the bucket after each 404, for traces that nothing here collects."""
DAMAGED_UPLOAD = re.compile(r"(crc32c|md5|checksum|hash).*(match|mismatch)", re.IGNORECASE)
"""Found in the reason of a 400, for bytes that differ from the checksum that came with them."""
LOG_IN = "Log in with `gcloud auth application-default login`, or ask for the role Storage Object User on the bucket"


class TransferError(Exception):
    """Bytes that came with another size than the store announced, or that the store got with another checksum."""

    is_transient = True


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, google.cloud.storage.exceptions.InvalidResponse):
        status = error.response.status_code
        return status in TRANSIENT_CODES or (status == 400 and DAMAGED_UPLOAD.search(_reason(error)) is not None)
    if isinstance(error, google.auth.exceptions.GoogleAuthError):
        return error.retryable
    return isinstance(error, google.cloud.storage.exceptions.DataCorruption) or is_transient(error)


RETRY = Retry(predicate=_may_pass, initial=0.25, maximum=15.0, multiplier=2.0, timeout=20.0)
"""How a request is repeated; the pauses in seconds are drawn at random up to the growing limit."""


class GcsStore(CloudStore):
    """A store at `gs://bucket/folder`."""

    service = "Cloud Storage"
    errors = (
        google.api_core.exceptions.GoogleAPIError,
        google.auth.exceptions.GoogleAuthError,
        google.cloud.storage.exceptions.InvalidResponse,
        google.cloud.storage.exceptions.DataCorruption,
        requests.exceptions.RequestException,
        ConnectionError,
        TransferError,
    )
    delete_tool = "gcloud storage rm"
    way_there = "the network and the proxy"

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self._client: storage.Client | None = None

    def list(self, folder: str, starting_with: str = "") -> list[Entry]:
        beginning = f"{self._folder}{checked(folder)}/{starting_with}"
        with self._explained(folder):
            fields = "items(name,size,updated),nextPageToken"
            pages = self._contacted.list_blobs(self._bucket, prefix=beginning, fields=fields, **_patience()).pages
            # Raw items: to make a Blob of each takes longer than all the rest.
            items = [item for page in pages for item in page.raw_page.get("items", ())]
        parsed = datetime.datetime.fromisoformat
        return self._entries((item["name"], int(item["size"]), parsed(item["updated"]).timestamp()) for item in items)

    def read(self, path: str) -> bytes:
        with self._explained(path):
            return self._download(self._blob(path))

    def create(self, path: str, data: bytes) -> bool:
        # A request is repeated when its reply was lost, and the second then meets the object of the first.
        creator = uuid.uuid4().hex
        with self._explained(path):
            for _ in range(CREATE_ATTEMPTS):
                blob = self._blob(path)
                blob.metadata = {CREATOR: creator}
                try:
                    _upload(blob, data, if_generation_match=0)
                    return True
                except google.api_core.exceptions.PreconditionFailed:
                    with contextlib.suppress(google.api_core.exceptions.NotFound):
                        return self._is_created(blob, creator, data)
                # No such object: its creator has deleted it since, or the server answered damaged bytes with 412.
            raise TransferError(f"{blob.name}: the store refused the object as existing, but no such object exists")

    def _is_created(self, blob: storage.Blob, creator: str, data: bytes) -> bool:
        """Return whether the first request of this call made the object that its second request found."""
        blob.reload(**_patience())
        if (blob.metadata or {}).get(CREATOR) != creator:
            return False
        if base64.b64decode(blob.crc32c) != google_crc32c.Checksum(data).digest():
            blob.delete(if_generation_match=blob.generation, **_patience())
            raise TransferError(f"{blob.name}: the upload arrived damaged")
        return True

    def write(self, path: str, data: bytes) -> None:
        with self._explained(path):
            _upload(self._blob(path), data)

    def delete(self, path: str) -> None:
        with self._explained(path), contextlib.suppress(google.api_core.exceptions.NotFound):
            self._blob(path).delete(**_patience())

    def exists(self, path: str) -> bool:
        with self._explained(path):
            return bool(self._blob(path).exists(**_patience()))

    def blocks(self, path: str, start: int = 0) -> Iterator[bytes]:
        with self._explained(path):
            blob = self._blob(path)
            blob.reload(**_patience())  # from now on requests name this generation of the object
            for first in range(start, blob.size, BLOCK_IN_BYTES):
                yield self._range(blob, first, min(BLOCK_IN_BYTES, blob.size - first))

    def write_blocks(self, path: str, blocks: Iterable[bytes]) -> None:
        how = {"chunk_size": BLOCK_IN_BYTES, "checksum": "crc32c", **_patience(BLOCK_IN_BYTES)}
        # The object exists when the file is closed, and never if its block ends by an error.
        with self._explained(path), self._blob(path).open("wb", **how) as file:
            file.writelines(blocks)

    def copy(self, source: str, target: str) -> None:
        self._rewrite(self, source, target)

    def copy_from(self, other: Store, path: str, check: Callable[[int, str], object]) -> bool:
        if not isinstance(other, GcsStore):
            return False
        check(*other.settle(path))
        self._rewrite(other, path, path)
        return True

    def settle(self, path: str) -> tuple[int, str]:
        with self._explained(path):
            blob = self._blob(path)
            blob.reload(**_patience())
        return blob.size, base64.b64decode(blob.crc32c).hex()

    def _rewrite(self, other: "GcsStore", source: str, target: str) -> None:
        with self._explained(target):
            blob, token = self._contacted.bucket(other._bucket).blob(other._key(source)), None
            while True:  # a large object takes several requests
                token, _, _ = self._blob(target).rewrite(blob, token=token, **_patience())
                if token is None:
                    return

    def _range(self, blob: storage.Blob, start: int, length: int) -> bytes:
        def download() -> bytes:
            data = self._download(blob, start=start, end=start + length - 1)
            if len(data) != length:
                raise TransferError(f"{blob.name}: {len(data)} bytes came of the {length} from {start} on")
            return data

        return RETRY(download)()

    def _download(self, blob: storage.Blob, **kwargs: Any) -> bytes:
        checksum = None if kwargs else "crc32c"  # the checksum that the store sends is that of the whole object
        # The library leaves it to the caller to repeat a download with a wrong checksum.
        download = functools.partial(blob.download_as_bytes, checksum=checksum, **_patience() | {"retry": None})
        return cast(bytes, RETRY(download)(**kwargs))

    def _blob(self, path: str) -> storage.Blob:
        return self._contacted.bucket(self._bucket).blob(self._key(path))

    @property
    def _contacted(self) -> storage.Client:
        assert self._client is not None
        return self._client

    def _explanation(self, url: str, error: Exception) -> Exception:
        if isinstance(error, google.api_core.exceptions.RetryError):
            error = error.cause
        if isinstance(error, google.api_core.exceptions.NotFound):
            return FileNotFoundError(url)
        if isinstance(error, google.auth.exceptions.GoogleAuthError) and not error.retryable:
            return StoreError(f"{url}: {first_line(error)}. {LOG_IN}.")
        code = getattr(error, "code", None)
        if isinstance(error, google.cloud.storage.exceptions.InvalidResponse):
            code = error.response.status_code
        if code is None:  # requests wraps the reason twice
            return self._unreachable(url, getattr(next(iter(error.args), None), "reason", error))
        fix = LOG_IN if code in (401, 403) else "Run the same command again; nothing finished is lost"
        return StoreError(
            f"{url}: Cloud Storage answered {int(code)} ({_reason(error)}). {fix}.",
            is_transient=code in TRANSIENT_CODES,
        )

    def _make_contact(self) -> None:
        emulator = os.environ.get(EMULATOR, "")
        self._check_network(emulator or ADDRESS)
        client = self._client = _client_of(emulator, os.getpid())
        try:
            timeout = FIRST_CONTACT_TIMEOUT_SECONDS
            list(client.list_blobs(self._bucket, max_results=1, timeout=timeout, retry=RETRY.with_timeout(timeout)))
        except google.api_core.exceptions.NotFound as error:
            raise StoreError(
                f"{self.prefix}: there is no bucket {self._bucket}. Make it (`gcloud storage buckets create "
                f"gs://{self._bucket}`) or name another."
            ) from error


@functools.cache
def _client_of(emulator: str, process: int) -> storage.Client:
    """Return the client of a process: its connections and credentials serve all stores, and no forked process."""
    os.environ.setdefault(NO_BUCKET_REQUESTS, "true")
    # More threads than the client's pool holds connections are no reason to warn.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    client = storage.Client.create_anonymous_client() if emulator else storage.Client(project=None)
    client._http.hooks["response"].append(_drop_deep_page)
    return client


def _drop_deep_page(response: requests.Response, **_: Any) -> None:
    """Drop the page of an error if it is nested too deep for JSON: Google's library would raise RecursionError."""
    if response.status_code >= 400:
        with contextlib.suppress(ValueError):
            try:
                response.json()
            except RecursionError:
                response._content = b""


def _upload(blob: storage.Blob, data: bytes, *, if_generation_match: int | None = None) -> None:
    blob.upload_from_string(
        data,
        content_type="application/octet-stream",
        checksum="crc32c",
        if_generation_match=if_generation_match,
        **_patience(len(data)),
    )


def _reason(error: BaseException) -> str:
    """Return what the store itself says about a refused request."""
    try:
        found = cast(Any, error).response.json()
        while isinstance(found, dict):  # a proxy may put the answer of another server into the message
            found = found["error"] if "error" in found else found.get("message") or found["errors"][0]
            with contextlib.suppress(ValueError):  # Google's testbench writes the error as text
                found = json.loads(found) if isinstance(found, str) and found.startswith("{") else found
        return redact(str(found))[:MAX_REASON_CHARACTERS]
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
        return first_line(error)


def _patience(size_in_bytes: int = 0) -> dict[str, Any]:
    """Return the arguments of a request that carries that many bytes."""
    return {"timeout": (CONNECT_SECONDS, SILENCE_SECONDS + size_in_bytes / SLOWEST_BYTES_PER_SECOND), "retry": RETRY}
