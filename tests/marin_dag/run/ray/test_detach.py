"""Detached runs: they outlive their terminal, are followed from another one, and stopped."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from marin_dag.errors import UserError
from marin_dag.ledger.provenance import git_state
from marin_dag.ledger.records import Record, Records
from marin_dag.run.ray.detach import DetachedRuns, _outputs_below
from marin_dag.store.prefix import open_store
from tests.catalogue import check_message, expect_error
from tests.marin_dag.cluster_steps import notes
from tests.marin_dag.run.test_kill import wait_for
from tests.ray_nodes import ROOT, RayNodes

SCRIPT = "tests/marin_dag/cluster_pipeline.py"


class Terminal:
    """Runs commands of the pipeline in one folder."""

    def __init__(self, cluster: RayNodes, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self.marks = folder / "marks"
        self._options = ["--prefix", str(folder / "runs"), "--marks", str(self.marks)]

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-u", SCRIPT, *words, *self._options],
            cwd=ROOT,
            env=self._cluster.environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __call__(self, *words: str, **variables: str) -> tuple[int, str, str]:
        process = self.start(*words, **variables)
        output, errors = process.communicate(timeout=480)
        return process.returncode, output, errors

    def records(self) -> list[Record]:
        records = Records(open_store(str(self._folder / "runs")))
        return [records.get(key) for key in records.committed_keys()]


@pytest.fixture
def terminal(cluster: RayNodes, tmp_path: Path) -> Terminal:
    return Terminal(cluster, tmp_path)


def read_until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    output = ""
    for line in process.stdout:
        output += line
        if text in line:
            return output
    raise AssertionError(f"{text!r} never came:\n{output}")


def test_a_detached_run_outlives_its_terminals_drains_on_stop_and_resumes(terminal: Terminal):
    code, output, errors = terminal("--detach", "--gate", "3")
    assert code == 0, errors
    assert re.search(rf"python {SCRIPT} attach --gate 3 --prefix", output)
    left, killed = terminal.start("attach"), terminal.start("attach", "--gate", "3")
    read_until(left, "main  started")
    left.send_signal(signal.SIGINT)
    output, _ = left.communicate()
    assert left.returncode == 130
    assert re.search(rf"python {SCRIPT} stop --prefix", output)
    read_until(killed, "main  started")
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    wait_for(lambda: notes(terminal.marks, "main-gate"))
    code, output, errors = terminal("stop")
    assert code == 0, errors
    assert "main  stopped: " in output
    assert terminal("stop")[0] == 1, "it has ended already"

    (terminal.marks / "open").touch()
    assert terminal("--detach", "--gate", "3")[0] == 0
    code, output, errors = terminal("attach")
    assert code == 0, output + errors
    assert "main  done" in output  # the log is shown from its beginning
    assert "branch  done" in output
    assert [what for what, _, _ in notes(terminal.marks)] == [
        *("main-from-0", "main-gate", "main-from-3", "main-gate"),
        "branch-from-5",
    ]
    assert {"step": 8, "value": 31} in [record.result for record in terminal.records()]
    # The commit of the folder that it was sent from; "" if that has no history.
    assert {record.provenance.git_commit for record in terminal.records()} == {git_state(ROOT)["git_commit"]}
    assert "attach" not in terminal("--detach")[1], "nothing is left to do"


def test_a_detached_run_ends_at_once_when_asked_twice_or_now(terminal: Terminal):
    assert terminal("--detach", "--gate", "3", "--deaf")[0] == 0
    wait_for(lambda: notes(terminal.marks, "main-gate"))
    first = terminal.start("stop")
    read_until(first, "stopping: running steps")
    code, output, errors = terminal("stop")
    assert code == 0, errors
    assert "\ninterrupted: " in output
    first.communicate()

    assert terminal("--detach", "--gate", "3", "--deaf")[0] == 0
    wait_for(lambda: len(notes(terminal.marks, "main-gate")) == 2)
    assert [what for what, _, _ in notes(terminal.marks, "main-from-3")] == ["main-from-3"]
    code, output, errors = terminal("stop", "--now")
    assert code == 0, errors
    assert "\ninterrupted: " in output


def test_a_missing_cluster_token_or_run_is_one_message(terminal: Terminal):
    code, _, errors = terminal("--detach", RAY_ADDRESS="")
    assert code == 1
    check_message(errors)
    code, _, errors = terminal("--detach", RAY_AUTH_TOKEN="0123456789abcdef" * 2)
    assert code == 1
    assert "RAY_AUTH_TOKEN" in errors and "Traceback" not in errors
    code, _, errors = terminal("attach")
    assert code == 1 and errors.count("\n") == 1


class Jobs:
    """A cluster that takes no job and has one of another recipe."""

    def list_jobs(self) -> list[Any]:
        return [SimpleNamespace(submission_id="other-1", metadata={"pipeline": "other", "prefix": "gs://b/runs"})]

    def submit_job(self, **job: Any) -> None:
        raise RuntimeError("Request failed with status code 500: disk full.")

    def get_address(self) -> str:
        return "http://head:8265"


def test_what_a_cluster_refuses_or_does_not_have_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")
    runs = object.__new__(DetachedRuns)  # without a cluster
    runs._client, runs._metadata = Jobs(), {"pipeline": "walks", "prefix": "gs://b/runs"}
    for name in (None, "walks-1"):
        with expect_error(UserError):
            runs.newest(name)
    with expect_error(UserError):
        runs.submit(["python", "walks.py"], tmp_path)


@pytest.mark.parametrize("name", ["runs", "runs [of] *mine*", "!runs", "#runs", "a/runs"])
def test_outputs_below_the_project_are_not_sent(tmp_path: Path, name: str):
    from ray._private.runtime_env.packaging import get_uri_for_directory  # Ray names what it sends by its content

    def sent() -> str:
        excludes = ["/elsewhere", *_outputs_below(tmp_path, str(tmp_path / name))]
        return get_uri_for_directory(str(tmp_path), include_gitignore=True, excludes=excludes)

    (tmp_path / "recipe.py").write_text("")
    (tmp_path / "runs of mine").mkdir()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    before = sent()
    (tmp_path / name).mkdir()
    (tmp_path / name / "output").write_text("a")
    assert sent() == before
    (tmp_path / "runs of mine" / "more.py").write_text("")
    assert sent() != before
    (tmp_path / "link").symlink_to(tmp_path / name)
    of_link, of_outputs = (_outputs_below(tmp_path, str(tmp_path / each)) for each in ("link", name))
    assert of_outputs and set(of_link) == {"/link", *of_outputs}
    for elsewhere in ("gs://bucket/runs", str(tmp_path.parent / "runs"), str(tmp_path)):
        assert _outputs_below(tmp_path, elsewhere) == []


def test_outputs_behind_a_link_below_the_project_are_not_sent(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
):
    from ray._private.runtime_env.packaging import get_uri_for_directory

    project, scratch = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("scratch")
    (project / "runs").symlink_to(scratch)
    (project.parent / "by another name").symlink_to(project)
    monkeypatch.chdir(project.parent / "by another name")
    excludes = [
        _outputs_below(folder, prefix) for folder in (project, Path()) for prefix in (f"{project}/runs", "runs")
    ]
    assert all("/runs" in each for each in excludes)
    before = get_uri_for_directory(str(project), include_gitignore=True, excludes=excludes[0])
    (scratch / "output").write_text("a")
    assert get_uri_for_directory(str(project), include_gitignore=True, excludes=excludes[0]) == before
