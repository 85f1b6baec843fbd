"""Wheels: pip downloads them as the user configured it, and a wrong checksum is refused."""

import hashlib
import os
import zipfile

import pytest

from runtime.text.fetch.errors import ChecksumError, FetchError, UnreachableError
from runtime.text.fetch.package_index import download_wheel
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
