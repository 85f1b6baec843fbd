"""Faults of cloud stores: each operation survives transient faults and reports permanent ones at once.

The faults are real ones of local servers: refusals, cut connections, half answers.
"""

import asyncio
import dataclasses
import inspect
import json
import uuid
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import fsspec
import google_crc32c
import pytest
from google.api_core import page_iterator
from google.api_core.retry import Retry
from google.cloud import storage
from google.cloud.storage import fileio

from marin_dag.store import gcs as gcs_module
from marin_dag.store.prefix import open_store
from marin_dag.store.retry import is_transient
from marin_dag.store.store import Store, StoreError
from marin_dag.store.watched_reads import watch_reads
from tests.catalogue import check_message, expect_error
from tests.gcs_server.control import GcsServerProcess
from tests.gcs_server.faults import Fault
from tests.s3_server.server import S3Server

DATA = bytes(range(256)) * 1000
FAST = Retry(predicate=gcs_module._may_pass, initial=0.02, maximum=0.1, multiplier=2.0, timeout=20.0)
WITHOUT_PAUSES = SimpleNamespace(**vars(asyncio) | {"sleep": lambda seconds: asyncio.sleep(0)})


@dataclasses.dataclass
class Cloud:
    """A store and its server."""

    store: Store
    add_fault: Callable[[Fault], None]
    clear_faults: Callable[[], None]
    requests: Callable[[], list[str]]
    """METHOD /path?query of each request so far."""
    name: str


@pytest.fixture(params=["gcs", "s3"])
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    if request.param == "gcs":
        monkeypatch.setattr(gcs_module, "RETRY", FAST)
        yield from _gcs_cloud(request.getfixturevalue("gcs_server"), request.getfixturevalue("gcs_bucket"))
    else:
        yield from _s3_cloud(request.getfixturevalue("s3_server"), request.getfixturevalue("s3_bucket"), monkeypatch)


