"""Clusters of several nodes: joining one, losing a node in a step, branches of a running step."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.catalogue import check_message
from tests.marin_dag.cluster_steps import SHARDS, notes
from tests.marin_dag.kill_everywhere import committed_bytes
from tests.marin_dag.run.test_kill import finish, wait_for
from tests.ray_nodes import ROOT, TOKEN, RayNodes

NODE = {"num_cpus": 2}


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
    """Folder of an undisturbed run, whose branch ends before its upstream; RAY_ADDRESS=auto finds the cluster."""
    folder = tmp_path_factory.mktemp("undisturbed")
    process = driver(cluster, folder, "main", "branch", "spread", RAY_ADDRESS="auto", GATE="7")
    wait_for(lambda: notes(folder / "marks", "main-gate"), process)
    wait_for((folder / "runs" / "labels" / "branch").exists, process)  # committed, and main still stands at its gate
    (folder / "marks" / "open").touch()
    code, output = finish(process)
    assert code == 0, output
    assert cluster.dashboard in output
    assert "branch  done" in output and "main  done" in output
    return folder


def test_a_driver_joins_the_cluster_at_ray_address_and_leaves_it_running(cluster: RayNodes, undisturbed: Path):
    assert {node for _, node, _ in notes(undisturbed / "marks", "main-from-0")} <= set(cluster.ids)
    asked = urllib.request.Request(f"{cluster.dashboard}/api/jobs/", headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(asked) as answer:
        names = {job["metadata"].get("job_name") for job in json.load(answer)}
    assert "marin-dag" in names  # as the list of jobs shows it


def test_an_unreachable_cluster_is_one_message(cluster: RayNodes, tmp_path: Path):
    code, output = finish(driver(cluster, tmp_path, "main", RAY_ADDRESS="127.0.0.1:9"))
    assert code == 1
    check_message(output.splitlines()[-1])


def test_a_branch_starts_from_a_milestone_while_its_upstream_still_runs(undisturbed: Path):
    walks = [what for what, _, _ in notes(undisturbed / "marks") if "shard" not in what and what != "spread"]
    assert walks == ["main-from-0", "main-gate", "branch-from-5"]
    made = committed_bytes(undisturbed / "runs")
    assert sorted(key.partition("@")[2] for key in made) == ["", "10", "12", "5", "8"]


def test_a_step_and_a_shard_whose_nodes_die_are_retried_elsewhere_with_the_same_bytes(
    cluster: RayNodes, undisturbed: Path, tmp_path: Path
):
    process = driver(cluster, tmp_path, "main", "branch", "spread", GATE="3")
    marks, work = tmp_path / "marks", tmp_path / "runs" / "work"
    wait_for(lambda: notes(marks, "main-gate"), process)
    # The shard waits, and the others finish beside it.
    wait_for(lambda: notes(marks, "shard-3") and len(list(work.glob("*/shards/*/*.json"))) == SHARDS - 1, process)
    ((_, dead, _),), ((_, dies, _),) = notes(marks, "main-gate"), notes(marks, "shard-3")
    cluster.kill(dead)
    cluster.add(NODE)
    wait_for(lambda: len(notes(marks, "main-gate")) == 2, process)
    (_, again, _) = notes(marks, "main-from-3")[-1]  # it resumes from what it had saved
    assert dead not in (again, dies)
    cluster.kill(dies)
    cluster.add(NODE)
    wait_for(lambda: len(notes(marks, "shard-3")) == 2, process)
    (marks / "open").touch()
    code, output = finish(process)
    assert code == 0, output
    before, _, after = output.partition("main  retrying")
    assert "\nRay: " not in before and "\nRay: " in after, "the failure of the step comes before Ray's messages"
    assert "\x1b" not in output
    assert committed_bytes(tmp_path / "runs") == committed_bytes(undisturbed / "runs")
    spread = [what for what, _, _ in notes(marks) if what == "spread" or "shard" in what]
    assert sorted(spread) == sorted(["spread", *(f"shard-{number}" for number in range(SHARDS)), "shard-3"])
