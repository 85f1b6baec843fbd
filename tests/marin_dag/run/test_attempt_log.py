"""Attempt log: a stream that behaves like a file, and a store that fails now and then."""

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from pydantic import BaseModel

from marin_dag.run import attempt_log
from marin_dag.run.attempt_log import AttemptLog, remember_secrets
from marin_dag.store.local import LocalStore
from marin_dag.store.redact import redact
from marin_dag.store.store import Store, StoreError

PATH = "attempt.log"
LOGGER = logging.getLogger("marin_dag.test_attempt_log")
LOGGER.setLevel(logging.INFO)


def test_a_step_prints_to_a_stream_that_is_no_terminal(tmp_path: Path):
    store = LocalStore(str(tmp_path))
    with AttemptLog(store, PATH, LOGGER) as log, contextlib.redirect_stdout(log):
        assert not log.isatty()
        with pytest.raises(io.UnsupportedOperation):
            log.fileno()
        print("step 1", flush=True)
        print("--token=planted-secret")
    assert store.read(PATH).decode().splitlines() == ["step 1", "--token=***"]


def test_a_secret_in_two_pieces_and_in_the_output_of_a_child_is_hidden(tmp_path: Path):
    store = LocalStore(str(tmp_path))
    with AttemptLog(store, PATH, LOGGER) as log, log.capturing_prints():
        print("--token=plan", end="", flush=True)
        print("ted-secret")
        subprocess.run(["sh", "-c", "printf -- --token=plan; sleep 0.1; echo ted-child"])
    text = store.read(PATH).decode()
    assert sorted(text.splitlines()) == ["--token=***"] * 2


def test_a_key_that_comes_in_a_log_record_a_line_is_hidden(tmp_path: Path):
    store = LocalStore(str(tmp_path))
    with AttemptLog(store, PATH, LOGGER):
        for line in (
            "-----BEGIN PRIVATE KEY-----",
            "planted+0123456789/0",
            "-----END PRIVATE KEY-----",
            "planted after",
        ):
            LOGGER.warning(line)
    text = store.read(PATH).decode()
    assert "planted+" not in text and text.endswith("planted after\n")


def test_without_a_terminal_the_output_of_a_child_is_hidden_in_place(capfd: pytest.CaptureFixture[str]):
    with attempt_log.child_output_in_place():
        subprocess.run(["sh", "-c", "echo --token=planted-secret; echo out"])
    assert capfd.readouterr().out == "--token=***\nout\n"


def _standard_error(tmp_path: Path, code: str) -> tuple[int, list[str]]:
    """Return exit status and standard error of a process that runs `code` as a step."""
    script = f"""
import logging, os, subprocess, sys
from marin_dag.run.attempt_log import AttemptLog, remember_secrets
from marin_dag.store.local import LocalStore
remember_secrets({{"password": "planted-in-a-config"}})
with AttemptLog(LocalStore({str(tmp_path)!r}), "a.log", logging.getLogger()) as log, log.capturing_prints():
{textwrap.indent(code, "    ")}
"""
    path = tmp_path / "error"
    with path.open("w") as error:
        status = subprocess.run([sys.executable, "-c", script], stderr=error, timeout=60).returncode
    if status < 0:  # the filter outlives a process that crashed
        deadline = time.monotonic() + 60
        while not path.read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
    return status, path.read_text().splitlines()


def test_a_library_that_ends_the_process_says_why_without_secrets(tmp_path: Path):
    code = """os.write(2, b"check failed, --token=plan")
os.write(2, b"ted-secret with planted-in-a-config")
os.abort()"""
    assert _standard_error(tmp_path, code) == (-signal.SIGABRT, ["check failed, --token=*** with ***"])


def test_standard_error_of_several_children_is_whole_and_redacted(tmp_path: Path):
    code = """loop = "i=0; while [ $i -lt 200 ]; do echo $0 $i --token=planted-secret >&2; i=$((i+1)); done"
children = [subprocess.Popen(["sh", "-c", loop, name]) for name in "ab"]
for number in range(200):
    os.write(2, f"c {number} --token=planted-secret\\n".encode())
print([child.wait() for child in children], file=sys.stderr)"""
    status, lines = _standard_error(tmp_path, code)
    assert status == 0
    assert sorted(lines) == sorted(f"{name} {number} --token=***" for name in "abc" for number in range(200))


def test_children_go_on_writing_when_the_filter_of_standard_error_is_killed(tmp_path: Path):
    code = """from marin_dag.run import error_filter
(killed,) = error_filter.filters
killed.terminate()  # ignored
os.kill(killed.pid, 9)
subprocess.run(["sh", "-c", "sleep 0.1; echo --token=planted-secret >&2; echo planted-in-a-config >&2"], check=True)"""
    assert _standard_error(tmp_path, code) == (0, ["--token=***", "***"])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cut no holes into files")
def test_output_that_was_passed_on_leaves_the_disk(tmp_path: Path):
    with tempfile.TemporaryFile(dir=tmp_path) as file:
        file.write(bytes(4 * attempt_log.FREED_BYTES))
        file.flush()
        before = os.fstat(file.fileno()).st_blocks
        assert attempt_log._free(file.fileno(), 0, 3 * attempt_log.FREED_BYTES) == 3 * attempt_log.FREED_BYTES
        file.write(b"later")
        file.flush()
        assert os.fstat(file.fileno()).st_blocks <= before // 2
        assert os.pread(file.fileno(), 5, 4 * attempt_log.FREED_BYTES) == b"later"


def test_a_failed_upload_is_repeated_whole_and_fails_no_step(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    if isinstance(store, LocalStore):
        return  # a local file grows in place
    monkeypatch.setattr(attempt_log, "UPLOAD_SECONDS", 0.01)
    write, refused = store.write, []

    def fail_thrice(path: str, data: bytes) -> None:
        if len(refused) < 3:
            refused.append(data)
            raise StoreError("the store is away")
        write(path, data)

    monkeypatch.setattr(store, "write", fail_thrice)
    with AttemptLog(store, PATH, LOGGER) as log, contextlib.suppress(ZeroDivisionError):
        print("first", file=log, flush=True)
        while len(refused) < 3:
            time.sleep(0.01)
        print("last", file=log)
        raise ZeroDivisionError
    lines = store.read(PATH).decode().splitlines()
    assert lines[0] == "first" and lines[-1] == "last"
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 3


def test_a_full_disk_is_logged_once_and_fails_no_step(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    if isinstance(store, LocalStore):
        return  # the step itself writes to the same disk
    full = Path("/dev/full").open("w", buffering=1)  # noqa: SIM115 -- the log closes it
    monkeypatch.setattr(attempt_log.tempfile, "NamedTemporaryFile", lambda *_, **__: full)
    monkeypatch.setattr(attempt_log.Path, "read_bytes", lambda path: b"")  # the device has no end
    with AttemptLog(store, PATH, LOGGER):
        LOGGER.info("first")
        LOGGER.info("last")
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert isinstance(warning.args, tuple) and isinstance(warning.args[1], OSError)


class Login(BaseModel, frozen=True):
    password: str


class Mirror(NamedTuple):
    password: str
    logins: tuple[Login, ...]


class Places(BaseModel, frozen=True):
    mirrors: dict[str, Mirror]


def test_a_secret_deep_in_a_config_is_hidden_everywhere() -> None:
    remember_secrets(Places(mirrors={"a": Mirror("planted-tuple-0123", (Login(password="planted-deep-0123"),))}))
    assert redact("401 for planted-deep-0123 and planted-tuple-0123") == "401 for *** and ***"
