"""Pins down: a wheel comes through pip as the user configured it, with the right checksum or not at all."""

import hashlib
import http.server
import os
import threading
import zipfile

import pytest

from runtime.text.fetch import package_index
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


def test_a_wheel_comes_from_where_pip_is_told_to_look(tmp_path, wheel):
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    found = fetch(tmp_path, offline(wheel), sha256=digest)
    assert found.read_bytes() == wheel.read_bytes()


def test_a_wrong_checksum_shows_both(tmp_path, wheel):
    with expect_error(ChecksumError):
        fetch(tmp_path, offline(wheel))


def test_a_version_that_is_not_there_is_told_from_a_missing_network(tmp_path, wheel):
    with expect_error(FetchError) as caught:
        fetch(tmp_path, offline(wheel), version="2.0")
    assert not isinstance(caught.value, UnreachableError)


def test_no_network_is_said_in_one_message(tmp_path):
    unroutable = environment(PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="0", PIP_TIMEOUT="2")
    with expect_error(UnreachableError):
        fetch(tmp_path, unroutable)


def test_how_much_of_a_large_wheel_is_here_is_told_while_it_comes(tmp_path, monkeypatch):
    """The second half is sent when something has been told of the first."""
    monkeypatch.setattr(package_index, "POLL_SECONDS", 0.05)
    write_wheel(tmp_path / "toytexts-1.0-py3-none-any.whl", bytes(2_000_000))
    data = (tmp_path / "toytexts-1.0-py3-none-any.whl").read_bytes()
    told, was_told = [], threading.Event()

    class Index(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_wheel = self.path.endswith(".whl")
            body = data if is_wheel else b'<a href="/toytexts-1.0-py3-none-any.whl">toytexts-1.0-py3-none-any.whl</a>'
            self.send_response(200)
            self.send_header("Content-Type", "application/zip" if is_wheel else "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            if is_wheel:
                was_told.wait(60)
            self.wfile.write(body[len(body) // 2 :])

        def log_message(self, format: str, *args: object) -> None:
            pass

    def on_bytes(done, total):
        told.append((done, total))
        if done:
            was_told.set()

    (tmp_path / "download").mkdir()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        index = f"http://127.0.0.1:{server.server_address[1]}/simple"
        digest = hashlib.sha256(data).hexdigest()
        try:
            download_wheel(
                "toytexts",
                "1.0",
                tmp_path / "download",
                sha256=digest,
                platform_tags=None,
                environment=environment(PIP_INDEX_URL=index),
                on_bytes=on_bytes,
            )
        finally:
            was_told.set()
            server.shutdown()
            thread.join()
    assert any(0 < done < total for done, total in told)
    assert {total for _, total in told} == {2_000_000}
