"""Wheels come by pip and the library from the interpreter; what is not the planned one is refused."""

import hashlib
import os
import sysconfig
import zipfile

import pytest

from runtime.text.fetch.errors import ChecksumError, FetchError, UnreachableError
from runtime.text.fetch.packages import download_wheel, inventory, pack_standard_library
from tests.catalogue import expect_error

METADATA = "Metadata-Version: 2.1\nName: toytexts\nVersion: 1.0\n"


def write_wheel(path, text):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("toytexts/pages.txt", text)
        archive.writestr("toytexts-1.0.dist-info/METADATA", METADATA)
        archive.writestr(
            "toytexts-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("toytexts-1.0.dist-info/RECORD", "")


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "index" / "toytexts-1.0-py3-none-any.whl"
    path.parent.mkdir()
    write_wheel(path, "text")
    return path


def environment(**settings):
    """This process's environment without its own index, with `settings` for pip."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1", **settings}


def fetch(tmp_path, settings, *, version="1.0", sha256="0" * 64):
    folder = tmp_path / "download"
    folder.mkdir()
    return download_wheel("toytexts", version, folder, sha256=sha256, platform_tags=None, environment=settings)


def offline(wheel):
    return environment(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheel.parent))


def test_a_wheel_comes_from_the_configured_folder(tmp_path, wheel):
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    found = fetch(tmp_path, offline(wheel), sha256=digest)
    assert found.read_bytes() == wheel.read_bytes()


def test_a_wrong_checksum_is_refused(tmp_path, wheel):
    with expect_error(ChecksumError):
        fetch(tmp_path, offline(wheel))


def test_a_missing_version_is_no_missing_network(tmp_path, wheel):
    with expect_error(FetchError) as caught:
        fetch(tmp_path, offline(wheel), version="2.0")
    assert not isinstance(caught.value, UnreachableError)


def test_a_missing_network_is_unreachable(tmp_path):
    unroutable = environment(PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="0", PIP_TIMEOUT="2")
    with expect_error(UnreachableError):
        fetch(tmp_path, unroutable)


def test_the_archive_is_the_same_each_time_and_holds_the_topics(tmp_path):
    for name in ("first.zip", "second.zip"):
        pack_standard_library(inventory(), tmp_path / name)
    assert (tmp_path / "first.zip").read_bytes() == (tmp_path / "second.zip").read_bytes()
    names = zipfile.ZipFile(tmp_path / "first.zip").namelist()
    assert "pydoc_data/topics.py" in names
    assert names == sorted(names)
    assert not [name for name in names if "site-packages" in name or "/test/" in name]


def test_another_interpreter_than_the_planned_one_is_refused(tmp_path):
    with expect_error(ChecksumError):
        pack_standard_library(inventory()._replace(python_version="CPython 2.7"), tmp_path / "library.zip")


def test_a_module_patched_without_another_size_is_another_library(tmp_path, monkeypatch):
    (tmp_path / "json").mkdir()
    (tmp_path / "json/decoder.py").write_text("limit = 1\n")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    before = inventory()
    assert inventory() == before
    (tmp_path / "json/decoder.py").write_text("limit = 2\n")
    assert inventory().sha256 != before.sha256


def test_a_python_without_pip_is_an_error(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with expect_error(FetchError):
        download_wheel("toytexts", "1.0", tmp_path, sha256="0" * 64, platform_tags=None)
