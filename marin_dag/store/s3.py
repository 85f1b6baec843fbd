"""S3Store: a Store on S3, or on a server that speaks like it, through s3fs; needs the extra `s3`.

Create-only is `If-None-Match: *`. Some servers that speak S3 take no notice of it, and two runs would overwrite each
other's records there; so the first create tries it out, and refuses such a server.
"""

import contextlib
import time
import uuid
from collections.abc import Iterator
from typing import Any

import botocore.exceptions
import fsspec.asyn
import google_crc32c
import s3fs

from marin_dag.store.cloud import FIRST_CONTACT_TIMEOUT_SECONDS, CloudStore, first_line
from marin_dag.store.redact import redact
from marin_dag.store.retry import TRANSIENT_CODES, Backoff
from marin_dag.store.store import CHECKSUM_BLOCK_IN_BYTES, Entry, StoreError, checked

CREATOR = "creator"
PROBE = "conditional-write-probe"
BACKOFF = Backoff()
# Requests are tried again by botocore itself, with a pause that doubles and is drawn at random.
REQUESTS = {"retries": {"mode": "standard", "max_attempts": 6}, "connect_timeout": 10, "read_timeout": 60}


class S3Store(CloudStore):
    """`s3://bucket/folder`. Address and credentials come from where AWS's own tools take them."""

    service = "S3"
    way_there = "the network, the proxy and AWS_ENDPOINT_URL"

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix, s3fs.S3FileSystem(use_listings_cache=False, config_kwargs=REQUESTS))
        self._is_create_only = False

    def list(self, folder: str, starting_with: str = "") -> list[Entry]:
        beginning = f"{self._folder}{checked(folder)}/{starting_with}"
        items: list[dict[str, Any]] = []
        asked: dict[str, str] = {}
        while True:
            with self._explained(folder):
                page = self._call("list_objects_v2", Prefix=beginning, **asked)
            items += page.get("Contents", [])
            if not page.get("IsTruncated"):
                break
            asked = {"ContinuationToken": page["NextContinuationToken"]}
        return self._entries((item["Key"], item["Size"], item["LastModified"].timestamp()) for item in items)

    def read(self, path: str) -> bytes:
        with self._explained(path):
            return bytes(self._fs.cat_file(self._path(path), max_concurrency=1))

    def create(self, path: str, data: bytes) -> bool:
        if not self._is_create_only:
            self._require_create_only()
        return self._create(path, data)

    def write(self, path: str, data: bytes) -> None:
        with self._explained(path):
            self._call("put_object", Key=self._key(path), Body=data)

    def delete(self, path: str) -> None:
        with self._explained(path):
            self._call("delete_object", Key=self._key(path))

    def settle(self, path: str) -> tuple[int, str]:
        # S3 keeps no CRC32C of what came in parts, so that the bytes are read once more.
        checksum, size = google_crc32c.Checksum(), 0
        with self._explained(path), self._fs.open(self._path(path), cache_type="readahead") as file:
            while block := file.read(CHECKSUM_BLOCK_IN_BYTES):
                checksum.update(block)
                size += len(block)
        return size, checksum.digest().hex()

    def _abandon(self, file: Any) -> None:
        file.discard()  # parts that were sent are paid for until they are given up
        super()._abandon(file)

    def _create(self, path: str, data: bytes) -> bool:
        # botocore sends a request again when its reply was lost; the second then meets the object of the first. The
        # random creator tells this call's own object from another's, even where both hold the same bytes.
        own = {CREATOR: uuid.uuid4().hex}
        pauses = BACKOFF.pauses()
        while True:
            with self._explained(path):
                try:
                    self._call("put_object", Key=self._key(path), Body=data, Metadata=own, IfNoneMatch="*")
                    return True
                except OSError as error:
                    if _status(error) == 412:
                        return self._metadata(path) == own
                    # 409: another create of this path is under way, and which of the two wins is not known yet.
                    pause = pauses.after(TimeoutError()) if _status(error) == 409 else None
                    if pause is None:
                        raise
            time.sleep(pause)

    def _metadata(self, path: str) -> Any:
        try:
            return self._info(path)["Metadata"]
        except FileNotFoundError:  # deleted since
            return None

    def _info(self, path: str) -> Any:
        return self._call("head_object", Key=self._key(path))

    def _require_create_only(self) -> None:
        probe = f"{PROBE}-{uuid.uuid4().hex}"
        outcomes = [self._create(probe, b""), self._create(probe, b"")]
        self.delete(probe)
        if outcomes != [True, False]:
            raise StoreError(
                f"{self.prefix}: this server takes no notice of `If-None-Match: *`, so that two runs could overwrite "
                "each other's records; pass a --prefix on S3 itself, on gs:// or on a local disk."
            )
        self._is_create_only = True

    def _call(self, method: str, **values: Any) -> Any:
        return self._fs.call_s3(method, Bucket=self._bucket, **values)

    @contextlib.contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        url = f"{self.prefix}/{path}"
        try:
            if not self._in_contact:
                self._make_contact()
            yield
        except FileNotFoundError:
            raise
        except (botocore.exceptions.NoCredentialsError, botocore.exceptions.PartialCredentialsError) as error:
            raise StoreError(f"{url}: {first_line(error)}; {LOG_IN}.") from error
        except (botocore.exceptions.BotoCoreError, fsspec.asyn.FSTimeoutError) as error:
            raise self._unreachable(url, error) from error
        except PermissionError as error:
            raise StoreError(f"{url}: {first_line(error)}; {LOG_IN}.") from error
        except OSError as error:
            status = _status(error)
            is_transient = status is None or status in TRANSIENT_CODES | {409}
            raise StoreError(
                f"{url}: S3 answered {status or 'half an answer'} ({first_line(error)}); run the same command again, "
                "nothing finished is lost.",
                is_transient=is_transient,
            ) from error

    def _make_contact(self) -> None:
        try:
            self._fs.connect()
        except ValueError as error:  # botocore's of an address
            raise StoreError(
                f"{self.prefix}: {redact(str(error))}; an address of S3, which AWS_ENDPOINT_URL or the profile gives, "
                "begins with http:// or https://."
            ) from error
        self._refuse_no_network(self.prefix, self._fs.s3.meta.endpoint_url)

        async def first_page() -> Any:
            return await self._fs._call_s3("list_objects_v2", Bucket=self._bucket, MaxKeys=1)

        try:
            fsspec.asyn.sync(self._fs.loop, first_page, timeout=FIRST_CONTACT_TIMEOUT_SECONDS)
        except FileNotFoundError as error:
            raise StoreError(
                f"{self.prefix}: there is no bucket {self._bucket}; make it (`aws s3 mb s3://{self._bucket}`) or name "
                "another."
            ) from error
        self._in_contact = True


LOG_IN = "log in (`aws configure`, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), or ask for access to the bucket"


def _status(error: BaseException) -> int | None:
    """The status of the answer that became `error`; None where no whole answer came."""
    response = getattr(error.__cause__, "response", None) or {}
    status: int | None = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status
