"""Clusters of several nodes: joining one, losing a node in a step, branches of a running step."""

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.catalogue import check_message
from tests.marin_dag.cluster_steps import IN_FLIGHT, SHARDS, notes
from tests.marin_dag.kill_everywhere import committed_bytes
from tests.marin_dag.run.test_kill import finish, wait_for
from tests.ray_nodes import ROOT, TOKEN, RayNodes

NODE = {"num_cpus": 2}


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayNodes]:
    """A head without CPUs and two nodes of two."""
    with RayNodes(NODE, NODE) as cluster:
        yield cluster


def driver(cluster: RayNodes, folder: Path, *steps: str, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "tests/marin_dag/cluster_steps.py", str(folder / "runs"), str(folder / "marks"), *steps]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=cluster.environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def undisturbed(cluster: RayNodes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an undisturbed run; RAY_ADDRESS=auto finds the cluster."""
    folder = tmp_path_factory.mktemp("undisturbed")
    code, output = finish(driver(cluster, folder, "main", "branch", "spread", RAY_ADDRESS="auto"))
    assert code == 0, output
    assert cluster.dashboard in output
    return folder


@pytest.fixture
def expected(undisturbed: Path) -> dict[str, object]:
    """Records and files of an undisturbed run."""
    return committed_bytes(undisturbed / "runs")


def test_a_driver_joins_the_cluster_at_ray_address_and_leaves_it_running(cluster: RayNodes, undisturbed: Path):
    assert {node for _, node, _ in notes(undisturbed / "marks", "main-from-0")} <= set(cluster.ids)
    asked = urllib.request.Request(f"{cluster.dashboard}/api/jobs/", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(asked) as answer:
        names = {job["metadata"].get("job_name") for job in json.load(answer)}
    assert names == {"marin-dag"}  # as the list of jobs shows it


def test_an_unreachable_cluster_is_one_message(cluster: RayNodes, tmp_path: Path):
    code, output = finish(driver(cluster, tmp_path, "main", RAY_ADDRESS="127.0.0.1:9"))
    assert code == 1
    check_message(output.splitlines()[-1])


def test_a_step_whose_node_dies_is_retried_elsewhere_with_the_same_bytes(
    cluster: RayNodes, tmp_path: Path, expected: dict[str, object]
):
    process = driver(cluster, tmp_path, "main", "branch", "spread", GATE="3")
    marks = tmp_path / "marks"
    wait_for(lambda: notes(marks, "main-gate"), process)
    ((_, dead, _),) = notes(marks, "main-gate")
    cluster.kill(dead)
    cluster.add(NODE)
    wait_for(lambda: len(notes(marks, "main-gate")) >= 2, process)
    (marks / "open").touch()
    code, output = finish(process)
    assert code == 0, output
    before, _, after = output.partition("main  retrying")
    assert "\nRay: " not in before and "\nRay: " in after, "the failure of the step comes before Ray's messages"
    assert "\x1b" not in output
    (_, again, _) = notes(marks, "main-from-3")[-1]  # it resumes from what it had saved
    assert again != dead
    assert committed_bytes(tmp_path / "runs") == expected


def test_shards_of_a_dead_node_run_elsewhere_and_finished_ones_are_kept(
    cluster: RayNodes, tmp_path: Path, expected: dict[str, object]
):
    process = driver(cluster, tmp_path, "spread", GATE="2")
    marks, work = tmp_path / "marks", tmp_path / "runs" / "work"
    # Three in flight; the third waits, and the others finish beside it.
    wait_for(lambda: notes(marks, "shard-2") and len(list(work.glob("*/shards/*/*.json"))) == SHARDS - 1, process)
    ((_, dead, _),) = notes(marks, "shard-2")
    cluster.kill(dead)
    cluster.add(NODE)
    wait_for(lambda: len(notes(marks, "shard-2")) >= 2, process)
    (marks / "open").touch()
    code, output = finish(process)
    assert code == 0, output
    key = next(key for key in committed_bytes(tmp_path / "runs"))
    assert committed_bytes(tmp_path / "runs")[key] == expected[key]
    assert [what for what, _, _ in notes(marks)].count("spread") == 1  # the step itself, on the head, never noticed
    assert sorted(what for what, _, _ in notes(marks) if what not in ("spread", "shard-2")) == [
        f"shard-{number}" for number in range(SHARDS) if number != 2
    ]
    at_once = max(int(path.name.rpartition("-")[2]) for path in marks.glob("at-once-*"))
    assert at_once <= IN_FLIGHT + 1  # the mark of the dead shard stays


def test_a_branch_starts_from_a_milestone_while_its_upstream_still_runs(
    cluster: RayNodes, tmp_path: Path, expected: dict[str, object]
):
    process = driver(cluster, tmp_path, "main", "branch", GATE="7")
    marks = tmp_path / "marks"
    branch = tmp_path / "runs" / "labels" / "branch"
    wait_for(lambda: notes(marks, "main-gate"), process)
    wait_for(branch.exists, process)  # committed, and main still stands at its gate
    assert not (marks / "open").exists()
    (marks / "open").touch()
    code, output = finish(process)
    assert code == 0, output
    # The order may vary: the driver may see both at once.
    assert "branch  done" in output and "main  done" in output
    assert [what for what, _, _ in notes(marks)] == ["main-from-0", "main-gate", "branch-from-5"]
    made = committed_bytes(tmp_path / "runs")
    assert made == {key: expected[key] for key in made}
    assert len(made) == 4  # main at 5, 10 and 12, branch at 8
