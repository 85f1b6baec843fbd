"""The fake Cloud Storage works with the clients of production, and its faults act as documented."""

import http.client
import io
import os
import time
from collections.abc import Iterator

import fsspec.asyn
import gcsfs.core
import numpy as np
import pytest
import tensorstore as ts
from google.api_core.exceptions import PreconditionFailed
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from tests.catalogue import expect_error
from tests.gcs_server.control import GcsControl, GcsServerProcess
from tests.gcs_server.faults import Fault
from tests.gcs_server.server import GcsServer
from tests.gcs_server.wire import Wire

DATA = bytes(range(256)) * 10_000


@pytest.fixture
def server() -> Iterator[GcsControl]:
    with GcsServer() as running:
        control = GcsControl(running.url)
        control.make_bucket("test")
        yield control


@pytest.fixture
def filesystem(server: GcsControl) -> gcsfs.core.GCSFileSystem:
    return gcsfs.core.GCSFileSystem(
        endpoint_url=server.url, token="anon", use_listings_cache=False, skip_instance_cache=True
    )


def _write_in_chunks(filesystem: gcsfs.core.GCSFileSystem, path: str, mode: str) -> None:
    with filesystem.open(path, mode, block_size=2**19) as file:
        for start in range(0, len(DATA), 2**19):  # aiohttp warns about bodies above 1 MB
            file.write(DATA[start : start + 2**19])


def test_gcsfs_reads_writes_lists_copies_moves_and_deletes(filesystem: gcsfs.core.GCSFileSystem):
    filesystem.pipe_file("test/a/small", b"small")
    _write_in_chunks(filesystem, "test/a/large", "wb")
    assert filesystem.cat_file("test/a/large") == DATA
    with filesystem.open("test/a/large") as file:
        file.seek(100_000)
        assert file.read(5) == DATA[100_000:100_005]
    filesystem.cp_file("test/a/large", "test/b/copy")
    filesystem.mv("test/b/copy", "test/b/moved")
    assert filesystem.find("test") == ["test/a/large", "test/a/small", "test/b/moved"]
    assert filesystem.ls("test/a") == ["test/a/large", "test/a/small"]
    filesystem.rm("test/a", recursive=True)
    assert filesystem.find("test") == ["test/b/moved"]


def test_gcsfs_creates_once_by_either_way_of_uploading(filesystem: gcsfs.core.GCSFileSystem):
    filesystem.pipe_file("test/x", b"first", mode="create")
    with pytest.raises(FileExistsError):
        filesystem.pipe_file("test/x", b"second", mode="create")
    with pytest.raises(FileExistsError):
        _write_in_chunks(filesystem, "test/x", "xb")
    assert filesystem.cat_file("test/x") == b"first"


def test_gcsfs_deletes_in_batches(server: GcsControl, filesystem: gcsfs.core.GCSFileSystem):
    # By itself gcsfs sends batches to Google only.
    server.fill("test", {f"many/{index}": "x" for index in range(100)})
    fsspec.asyn.sync(filesystem.loop, filesystem._rm_files, filesystem.find("test/many"))
    assert filesystem.find("test/many") == []
    assert len(server.requests("^POST /batch")) == 1


