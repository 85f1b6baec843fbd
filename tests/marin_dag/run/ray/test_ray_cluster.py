"""Private clusters: how one is started on this machine, and the messages if it cannot be."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from marin_dag.errors import UserError
from marin_dag.run.ray import cluster
from marin_dag.run.ray.backend import RayBackend
from marin_dag.run.ray.cluster import is_connected, join_cluster, start_cluster
from marin_dag.store.redact import redact
from tests.catalogue import check_message, expect_error

ROOT = Path(__file__).parents[4]
NO_DASHBOARD = """The last 20 lines of /tmp/ray/session_1/logs/dashboard.log (it contains the error message):
2026-11-23 18:00:00 INFO Starting the dashboard
ModuleNotFoundError: No module named 'opencensus'
"""


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    with mock.patch.dict(os.environ, {"RAY_AUTH_TOKEN": "only-for-this-test-session-0123456789"}):
        yield


def started_with(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> dict[str, Any]:
    """Return the options that Ray would be started with."""
    asked: dict[str, Any] = {}

    def init(address: str, **options: Any) -> Any:
        asked.update(options)
        if error is not None:
            raise error
        return mock.Mock(dashboard_url="127.0.0.1:8265")

    monkeypatch.setattr("ray.init", init)
    start_cluster(2, "a job")
    return asked


def test_the_message_of_a_failed_start_has_the_end_of_the_log(monkeypatch):
    with expect_error(UserError):
        started_with(monkeypatch, Exception(NO_DASHBOARD))
    with expect_error(UserError):
        started_with(monkeypatch, OSError("no sockets here.\nA long story follows"))


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_failed_start_is_tried_again_twice_and_its_processes_are_ended(
    monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    processes: list[subprocess.Popen[bytes]] = []

    def init(address: str, **options: Any) -> Any:
        processes.append(subprocess.Popen(["sleep", "600"]))
        if len(processes) <= failures:
            raise RuntimeError("no port in time")
        return mock.Mock(dashboard_url="127.0.0.1:8265")

    monkeypatch.setattr("ray.init", init)
    lines: list[str] = []
    with expect_error(UserError) if failures == cluster.STARTS else contextlib.nullcontext():
        cluster.start_cluster(2, "a job", lines.append)
    ended = [process.poll() is not None for process in processes]
    processes[-1].kill()
    processes[-1].wait()
    assert ended == [True] * failures + [False] * (len(processes) - failures)
    assert len(processes) == min(failures + 1, cluster.STARTS) and len(lines) == len(processes) - 1


def test_a_real_start_that_fails_once_is_tried_again_and_listens_on_this_machine_only() -> None:
    # A process of its own: this one may use another cluster.
    command = [sys.executable, "-m", "tests.marin_dag.run.ray.private_cluster"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["result"] == "token" and not seen["left"]
    assert len([line for line in seen["lines"] if "attempt 2" in line]) == 1
    assert seen["listening"] and {address.removeprefix("::ffff:") for address in seen["listening"]} == {"127.0.0.1"}


def test_a_user_without_a_home_folder_reads_where_else_a_token_may_be(monkeypatch):
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.delenv("HOME", raising=False)

    def unknown(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    with expect_error(UserError):
        started_with(monkeypatch)


def test_the_message_about_an_unwritable_token_file_survives_redaction(monkeypatch, tmp_path):
    (tmp_path / "home").write_text("a file")
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with expect_error(UserError) as refused:
        start_cluster(2, "a job")
    assert redact(str(refused.value)) == str(refused.value)


def test_an_invalid_address_names_its_variable(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "nonsense")
    with expect_error(UserError):
        join_cluster("a job")


def test_the_folder_of_the_sessions_is_private_and_short_enough(monkeypatch):
    own = f"ray-{os.getuid()}/r"
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", "/" + "a" * 90)
    assert started_with(monkeypatch)["_temp_dir"] == f"/tmp/{own}"
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="") as chosen:
        monkeypatch.setenv("RAY_TMPDIR", chosen)
        assert started_with(monkeypatch)["_temp_dir"] == f"{chosen}/{own}"
        assert Path(chosen, own).parent.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("RAY_TMPDIR", "/" + "b" * 40)
    with expect_error(UserError):
        started_with(monkeypatch)
    monkeypatch.setenv("RAY_TMPDIR", "/proc/ray")
    with pytest.raises(UserError) as caught:
        started_with(monkeypatch)
    check_message(str(caught.value).replace(f"ray-{os.getuid()}", "ray-UID"))


@pytest.mark.parametrize("left", [None, types.ModuleType("ray")], ids=["nothing", "a part"])
def test_a_backend_closes_after_an_interrupted_import_of_ray(
    monkeypatch: pytest.MonkeyPatch, left: types.ModuleType | None
) -> None:
    monkeypatch.setitem(sys.modules, "ray", left)
    assert not is_connected()
    RayBackend("a job").close()
