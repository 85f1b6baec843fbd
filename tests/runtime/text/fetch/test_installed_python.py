"""The standard library as an archive: the same bytes each time, and another interpreter is refused."""

import sysconfig
import zipfile

from runtime.text.fetch.errors import ChecksumError
from runtime.text.fetch.installed_python import inventory, pack_standard_library
from tests.catalogue import expect_error


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
