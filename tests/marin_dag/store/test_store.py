"""Stores: one suite for all kinds, then prefixes, and errors of the cloud."""

import errno
import gc
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import google_crc32c
import pytest
import s3fs

from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store, StoreError, explain_os_error, limit_met
from tests.catalogue import check_message, expect_error


def test_written_rows_are_read_back(store: Store):
    store.write("a/b/c.json", b"first")
    store.write("a/b/c.json", b"second")
    assert store.read("a/b/c.json") == b"second"


def test_a_missing_object_is_file_not_found(store: Store):
    with pytest.raises(FileNotFoundError):
        store.read("never/made")
    assert not store.exists("never/made")
    assert store.list("never") == []


def test_a_create_succeeds_once(store: Store):
    assert store.create("commits/x.json", b"mine")
    assert not store.create("commits/x.json", b"theirs")
    assert not store.create("commits/x.json", b"mine")  # equal bytes of another writer
    assert store.read("commits/x.json") == b"mine"


def test_the_longest_path_is_written_and_read(store: Store):
    num_parts, rest = divmod(store.max_path_in_bytes + 1, 100)
    path = rest * "x" + "/".join(num_parts * [99 * "x"])
    assert len(path) == store.max_path_in_bytes
    store.write(path, b"first")
    assert store.read(path) == b"first"


def test_one_of_many_concurrent_creates_wins(store: Store):
    barrier = threading.Barrier(6)

    def race(round_and_racer: tuple[int, int]) -> bool:
        barrier.wait()
        return store.create(f"race/{round_and_racer[0]}", str(round_and_racer[1]).encode() * 1000)

    with ThreadPoolExecutor(6) as pool:
        for turn in range(5):
            created = list(pool.map(race, [(turn, racer) for racer in range(6)]))
            assert created.count(True) == 1
            assert store.read(f"race/{turn}") == str(created.index(True)).encode() * 1000


def test_a_listing_is_sorted_and_current(store: Store):
    for name in ("commits/b", "commits/a/deep/c", "commits/a@10", "commits/a@9", "commitsX/no", "other"):
        store.write(name, b"12345")
    entries = store.list("commits")
    assert [entry.path for entry in entries] == ["commits/a/deep/c", "commits/a@10", "commits/a@9", "commits/b"]
    assert {entry.size_in_bytes for entry in entries} == {5}
    assert max(entry.updated for entry in entries) - min(entry.updated for entry in entries) < 60
    assert [entry.path for entry in store.list("commits", "a@")] == ["commits/a@10", "commits/a@9"]
    assert [entry.path for entry in store.list("commits", "a/d")] == ["commits/a/deep/c"]
    store.delete("commits/b")
    store.delete("commits/b")
    assert "commits/b" not in [entry.path for entry in store.list("commits")]


def test_files_are_copied_read_from_an_offset_and_settled_with_their_checksum(store: Store):
    data = bytes(range(256)) * 30_000  # several blocks
    store.write("outputs/one/file.bin", data)
    store.copy("outputs/one/file.bin", "outputs/two/deep/file.bin")
    assert b"".join(store.blocks("outputs/two/deep/file.bin")) == data
    for start in (1, len(data) - 1, len(data)):
        assert b"".join(store.blocks("outputs/two/deep/file.bin", start)) == data[start:]
    with pytest.raises(FileNotFoundError):
        list(store.blocks("outputs/none"))
    expected = google_crc32c.Checksum(data).digest().hex()
    assert store.settle("outputs/two/deep/file.bin") == (len(data), expected)
    store.write("outputs/empty", b"")
    assert store.settle("outputs/empty") == (0, "00000000")


def test_a_file_of_blocks_is_whole_or_unchanged(store: Store):
    store.write_blocks("outputs/file.bin", iter([b"first ", b"second"]))
    assert store.read("outputs/file.bin") == b"first second"

    def failing() -> Iterator[bytes]:
        yield b"x" * (6 << 20)  # more than a client buffers
        raise KeyError("the source is gone")

    for path in ("outputs/file.bin", "outputs/never.bin"):
        with pytest.raises(KeyError):
            store.write_blocks(path, failing())
    gc.collect()  # a client may finish a file when it is freed
    assert [entry.path for entry in store.list("outputs")] == ["outputs/file.bin"]
    assert store.read("outputs/file.bin") == b"first second"
    store.write_blocks("outputs/file.bin", iter([b"third"]))
    assert store.read("outputs/file.bin") == b"third"


@pytest.mark.parametrize("path", ["", "/a", "a//b", "a/../b", "./a", "a/"])
def test_a_path_that_could_leave_the_prefix_is_refused(store: Store, path: str):
    with expect_error(ValueError):
        store.write(path, b"")


def test_opening_a_store_and_reading_from_it_write_nothing(tmp_path: Path):
    store = open_store(str(tmp_path / "runs"))
    assert store.list("commits") == []
    assert not (tmp_path / "runs").exists()


