"""Kills of a real driver: the next run commits the same bytes, and nothing needs deleting by hand."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.catalogue import check_message
from tests.marin_dag.kill_everywhere import committed_bytes
from tests.marin_dag.toy_steps import executions


def driver(folder: Path, backend: str, seconds: float, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "tests/marin_dag/toy_driver.py", str(folder / "runs"), backend, str(seconds)]
    return subprocess.Popen(
        [*command, str(folder / "marks")],
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), "RAY_AUTH_TOKEN": "0123456789abcdef" * 2, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for_executions(folder: Path, number: int, process: subprocess.Popen[str]) -> None:
    wait_for(lambda: sum(executions(folder / "marks").values()) >= number, process)


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Wait until the condition is true; `process` must live meanwhile."""
    deadline = time.monotonic() + 480
    while not condition():
        assert process is None or process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=480)
    return process.returncode, output


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Return records and files of an undisturbed run."""
    folder = tmp_path_factory.mktemp("undisturbed")
    code, output = finish(driver(folder, "local", 0))
    assert code == 0, output
    return committed_bytes(folder / "runs")


def kill_everywhere(folder: Path, *options: str) -> Any:
    """Run `kill_everywhere.py`; return what its last line says."""
    command = [sys.executable, "-m", "tests.marin_dag.kill_everywhere", str(folder), *options]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_killed_before_any_kind_of_write_the_next_run_commits_the_same_bytes(tmp_path: Path):
    assert kill_everywhere(tmp_path, "--one-of-each-kind") >= 15


def test_drivers_and_workers_killed_at_random_over_a_faulty_store_make_the_same_bytes(tmp_path: Path):
    tally = kill_everywhere(tmp_path, "--kills", "6", "--server")
    assert tally["drivers_killed"] + tally["workers_killed"] == 6
    assert tally["faults"] > 0.02 * tally["requests"] > 0


def test_after_one_signal_running_steps_save_and_the_next_run_resumes(tmp_path: Path, expected: dict[str, object]):
    process = driver(tmp_path, "local", 0.3)
    wait_for_executions(tmp_path, 9, process)  # three plain steps, four shards, two counts
    os.killpg(process.pid, signal.SIGUSR2)  # the other signals of a driver are sent below
    code, output = finish(process)
    assert code == 1
    lines = output[output.index("stopping: ") :]  # the branch of main is not blocked, but waits for the next run
    check_message(re.sub(r"^\d\d:\d\d:\d\d  ", "", re.sub(r"at \d+", "at <step>", lines), flags=re.MULTILINE))
    assert finish(driver(tmp_path, "local", 0))[0] == 0
    assert committed_bytes(tmp_path / "runs") == expected
    counts = executions(tmp_path / "marks")
    assert counts["count0"] == counts["count1"] == 1  # by main; the branch starts at 5


def test_after_two_signals_a_driver_ends_at_once_and_the_next_run_resumes(tmp_path: Path, expected: dict[str, object]):
    process = driver(tmp_path, "local", 5)
    wait_for(lambda: list(tmp_path.glob("runs/outputs/squares-*/*/shards/00000")), process)
    # The step is in a shard now, which ignores the first signal.
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(1)  # two pending signals of one kind are one
    code, output = finish(process)
    assert code == 1
    lines = output[output.index("stopping: ") :]
    check_message(re.sub(r"^\d\d:\d\d:\d\d  ", "", lines, flags=re.MULTILINE))
    assert finish(driver(tmp_path, "local", 0))[0] == 0
    assert committed_bytes(tmp_path / "runs") == expected


def test_after_sigterm_running_steps_on_ray_save_and_no_token_is_shown(tmp_path: Path, expected: dict[str, object]):
    process = driver(tmp_path, "ray", 0.5)
    wait_for(lambda: "count1" in executions(tmp_path / "marks"), process)
    servers = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    assert servers, "Ray is not started below the driver"
    assert process.pid not in map(
        os.getpgid, servers
    )  # otherwise the signal would end them before the steps have saved
    os.killpg(process.pid, signal.SIGTERM)
    code, output = finish(process)
    assert code == 1, output
    check_message("\n".join(output.splitlines()[:2]))
    assert re.search(r"  main  stopped: .*: at \d", output)
    assert "0123456789abcdef" not in output
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in servers))  # and still they end with the driver
    assert finish(driver(tmp_path, "local", 0))[0] == 0
    assert committed_bytes(tmp_path / "runs") == expected


def test_when_ray_dies_the_driver_ends_with_one_message_and_the_next_run_resumes(
    tmp_path: Path, expected: dict[str, object]
):
    process = driver(tmp_path, "ray", 0.5)
    wait_for_executions(tmp_path, 5, process)
    (actor,) = [pid for pid, command in descendants(process.pid).items() if "ControlActor" in command]
    os.kill(actor, signal.SIGKILL)
    code, output = finish(process)
    assert code == 1
    check_message(output.splitlines()[-1])
    assert "Traceback" not in output
    assert finish(driver(tmp_path, "local", 0))[0] == 0
    assert committed_bytes(tmp_path / "runs") == expected


def descendants(pid: int) -> dict[int, str]:
    """Return the command lines of the processes below one."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):  # it may end meanwhile
            found[int(child)] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
            found |= descendants(int(child))
    return found


# The kernel's own limit on the size of a file stands for the disk's.


def test_a_full_disk_at_the_start_ends_the_driver_with_one_message(tmp_path: Path, expected: dict[str, object]):
    code, output = finish(driver(tmp_path, "local", 0, FILE_LIMIT="2500"))
    assert code == 1
    assert output.count("\n") == 1 and "ulimit -f" in output
    assert finish(driver(tmp_path, "local", 0))[0] == 0
    assert committed_bytes(tmp_path / "runs") == expected


def test_a_disk_that_fills_up_fails_only_the_step_that_writes(tmp_path: Path):
    code, output = finish(driver(tmp_path, "local", 0, FILE_LIMIT="50000", LARGE="1"))
    assert code == 1
    assert [line.split()[1] for line in output.splitlines() if " failed:  " in line] == ["large"]
    assert "ulimit -f" in output and "Traceback" not in output
    assert finish(driver(tmp_path, "local", 0, LARGE="1"))[0] == 0


@pytest.mark.parametrize("library", ["tensorstore", "pyarrow"])
def test_a_disk_that_fills_up_under_a_library_fails_with_the_same_message(tmp_path: Path, library: str):
    code, output = finish(driver(tmp_path, "local", 0, FILE_LIMIT="50000", LARGE_BY=library))
    assert code == 1
    assert f"outputs/large-{library}-" in output.split("failed:")[-1]
    assert "ulimit -f" in output and "Traceback" not in output


def test_a_cloud_that_cannot_be_reached_is_one_message(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd()), "STORAGE_EMULATOR_HOST": "http://127.0.0.1:9"}
    command = [sys.executable, "tests/marin_dag/toy_driver.py", "gs://bucket/runs", "ray", "0", str(tmp_path)]
    code = f"""
import sys
import marin_dag.store.gcs
marin_dag.store.gcs.FIRST_CONTACT_TIMEOUT_SECONDS = 0.5
from tests.marin_dag.toy_driver import main
sys.exit(main({command[2:]!r}))
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.count("\n") == 1
    assert done.stdout.startswith("gs://bucket/runs/commits: ")
    assert done.stderr == ""