def test_google_cloud_storage_uploads_conditionally_downloads_checked_composes_and_batches(
    server: GcsControl, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
    client = storage.Client(project="p", credentials=AnonymousCredentials())
    bucket = client.bucket("test")
    bucket.blob("x").upload_from_string("first", if_generation_match=0, checksum="crc32c")
    with pytest.raises(PreconditionFailed):
        bucket.blob("x").upload_from_string("second", if_generation_match=0)
    large = bucket.blob("large", chunk_size=2**20)
    large.upload_from_file(io.BytesIO(DATA))
    assert bucket.blob("large").download_as_bytes(checksum="crc32c") == DATA
    bucket.blob("both").compose([bucket.blob("x"), bucket.blob("x")])
    assert bucket.blob("both").download_as_bytes() == b"firstfirst"
    assert [blob.name for blob in client.list_blobs("test")] == ["both", "large", "x"]
    with client.batch():
        bucket.blob("x").delete()
        bucket.blob("both").delete()
    assert [blob.name for blob in client.list_blobs("test")] == ["large"]
    with pytest.raises(PreconditionFailed):
        bucket.blob("large").delete(if_generation_match=1)
    client.close()


def test_tensorstore_writes_reads_lists_and_deletes_ranges(server: GcsControl, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", server.url)
    folder = {"driver": "gcs", "bucket": "test", "path": "ts/"}
    context = ts.Context()  # the default context remembers the address of an earlier test
    spec = {"driver": "zarr3", "kvstore": folder, "metadata": {"shape": [100, 100], "data_type": "float32"}}
    array = ts.open(spec, create=True, context=context).result()
    values = np.arange(10_000, dtype=np.float32).reshape(100, 100)
    array.write(values).result()
    again = ts.open({"driver": "zarr3", "kvstore": folder}, context=ts.Context()).result()
    np.testing.assert_array_equal(again.read().result(), values)
    files = ts.KvStore.open(folder, context=context).result()
    assert sorted(files.list().result()) == [b"c/0/0", b"zarr.json"]
    files.delete_range(ts.KvStore.KeyRange("c", "d")).result()
    assert files.list().result() == [b"zarr.json"]
    assert server.requests("^GET /storage/v1/b/test/o.*alt=media")


def test_tensorstore_compares_and_swaps(server: GcsControl, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", server.url)
    files = ts.KvStore.open({"driver": "gcs", "bucket": "test"}, context=ts.Context()).result()
    first = files.write("x", b"1").result()
    second = files.write("x", b"2", if_equal=first.generation).result()
    stale = files.write("x", b"3", if_equal=first.generation).result()
    assert stale.generation not in (first.generation, second.generation)
    assert files.read("x").result().value == b"2"


# Faults


def test_a_status_fault_occurs_count_times_and_applies_nothing(server: GcsControl):
    server.add_fault(Fault("status", where="^POST .*name=x", status=429, seconds=3, count=2))
    wire = Wire(server.url, "test")
    first, second, third = (wire.media("x", b"1") for _ in range(3))
    assert [first.status, second.status, third.status] == [429, 429, 200]
    assert first.headers["retry-after"] == "3"
    assert wire.media("y", b"1").status == 200
    assert [(entry["status"], entry["fault"]) for entry in server.requests("name=x")] == [
        (429, "status"),
        (429, "status"),
        (200, ""),
    ]


def test_a_lost_reply_is_applied_and_a_reset_is_not(server: GcsControl):
    wire = Wire(server.url, "test")
    for kind, name in (("lost_reply", "applied"), ("reset", "not-applied")):
        server.add_fault(Fault(kind, where=f"name={name}", count=1))  # type: ignore[arg-type]
        with pytest.raises(ConnectionError):
            wire.media(name, b"1")
    assert wire.names() == ["applied"]


def test_a_truncated_body_is_shorter_than_announced_and_a_short_one_is_not(server: GcsControl):
    wire = Wire(server.url, "test")
    wire.media("x", b"0123456789")
    server.add_fault(Fault("truncated", where="alt=media", count=1))
    with expect_error(http.client.IncompleteRead):
        wire.read("x")
    server.add_fault(Fault("short", where="alt=media", count=1))
    assert wire.read("x").body == b"01234"
    server.add_fault(Fault("corrupt", where="alt=media", count=1))
    corrupt = wire.read("x").body
    assert len(corrupt) == 10 and corrupt != b"0123456789"
    assert wire.read("x").body == b"0123456789"


def test_a_seed_draws_the_same_faults_each_time(server: GcsControl):
    wire = Wire(server.url, "test")

    def statuses() -> list[int]:
        server.clear_faults()
        server.add_fault(Fault("status", where="^GET", probability=0.3, seed=7))
        return [wire.send("GET", wire.path("")).status for _ in range(60)]

    first = statuses()
    assert first == statuses()
    assert 5 < first.count(503) < 35


def test_latency_delays_each_request_but_no_control_request(server: GcsControl):
    wire = Wire(server.url, "test")
    server.set_latency(0.05)
    start = time.monotonic()
    for _ in range(4):
        wire.names()
    assert time.monotonic() - start >= 0.2
    server.set_latency(0)


def test_a_server_process_ends_with_its_starter():
    with GcsServerProcess(buckets=["made"]) as server:
        assert Wire(server.url, "other").media("x", b"1").status == 200
        process = server._process
    assert process.poll() == 0
    assert not os.path.exists(f"/proc/{process.pid}/fd")  # noqa: PTH110 -- it has been waited for