def test_an_unknown_kind_of_store_is_refused_with_the_kinds_there_are():
    with expect_error(StoreError):
        open_store("ftp://x/y")


@pytest.mark.parametrize("prefix", ["gs:/bucket/runs", "s3:bucket/runs", "file:/runs"])
def test_a_url_with_too_few_slashes_is_refused(prefix: str):
    with expect_error(StoreError):
        open_store(prefix)


def test_a_store_on_s3_without_its_package_names_the_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with expect_error(StoreError):
        open_store("s3://bucket/runs")


def test_a_file_url_is_the_folder_of_its_path(tmp_path: Path):
    assert open_store(f"file://{tmp_path}/here/../runs/").prefix == str(tmp_path / "runs")
    with expect_error(StoreError):
        open_store("file://")


@pytest.mark.parametrize(
    "name", ["ENOSPC", "EFBIG", "EACCES", "EROFS", "EMFILE", "ENAMETOOLONG", "ELOOP", "EIO", "ESTALE", "ENOMSG"]
)
def test_an_error_of_the_disk_names_the_file_and_the_fix(name: str):
    number = getattr(errno, name)
    check_message(explain_os_error(OSError(number, os.strerror(number)), "/data/runs/commits/x"))


def test_a_limit_is_found_in_the_text_of_a_value_error():
    words = (
        'RESOURCE_EXHAUSTED: Error writing local file "/data/runs/z/c/0": Failed writing: "/data/runs/z/c/0.__lock": '
        "Failed to write 738560 bytes to file 3: No space left on device [os_error_code='28']"
    )
    limit = limit_met(ValueError(words))
    assert limit is not None and (limit.errno, limit.filename) == (errno.ENOSPC, "/data/runs/z/c/0")
    assert limit_met(ValueError(words.replace("28", "13"))) is None
    assert limit_met(RuntimeError(words)) is None
    assert limit_met(OSError(errno.EACCES, "")) is None


def test_an_unreachable_cloud_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.setattr("marin_dag.store.gcs.FIRST_CONTACT_TIMEOUT_SECONDS", 0.5)
    with expect_error(StoreError):
        open_store("gs://b/runs").list("commits")


def test_without_a_network_no_credentials_are_looked_for(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def unknown(host: str, port: None) -> None:
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    for name in ("STORAGE_EMULATOR_HOST", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("marin_dag.store.cloud.socket.getaddrinfo", unknown)
    monkeypatch.setattr("marin_dag.store.cloud.NO_NETWORK_PAUSES_SECONDS", (0.0,))
    monkeypatch.setattr("google.auth.default", lambda *args, **kwargs: pytest.fail("the client looks for credentials"))
    with expect_error(StoreError) as caught:
        open_store("gs://b/runs").list("commits")
    assert caught.value.is_transient and asked == ["storage.googleapis.com"] * 2


@pytest.fixture
def no_s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Return a function that sets the address of S3; clients of other tests keep theirs."""
    kept = dict(s3fs.S3FileSystem._cache)
    s3fs.S3FileSystem.clear_instance_cache()
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    yield lambda address: monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem._cache.update(kept)


def test_without_a_network_s3_is_unreachable_at_once(no_s3, monkeypatch: pytest.MonkeyPatch):
    asked = []

    def unknown(host: str, port: None) -> None:
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    no_s3("http://nowhere.invalid:9000")
    monkeypatch.setattr("marin_dag.store.cloud.socket.getaddrinfo", unknown)
    monkeypatch.setattr("marin_dag.store.cloud.NO_NETWORK_PAUSES_SECONDS", (0.0,))
    with expect_error(StoreError) as caught:
        open_store("s3://b/runs").list("commits")
    assert caught.value.is_transient and asked == ["nowhere.invalid"] * 2


def test_a_silent_s3_is_unreachable(no_s3, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("marin_dag.store.s3.FIRST_CONTACT_TIMEOUT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        no_s3(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with expect_error(StoreError) as caught:
            open_store("s3://b/runs").list("commits")
    assert caught.value.is_transient


@pytest.mark.parametrize("address", ["minio:9000", "http://[::1"], ids=["no scheme", "half an address"])
def test_a_malformed_address_of_s3_is_an_error(no_s3, address: str):
    no_s3(address)
    with expect_error(StoreError):
        open_store("s3://b/runs").list("commits")


def test_a_missing_bucket_is_an_error(gcs_bucket: str):
    with expect_error(StoreError):
        open_store("gs://no-such-bucket/runs").list("commits")


def test_dots_in_the_path_of_a_folder_are_resolved(tmp_path):
    (tmp_path / "here").mkdir()
    assert open_store(str(tmp_path / "here" / ".." / "runs")).prefix == str(tmp_path / "runs")


def test_an_empty_prefix_is_refused():
    with expect_error(StoreError):
        open_store("")
