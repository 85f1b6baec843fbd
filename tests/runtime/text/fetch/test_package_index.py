"""Pins down: a wheel comes through pip as the user configured it, with the right checksum or not at all."""

import hashlib
import os
import zipfile

import pytest

from runtime.text.fetch.errors import ChecksumError, FetchError, UnreachableError
from runtime.text.fetch.package_index import download_wheel

METADATA = "Metadata-Version: 2.1\nName: toytexts\nVersion: 1.0\n"


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "index" / "toytexts-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("toytexts/pages.txt", "text")
        archive.writestr("toytexts-1.0.dist-info/METADATA", METADATA)
        archive.writestr(
            "toytexts-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("toytexts-1.0.dist-info/RECORD", "")
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


def test_a_wheel_comes_from_where_pip_is_told_to_look(tmp_path, wheel):
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    found = fetch(tmp_path, offline(wheel), sha256=digest)
    assert found.read_bytes() == wheel.read_bytes()


def test_a_wrong_checksum_shows_both(tmp_path, wheel):
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with pytest.raises(ChecksumError, match=rf"toytexts==1.0: wrong checksum\n.*{'0' * 64}\n.*{digest}"):
        fetch(tmp_path, offline(wheel))


def test_a_version_that_is_not_there_is_told_from_a_missing_network(tmp_path, wheel):
    with pytest.raises(
        FetchError, match=r"toytexts==2\.0: pip cannot download it: .*No matching distribution"
    ) as caught:
        fetch(tmp_path, offline(wheel), version="2.0")
    assert not isinstance(caught.value, UnreachableError)


def test_no_network_is_said_in_one_message(tmp_path):
    unroutable = environment(PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="0", PIP_TIMEOUT="2")
    with pytest.raises(
        UnreachableError, match=r"toytexts==1.0: no network: pip cannot reach the package index\.(.|\n)*Check"
    ):
        fetch(tmp_path, unroutable)
