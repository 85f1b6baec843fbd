"""A user's own files: the checksum of a large file is computed once until the file changes."""

import hashlib
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import fsspec
import pytest

from runtime.text.fetch import local_files
from runtime.text.fetch.local_files import content_of
from tests.catalogue import check_message

OLD, NEW = b"weights" * 10, b"WEIGHTS" * 10


@pytest.fixture
def num_reads(tmp_path, monkeypatch):
    """Return a function that counts how often files were read; a file of 70 bytes is large here."""
    monkeypatch.setenv("MARIN_DAG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(local_files, "LARGE_FILE_IN_BYTES", len(OLD))
    reads, sha256 = [], hashlib.sha256

    def counted(*content):
        if not content:  # a call with content hashes a name
            reads.append(1)
        return sha256(*content)

    monkeypatch.setattr(local_files.hashlib, "sha256", counted)
    return lambda: len(reads)


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(OLD)
    return file


def expected(content):
    return {"sha256": hashlib.new("sha256", content).hexdigest(), "size_in_bytes": len(content)}


def a_while_later(monkeypatch):
    now = time.time()
    monkeypatch.setattr(local_files.time, "time", lambda: now + 10)


def test_a_file_that_has_not_changed_is_read_once_and_one_that_has_again(file, num_reads, monkeypatch):
    a_while_later(monkeypatch)
    assert [content_of(str(file)) for _ in range(3)] == [expected(OLD)] * 3
    assert num_reads() == 1
    before = file.stat()
    file.write_bytes(NEW)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # same size and time of modification
    assert (content_of(str(file)), num_reads()) == (expected(NEW), 2)


def test_a_file_that_was_just_written_is_read_each_time(file, num_reads):
    assert [content_of(str(file)) for _ in range(2)] == [expected(OLD)] * 2
    assert num_reads() == 2


def test_a_file_that_changes_while_it_is_read_is_not_cached(file, num_reads, monkeypatch):
    a_while_later(monkeypatch)
    version = local_files._version
    with monkeypatch.context() as patch:
        patch.setattr(local_files, "_version", lambda *where: [*version(*where), str(time.monotonic_ns())])
        content_of(str(file))
    assert not list(file.parent.glob("cache/checksums/*"))
    assert (content_of(str(file)), num_reads()) == (expected(OLD), 2)


def test_a_file_or_folder_without_the_right_to_read_is_refused(tmp_path):
    """Run in a process without the rights of root, which may read anything."""
    code = f"""
import os, sys
sys.path.insert(0, {str(Path.cwd())!r})
from runtime.text.fetch.errors import FetchError
from runtime.text.fetch.local_files import find_files
if os.getuid() == 0:
    os.setuid(65534)
asked = ("file", "*"), ("below", "**"), ("below", "*"), ("below/closed", "*"), ("below", "l*d/*"), ("below", "o*/f/**")
for folder, pattern in asked:
    try:
        print(find_files({str(tmp_path)!r} + "/" + folder, (pattern,)))
    except FetchError as error:
        print(error)
"""
    below = ("b.jsonl", "closed/c.jsonl", "listed/d.jsonl", ".hidden/e", "open/f/g/h.jsonl")
    for name in ("file/a.jsonl", *(f"below/{name}" for name in below)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    modes = {"file/a.jsonl": 0o200, "below/closed": 0o300, "below/listed": 0o644, "below/.hidden": 0o300}
    for path, mode in modes.items():
        (tmp_path / path).chmod(mode)
    if os.getuid() == 0:  # pytest's folders are closed to other users
        for folder in (tmp_path, *tmp_path.parents):
            if not folder.stat().st_mode & 0o005:
                folder.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for path in modes:
        (tmp_path / path).chmod(0o755)
    check_message(done.stdout)


def test_an_object_of_a_bucket_is_known_by_its_generation(gcs_bucket, num_reads):
    url = f"gs://{gcs_bucket}/{uuid.uuid4().hex}/model.safetensors"
    for content, times in ((OLD, 1), (NEW, 2)):
        with fsspec.open(url, "wb") as file:
            file.write(content)
        assert [content_of(url) for _ in range(2)] == [expected(content)] * 2
        assert num_reads() == times
