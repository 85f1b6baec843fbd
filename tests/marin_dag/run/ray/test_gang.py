"""Gangs: one step on several hosts with two devices each, on a cluster whose nodes declare to be TPU hosts."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray

from marin_dag.graph.context import Host
from marin_dag.graph.resources import Cpu, Tpu
from marin_dag.ledger.records import Failure
from marin_dag.run.ray.gang import Gang, RefusedFanOut, cause_of, hosts_of
from marin_dag.run.task import Outcome
from steps.joined_mesh import LOST_PEER_ERRORS
from tests.catalogue import expect_error
from tests.marin_dag.cluster_steps import notes
from tests.marin_dag.gang_steps import SumConfig, sums
from tests.marin_dag.kill_everywhere import committed_bytes
from tests.marin_dag.run.test_kill import finish, wait_for
from tests.ray_nodes import ROOT, RayNodes


def tpu_host(slice_name: str, worker: int) -> dict[str, Any]:
    """Return one of the two machines of a v4-16, as Ray declares it."""
    head = {"TPU-v4-16-head": 1} if worker == 0 else {}
    labels = {"slice-name": slice_name, "worker-id": str(worker), "pod-type": "v4-16", "topology": "2x2x2"}
    return {
        "num_cpus": 2,
        "resources": {"TPU": 4, **head},
        "labels": {f"ray.io/tpu-{name}": value for name, value in labels.items()},
        "env_vars": {"TPU_NAME": slice_name, "TPU_WORKER_ID": str(worker), "TPU_ACCELERATOR_TYPE": "v4-16"},
    }


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayNodes]:
    """Yield a whole slice with its hosts out of order, and one host of an incomplete slice."""
    hosts = tpu_host("half", 1), tpu_host("whole", 1), tpu_host("whole", 0)
    devices = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    with RayNodes(*hosts, with_dashboard=False, XLA_FLAGS=devices) as cluster:
        yield cluster


def driver(cluster: RayNodes, folder: Path, resources: str, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "tests/marin_dag/gang_steps.py", str(folder / "runs"), str(folder / "marks"), resources]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=cluster.environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def expected() -> dict[str, object]:
    """Return the records and files of a gang, by arithmetic."""
    digest = sums("sums", SumConfig(until_step=6)).digest
    totals = {step: 10 * step * (step + 1) // 2 for step in (4, 6)}  # the devices are numbered 1 to 4
    return {
        f"{digest}@{step}": (
            {"step": step, "total": total, "num_devices": 4},
            {f"of-host-{host}.txt": str(total).encode() for host in range(2)},
        )
        for step, total in totals.items()
    }


def test_a_killed_member_restarts_the_whole_gang(cluster: RayNodes, tmp_path: Path):
    process = driver(cluster, tmp_path, "slice", GATE="3")
    marks = tmp_path / "marks"
    wait_for(lambda: notes(marks, "gate"), process)
    ((_, _, pid),) = notes(marks, "gate")
    ((_, _, other),) = notes(marks, "host-0-from-0")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: len(notes(marks, "gate")) == 2, process)
    assert not Path(f"/proc/{other}").exists()  # it was in a collective, and got no exception
    # The slice is reserved whole, and its hosts have the numbers of the TPU.
    _, first, zeroth = cluster.ids[-3:]
    assert {what: node for what, node, _ in notes(marks) if "from" in what} == {
        "host-0-from-0": zeroth,
        "host-1-from-0": first,
        "host-0-from-3": zeroth,
        "host-1-from-3": first,
    }
    cluster.kill(first)
    cluster.add(tpu_host("whole", 1))  # until then the gang waits
    wait_for(lambda: len(notes(marks, "gate")) == 3, process)
    (marks / "open").touch()
    code, output = finish(process)
    # Which end is seen first, the lost host's or that of a waiting peer, depends on timing.
    assert code == 0, output
    assert output.count("retrying") >= 2, output
    assert committed_bytes(tmp_path / "runs") == expected()


def test_a_gang_fails_disagrees_and_stops_as_one_and_the_next_run_resumes(cluster: RayNodes, tmp_path: Path):
    marks = tmp_path / "marks"
    code, output = finish(driver(cluster, tmp_path, "machines", MISTAKE="1"))
    assert code == 1
    assert "sums failed: ValueError: " in output  # and no retry
    log = next(Path(line.split()[-1]) for line in output.splitlines() if line.startswith("  log:"))
    assert log.name.endswith(".host1.log")
    assert "Traceback" in log.read_text()

    process = driver(cluster, tmp_path, "machines", GATE="3", DISAGREES="1")
    wait_for(lambda: notes(marks, "gate"), process)
    other = notes(marks, "host-0-from-0")[-1][2]
    process.send_signal(signal.SIGINT)
    code, output = finish(process)
    assert code == 1
    assert "  sums  failed:  HostsDisagreedError: " in output
    assert not Path(f"/proc/{other}").exists()  # it waited in a collective

    process = driver(cluster, tmp_path, "machines", GATE="3")
    wait_for(lambda: len(notes(marks, "gate")) == 2, process)
    process.send_signal(signal.SIGINT)
    code, output = finish(process)
    assert code == 1
    assert re.search(r"sums  stopped:  .*: at 3\n", output)
    code, output = finish(driver(cluster, tmp_path, "machines"))
    assert code == 0, output
    assert notes(marks, "host-0-from-3")
    assert committed_bytes(tmp_path / "runs") == expected()


def failure(error_type: str) -> Failure:
    return Failure(
        key="k", name="n", attempt="a", error_type=error_type, error="", log_path="", is_transient=False, finished=""
    )


def test_the_cause_of_a_failed_gang_is_the_first_error_that_is_not_a_lost_peer():
    assert (
        cause_of([failure("JaxRuntimeError"), failure("ActorDiedError")], LOST_PEER_ERRORS).error_type
        == "ActorDiedError"
    )
    assert cause_of([failure("ValueError"), failure("ActorDiedError")], LOST_PEER_ERRORS).error_type == "ValueError"
    assert cause_of([failure("JaxRuntimeError")], LOST_PEER_ERRORS).error_type == "JaxRuntimeError"


@pytest.mark.parametrize(
    ("ends", "cause", "latest"),
    [
        # Ray gives a vanished machine up after half a minute; its failure is transient, that of its peers is not.
        ({0: (1, "JaxRuntimeError"), 1: (40, "NodeDiedError")}, "NodeDiedError", 41),
        ({0: (1, "JaxRuntimeError"), 1: (30, "XlaRuntimeError"), 2: (40, "NodeDiedError")}, "NodeDiedError", 41),
        ({0: (1, "ValueError"), 1: (40, "JaxRuntimeError")}, "ValueError", 5),
        ({0: (1, "JaxRuntimeError"), 1: (20, "ValueError"), 2: (50, "NodeDiedError")}, "ValueError", 24),
        ({0: (1, "JaxRuntimeError"), 1: (9_999, "ValueError")}, "JaxRuntimeError", 62),
    ],
    ids=str,
)
def test_a_gang_waits_longer_while_all_failures_are_lost_peers(
    monkeypatch: pytest.MonkeyPatch, ends: dict[int, tuple[float, str]], cause: str, latest: float
):
    kind = SimpleNamespace(lost_peer_errors=LOST_PEER_ERRORS)
    clock, task = SimpleNamespace(now=0.0), cast(Any, SimpleNamespace(name="sums", kind=kind))

    def wait(running: list[int], *, num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        clock.now += timeout
        ended = [index for index in running if ends[index][0] <= clock.now][:num_returns]
        return ended, [index for index in running if index not in ended]

    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "get", lambda index: Outcome(task, "failed", failure=failure(ends[index][1])))
    monkeypatch.setattr("marin_dag.run.ray.gang.time", SimpleNamespace(monotonic=lambda: clock.now))
    outcome = Gang(task, None, lambda outcome: None)._watch({index: index for index in ends})
    assert outcome.failure is not None and outcome.failure.error_type == cause
    assert clock.now <= latest


def test_hosts_are_numbered_slice_by_slice():
    assert hosts_of(Cpu(4, num_hosts=2)) == [Host(0, 2), Host(1, 2)]
    assert [(host.index, host.slice_index) for host in hosts_of(Tpu("v4-16", num_slices=2))] == [
        *((0, 0), (1, 0)),
        *((2, 1), (3, 1)),
    ]
    assert len(hosts_of(Tpu("v4-2048"))) == 256
    assert {host.num_slices for host in hosts_of(Tpu("v5litepod-256", num_slices=2))} == {2}


def test_a_map_on_several_hosts_is_refused() -> None:
    with expect_error(TypeError):
        RefusedFanOut().run([], 1, "shards", lambda: False)
