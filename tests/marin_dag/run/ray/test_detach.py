"""A detached run: it outlives its terminal, is followed from another, drained, and guarded by a token."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from marin_dag.ledger.provenance import git_state
from marin_dag.ledger.records import Record, Records
from marin_dag.run.ray.detach import _outputs_below
from marin_dag.store.prefix import open_store
from tests.marin_dag.cluster_steps import notes
from tests.marin_dag.run.test_kill import wait_for
from tests.ray_nodes import ROOT, RayNodes

SCRIPT = "tests/marin_dag/cluster_pipeline.py"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayNodes]:
    """A head and one node, not the drivers' own: what they start stays when they go."""
    with RayNodes({"num_cpus": 4}) as cluster:
        yield cluster


class Terminal:
    """Starts commands of the pipeline, as one person in one folder would."""

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
    said = ""
    for line in process.stdout:
        said += line
        if text in line:
            return said
    raise AssertionError(f"{text!r} was never said:\n{said}")


def test_a_detached_run_goes_on_when_all_its_terminals_are_killed(terminal: Terminal):
    code, output, errors = terminal("--detach", "--gate", "3")
    assert code == 0, errors
    assert "this terminal may be closed" in output
    assert re.search(rf"follow it  \S*python {SCRIPT} attach --gate 3 --prefix", output)
    attached = terminal.start("attach", "--gate", "3")
    read_until(attached, "main  started")
    os.killpg(attached.pid, signal.SIGKILL)
    attached.communicate()
    wait_for(lambda: notes(terminal.marks, "main-gate"))
    (terminal.marks / "open").touch()
    code, output, errors = terminal("attach")
    assert code == 0, output + errors
    assert "main  started" in output  # from the beginning, for whoever comes later
    assert "branch  done" in output
    assert "succeeded" in output
    assert {"step": 8, "value": 31} in [record.result for record in terminal.records()]
    # Of the folder that it was sent from; none where the project was unpacked without its history.
    assert {record.provenance.git_commit for record in terminal.records()} == {git_state(ROOT).commit}
    assert terminal("--detach")[1].startswith("nothing to do: ")


def test_stop_drains_a_detached_run_and_the_next_one_goes_on(terminal: Terminal):
    assert terminal("--detach", "--gate", "3")[0] == 0
    wait_for(lambda: notes(terminal.marks, "main-gate"))
    code, output, errors = terminal("stop")
    assert code == 0, errors
    assert "asked to stop; running steps save their work" in output
    assert "stopping: running steps save their work" in output
    assert "main  stopped:  its work so far is kept" in output
    assert "0 of 2 steps are done, 1 stopped, 1 not run" in output
    code, _, errors = terminal("stop")
    assert code == 1
    assert "has ended already: stopped" in errors
    (terminal.marks / "open").touch()
    assert terminal("--detach", "--gate", "3")[0] == 0
    code, output, errors = terminal("attach")
    assert code == 0, output + errors
    assert [what for what, _, _ in notes(terminal.marks)] == [
        *("main-from-0", "main-gate", "main-from-3", "main-gate"),
        "branch-from-5",
    ]


def test_stopped_twice_a_detached_run_ends_at_once_and_the_next_one_goes_on(terminal: Terminal):
    assert terminal("--detach", "--gate", "3", "--deaf")[0] == 0
    wait_for(lambda: notes(terminal.marks, "main-gate"))
    first = terminal.start("stop")
    assert "running steps save their work; stop again to cancel them" in read_until(first, "stopping: running steps")
    code, output, errors = terminal("stop")
    assert code == 0, errors
    assert "asked to end at once; what runs is cancelled, what was finished is kept" in output
    assert "interrupted; what was running is cancelled" in output
    assert "stopped" in first.communicate()[0]
    (terminal.marks / "open").touch()
    assert terminal("--detach", "--gate", "3", "--deaf")[0] == 0
    code, output, errors = terminal("attach")
    assert code == 0, output + errors
    assert [what for what, _, _ in notes(terminal.marks, "main-from-3")] == ["main-from-3"]


def test_leaving_an_attached_run_says_how_to_come_back(terminal: Terminal):
    assert terminal("--detach", "--gate", "3", "--deaf")[0] == 0
    attached = terminal.start("attach")
    read_until(attached, "main  started")
    attached.send_signal(signal.SIGINT)
    output, _ = attached.communicate()
    assert attached.returncode == 130
    assert "goes on without this terminal" in output
    assert re.search(rf"stop it    \S*python {SCRIPT} stop --prefix", output)
    code, output, errors = terminal("stop", "--now")
    assert code == 0, errors
    assert "interrupted; what was running is cancelled" in output


def test_without_a_cluster_a_token_or_a_run_it_says_what_is_missing(terminal: Terminal):
    code, _, errors = terminal("--detach", RAY_ADDRESS="")
    assert code == 1
    assert "a detached run needs a cluster that outlives this terminal: set RAY_ADDRESS" in errors
    code, _, errors = terminal("--detach", RAY_AUTH_TOKEN="0123456789abcdef" * 2)
    assert code == 1
    assert "RAY_AUTH_TOKEN or ~/.ray/auth_token holds its token" in errors
    assert "Traceback" not in errors
    code, _, errors = terminal("attach")
    assert code == 1
    assert "no detached run of walks with --prefix" in errors


@pytest.mark.parametrize("name", ["runs", "runs [of] *mine*", "!runs", "#runs", "a/runs"])
def test_outputs_below_the_project_are_not_sent(tmp_path: Path, name: str):
    from ray._private.runtime_env.packaging import get_uri_for_directory  # what Ray sends is named by its content

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


def test_outputs_that_a_link_below_the_project_leads_to_are_not_sent(
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