@pytest.fixture
def gcs(gcs_server: GcsServerProcess, gcs_bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setattr(gcs_module, "RETRY", FAST)
    yield from _gcs_cloud(gcs_server, gcs_bucket)


def _gcs_cloud(server: GcsServerProcess, bucket: str) -> Iterator[Cloud]:
    store = _with_some_objects(f"gs://{bucket}/{uuid.uuid4().hex}")
    server.clear_requests()

    def requests() -> list[str]:
        return [entry["request"] for entry in server.requests()]

    yield Cloud(store, server.add_fault, server.clear_faults, requests, "gcs")
    server.clear_faults()


def _s3_cloud(server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    store = _with_some_objects(f"s3://{bucket}/{uuid.uuid4().hex}")
    server.requests.clear()
    # The pauses of botocore and of s3fs, which are seconds.
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda self, context: 0.001)
    monkeypatch.setattr("s3fs.core.asyncio", WITHOUT_PAUSES)
    yield Cloud(store, server.faults.add, server.faults.clear, lambda: list(server.requests), "s3")
    server.faults.clear()


def _with_some_objects(prefix: str) -> Store:
    store = open_store(prefix)
    assert store.create("there", DATA)
    store.write("folder/one", b"1")
    return store


def _write_stream(store: Store) -> bytes:
    store.write_blocks("stream", iter([DATA]))
    return store.read("stream")


def _read_stream(store: Store) -> bytes:
    return b"".join(store.blocks("there"))


def _copy(store: Store) -> bytes:
    store.copy("there", "copied")
    return store.read("copied")


def _write(store: Store) -> bytes:
    store.write("there", b"new")
    return store.read("there")


def _delete(store: Store) -> bool:
    store.delete("there")
    return store.exists("there")


OPERATIONS: dict[str, tuple[Callable[[Store], Any], Any]] = {
    "list": (lambda store: [entry.path for entry in store.list("folder")], ["folder/one"]),
    "read": (lambda store: store.read("there"), DATA),
    "create": (
        lambda store: (store.create("new", b"1"), store.create("there", b"1"), store.read("new")),
        (True, False, b"1"),
    ),
    "write": (_write, b"new"),
    "delete": (_delete, False),
    "exists": (lambda store: (store.exists("there"), store.exists("gone")), (True, False)),
    "open for reading": (_read_stream, DATA),
    "open for writing": (_write_stream, DATA),
    "copy": (_copy, DATA),
    "settle": (lambda store: store.settle("there"), (len(DATA), google_crc32c.Checksum(DATA).digest().hex())),
}
TRANSIENT = {
    "503": Fault("status", status=503, count=2),
    "429": Fault("status", status=429, count=2, seconds=1),
    "500": Fault("status", status=500, count=1),
    "reset": Fault("reset", count=2),
    "lost reply": Fault("lost_reply", count=1),
    "truncated body": Fault("truncated", count=1),
    "one in four": Fault("lost_reply", probability=0.25, seed=3),
}


@pytest.mark.parametrize("fault", TRANSIENT)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_survives_transient_faults(cloud: Cloud, operation: str, fault: str):
    if cloud.name == "s3" and fault == "429":
        fault = "503"  # which is how S3 says "slow down"
    act, expected = OPERATIONS[operation]
    cloud.add_fault(TRANSIENT[fault])
    assert act(cloud.store) == expected


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_permanent_fault_is_not_retried(cloud: Cloud, operation: str):
    act, _ = OPERATIONS[operation]
    cloud.add_fault(Fault("status", status=403))
    with expect_error(StoreError) as caught:
        act(cloud.store)
    assert not is_transient(caught.value)
    # To open a file, s3fs sends several kinds of requests.
    assert len(cloud.requests()) <= 10


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_lasting_transient_fault_is_a_transient_error(cloud: Cloud, operation: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gcs_module, "RETRY", FAST.with_timeout(0.1))
    act, _ = OPERATIONS[operation]
    cloud.add_fault(Fault("status", status=503))
    with pytest.raises((StoreError, OSError)) as caught:
        act(cloud.store)
    assert is_transient(caught.value)
    # The number depends on the pauses, and s3fs repeats requests itself.
    assert 2 <= len(cloud.requests()) <= 400


def test_the_first_contact_survives_a_transient_fault(cloud: Cloud):
    cloud.add_fault(Fault("status", status=503, count=1))
    assert [entry.path for entry in open_store(cloud.store.prefix).list("folder")] == ["folder/one"]


def test_a_missing_object_is_asked_for_once(cloud: Cloud):
    with pytest.raises(FileNotFoundError):
        cloud.store.read("gone")
    assert len(cloud.requests()) == 1


def test_a_create_without_a_reply_recognizes_its_own_object(cloud: Cloud):
    cloud.add_fault(Fault("lost_reply", where="^(POST|PUT)", count=1))
    assert cloud.store.create("mine", b"1")
    cloud.add_fault(Fault("lost_reply", where="^(POST|PUT)", count=1))
    assert not cloud.store.create("mine", b"1")  # equal bytes of another call
    assert cloud.store.read("mine") == b"1"


@pytest.mark.parametrize("kind", ["corrupt", "short"])
def test_a_corrupted_download_is_never_returned(gcs: Cloud, kind: Any, monkeypatch: pytest.MonkeyPatch):
    gcs.add_fault(Fault(kind, where="alt=media", count=2))
    assert gcs.store.read("there") == DATA
    gcs.add_fault(Fault("short", where="alt=media", count=2))
    assert _read_stream(gcs.store) == DATA
    monkeypatch.setattr(gcs_module, "RETRY", FAST.with_timeout(0.1))
    gcs.add_fault(Fault(kind, where="alt=media"))
    with expect_error(StoreError) as caught:
        gcs.store.read("there")
    assert is_transient(caught.value)


def test_half_a_listing_is_a_transient_error(gcs: Cloud):
    gcs.add_fault(Fault("short", where="^GET .*/o[?]", count=1))
    with expect_error(StoreError) as caught:
        gcs.store.list("folder")
    assert is_transient(caught.value)


def test_a_large_upload_resumes_after_faults(gcs: Cloud):
    data = DATA * 30  # two chunks of a resumable upload
    gcs.add_fault(Fault("lost_reply", where="upload_id=", count=2))
    gcs.add_fault(Fault("status", where="upload_id=", status=503, count=3))
    gcs.store.write_blocks("large", (data[start : start + 100_000] for start in range(0, len(data), 100_000)))
    assert gcs.store.settle("large") == (len(data), google_crc32c.Checksum(data).digest().hex())


# As Google's testbench and its proxies send them: a message that is an object, a code that is no number, a page that no
# parser of JSON reads.
ODD_ERRORS = (
    '{"error": {"code": 503, "message": {"error": {"message": "backend invalid"}}}}',
    '{"error": {"code": "unavailable", "message": "invalid"}}',
    json.dumps({"code": 503, "message": json.dumps({"error": {"errors": [{"message": "backend invalid"}]}})}),
    "invalid",
    "[" * 99_000,
    json.dumps({"error": {"message": '{"error":' * 30_000}}),
)


@pytest.mark.parametrize("document", ODD_ERRORS, ids=range(len(ODD_ERRORS)))
def test_the_status_decides_whatever_the_text_of_an_error_is(gcs: Cloud, document: str):
    for act, expected in OPERATIONS.values():
        gcs.add_fault(Fault("status", status=503, count=1, document=document))
        assert act(_with_some_objects(f"{gcs.store.prefix}/{uuid.uuid4().hex}")) == expected
    gcs.clear_faults()
    gcs.add_fault(Fault("status", status=403, document=document))
    with pytest.raises(StoreError) as caught:
        gcs.store.read("there")
    check_message(str(caught.value))
    assert not is_transient(caught.value)


@pytest.mark.parametrize("document", ODD_ERRORS, ids=range(len(ODD_ERRORS)))
def test_the_status_decides_for_fsspec_too(gcs: Cloud, document: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gcsfs.retry.asyncio", WITHOUT_PAUSES)
    read: list[str] = []
    watch_reads("gs", read.append)
    gcs.add_fault(Fault("status", where="alt=media", status=503, count=1, document=document))
    url = f"{gcs.store.prefix}/there"
    assert fsspec.filesystem("gs", token="anon", skip_instance_cache=True).cat_file(url) == DATA
    assert set(read) == {url}


def test_an_upload_that_arrives_damaged_is_sent_again(gcs: Cloud):
    gcs.add_fault(Fault("damaged", where="^POST", count=1))
    assert gcs.store.create("mine", DATA)
    gcs.add_fault(Fault("damaged", where="^POST", count=1))
    gcs.store.write("other", DATA)
    assert gcs.store.read("mine") == gcs.store.read("other") == DATA


@pytest.mark.parametrize("count", [1, None])
def test_bytes_that_are_refused_like_a_failed_condition_are_nobody_elses_object(gcs: Cloud, count: int | None):
    """Google's testbench answers 412 to an upload with a wrong checksum."""
    gcs.add_fault(Fault("status", where="^POST", status=412, count=count))
    if count is None:
        with pytest.raises(StoreError) as caught:
            gcs.store.create("mine", DATA)
        assert is_transient(caught.value)
    else:
        assert gcs.store.create("mine", DATA) and gcs.store.read("mine") == DATA
    gcs.clear_faults()
    assert gcs.store.exists("mine") == (count == 1)


def test_a_damaged_object_of_a_create_is_not_taken_for_that_of_another(gcs: Cloud, monkeypatch: pytest.MonkeyPatch):
    def damaged(blob: storage.Blob, data: bytes, **conditions: Any) -> None:
        upload(blob, data[:-1], **conditions)  # stored, its reply lost, and sent again
        upload(blob, data, **conditions)

    upload = gcs_module._upload
    monkeypatch.setattr(gcs_module, "_upload", damaged)
    with pytest.raises(StoreError) as caught:
        gcs.store.create("mine", DATA)
    assert is_transient(caught.value)
    monkeypatch.setattr(gcs_module, "_upload", upload)
    assert gcs.store.create("mine", DATA)


def test_the_client_of_cloud_storage_is_of_a_supported_version():
    # Public members that GcsStore needs, some of them younger than others.
    assert {"open", "rewrite", "upload_from_string", "download_as_bytes"} <= set(dir(storage.Blob))
    assert hasattr(fileio.BlobWriter, "terminate") and hasattr(page_iterator.Page, "raw_page")
    assert "retry" in inspect.signature(storage.Blob.download_as_bytes).parameters


def test_a_server_that_ignores_the_condition_of_a_create_is_refused(s3_server: S3Server, s3_bucket: str):
    s3_server.ignores_if_none_match = True
    try:
        with expect_error(StoreError):
            open_store(f"s3://{s3_bucket}/{uuid.uuid4().hex}").create("commits/x", b"1")
    finally:
        s3_server.ignores_if_none_match = False


def test_a_missing_bucket_on_s3_is_an_error(s3_server: S3Server):
    with expect_error(StoreError):
        open_store("s3://no-such-bucket/runs").list("commits")


def test_credentials_in_a_prefix_are_refused_and_hidden():
    with expect_error(StoreError) as caught:
        open_store("s3://key:planted-secret@bucket/runs")
    assert "planted" not in str(caught.value)
