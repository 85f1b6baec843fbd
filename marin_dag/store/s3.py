"""S3Store: a Store on S3, or on a server that speaks its protocol, through s3fs; needs the extra `s3`.

Create-only is `If-None-Match: *`. Some servers ignore it, and there two runs would overwrite each other's records. So
the first create tests the server, and refuses it if the condition has no effect.
"""

import random
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import botocore.exceptions
import fsspec.asyn
import s3fs

from marin_dag.store.cloud import CREATOR, FIRST_CONTACT_TIMEOUT_SECONDS, CloudStore, first_line
from marin_dag.store.redact import redact
from marin_dag.store.retry import TRANSIENT_CODES
from marin_dag.store.store import BLOCK_IN_BYTES, Entry, StoreError, checked, checksum_of

PROBE = "conditional-write-probe"
CONFLICT_PAUSES_SECONDS = (0.25, 0.5, 1.0, 2.0, 4.0)
# botocore repeats requests itself, with a random pause that doubles.
REQUESTS = {"retries": {"mode": "standard", "max_attempts": 6}, "connect_timeout": 10, "read_timeout": 60}
LOG_IN = "Log in (`aws configure`, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), or ask for access to the bucket"


class S3Store(CloudStore):
    """A store at `s3://bucket/folder`. Address and credentials come from where AWS's own tools take them."""

    service = "S3"
    errors = (botocore.exceptions.BotoCoreError, fsspec.asyn.FSTimeoutError, OSError)
    delete_tool = "aws s3 rm"
    way_there = "the network, the proxy and AWS_ENDPOINT_URL"

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self._fs = s3fs.S3FileSystem(use_listings_cache=False, config_kwargs=REQUESTS)
        self._is_create_only = False

    def list(self, folder: str, starting_with: str = "") -> list[Entry]:
        beginning = f"{self._folder}{checked(folder)}/{starting_with}"
        items: list[dict[str, Any]] = []
        continued: dict[str, str] = {}
        while True:
            with self._explained(folder):
                page = self._call("list_objects_v2", Prefix=beginning, **continued)
            items += page.get("Contents", [])
            if not page.get("IsTruncated"):
                break
            continued = {"ContinuationToken": page["NextContinuationToken"]}
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

    def exists(self, path: str) -> bool:
        with self._explained(path):
            try:
                self._info(path)
            except FileNotFoundError:
                return False
            return True

    def blocks(self, path: str, start: int = 0) -> Iterator[bytes]:
        with self._explained(path), self._fs.open(self._path(path), cache_type="readahead") as file:
            file.seek(start)
            while block := file.read(BLOCK_IN_BYTES):
                yield block

    def write_blocks(self, path: str, blocks: Iterable[bytes]) -> None:
        with self._explained(path):
            file = self._fs.open(self._path(path), "wb")
            try:
                for block in blocks:
                    file.write(block)
            except BaseException:
                file.discard()  # parts that were sent cost money until the upload is given up
                file.closed = True  # otherwise the upload is finished when the file is freed
                raise
            file.close()

    def copy(self, source: str, target: str) -> None:
        with self._explained(target):
            self._fs.cp_file(self._path(source), self._path(target))

    def settle(self, path: str) -> tuple[int, str]:
        # S3 keeps no CRC32C of an object that was uploaded in parts, so its bytes are read.
        return checksum_of(self.blocks(path))

    def _create(self, path: str, data: bytes) -> bool:
        # botocore repeats a request whose reply was lost, and the second then meets the object of the first.
        own = {CREATOR: uuid.uuid4().hex}
        for pause in (*CONFLICT_PAUSES_SECONDS, None):
            with self._explained(path):
                try:
                    self._call("put_object", Key=self._key(path), Body=data, Metadata=own, IfNoneMatch="*")
                    return True
                except OSError as error:
                    if _status(error) == 412:
                        return self._metadata(path) == own
                    # 409: another create of this path is in progress, and either of the two may win.
                    if pause is None or _status(error) != 409:
                        raise
            time.sleep(pause * random.uniform(0.5, 1.0))  # so that those that met do not meet again
        raise AssertionError("the last try returns or raises")

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
                f"{self.prefix}: this server ignores `If-None-Match: *`, so two runs could overwrite each other's "
                "records. Pass a --prefix on S3 itself, on gs:// or on a local disk."
            )
        self._is_create_only = True

    def _call(self, method: str, **values: Any) -> Any:
        return self._fs.call_s3(method, Bucket=self._bucket, **values)

    def _path(self, path: str) -> str:
        return f"{self._root}/{checked(path)}"

    def _explanation(self, url: str, error: Exception) -> StoreError:
        is_login = isinstance(
            error, (botocore.exceptions.NoCredentialsError, botocore.exceptions.PartialCredentialsError)
        )
        if is_login or isinstance(error, PermissionError):
            return StoreError(f"{url}: {first_line(error)}. {LOG_IN}.")
        if isinstance(error, (botocore.exceptions.BotoCoreError, fsspec.asyn.FSTimeoutError)):
            return self._unreachable(url, error)
        status = _status(error)
        return StoreError(
            f"{url}: S3 answered {status or 'half an answer'} ({first_line(error)}). Run the same command again; "
            "nothing finished is lost.",
            is_transient=status is None or status in TRANSIENT_CODES | {409},
        )

    def _make_contact(self) -> None:
        try:
            self._fs.connect()
        except ValueError as error:  # botocore's, for a malformed address
            raise StoreError(
                f"{self.prefix}: {redact(str(error))}. The address of S3 in AWS_ENDPOINT_URL or in the profile must "
                "begin with http:// or https://."
            ) from error
        self._check_network(self._fs.s3.meta.endpoint_url)
        try:
            self._call("list_objects_v2", MaxKeys=1, timeout=FIRST_CONTACT_TIMEOUT_SECONDS)
        except FileNotFoundError as error:
            raise StoreError(
                f"{self.prefix}: there is no bucket {self._bucket}. Make it (`aws s3 mb s3://{self._bucket}`) or name "
                "another."
            ) from error


def _status(error: BaseException) -> int | None:
    response = getattr(error.__cause__, "response", None) or {}
    status: int | None = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status
