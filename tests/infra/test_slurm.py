"""Slurm job script with replacements for srun and scontrol: two Ray nodes on one machine, and a real driver.

run_slurm.sh runs the same script under a real Slurm controller.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.marin_dag.cluster_steps import notes
from tests.marin_dag.run.test_kill import finish, wait_for

ROOT = Path(__file__).parents[2]
Job = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Start the script as Slurm does, with a command of this project."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("srun", "scontrol"):
        shutil.copy(ROOT / "tests/infra" / name, commands / name)
    started: list[subprocess.Popen[str]] = []

    def start(*command: str, **variables: str) -> subprocess.Popen[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SLURM_"))}
        path = os.pathsep.join([str(commands), str(Path(sys.executable).parent), kept["PATH"]])
        environment = kept | {
            "PATH": path,
            "PYTHONPATH": str(ROOT),
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_JOB_NODELIST": "two nodes",
            "SLURM_CPUS_ON_NODE": "2",
            "SRUN_NODES": str(tmp_path / "nodes"),
            "TMPDIR": "/tmp",  # the path of Ray's sockets must be short
            "RAY_worker_niceness": "0",
            "RAY_prestart_worker_first_driver": "0",  # the driver brings an environment; see tests/ray_nodes.py
            **variables,
        }
        started.append(
            subprocess.Popen(
                ["bash", str(ROOT / "infra/slurm/ray.sbatch"), *command],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def walks(folder: Path) -> list[str]:
    return ["python", "tests/marin_dag/cluster_steps.py", str(folder / "runs"), str(folder / "marks"), "main", "spread"]


def test_before_the_time_limit_steps_save_and_the_requeued_job_resumes_and_cleans_up(job: Job, tmp_path: Path):
    process = job(*walks(tmp_path)[:-1], GATE="3", SLURM_JOB_NODELIST="one node")
    wait_for(lambda: notes(tmp_path / "marks", "main-gate"), process)
    process.send_signal(signal.SIGUSR2)  # as `--signal=B:USR2@600` does
    code, output = finish(process)
    assert code == 1
    assert "main  stopped: " in output, output
    requeued, nodes = tmp_path / "nodes.requeued", tmp_path / "nodes"
    assert requeued.read_text().strip() == str(os.getpid())
    requeued.unlink()
    nodes.unlink()
    (tmp_path / "marks" / "open").touch()
    code, output = finish(job(*walks(tmp_path)))
    assert code == 0, output
    assert "main  done" in output and "spread  done" in output
    head = os.uname().nodename
    assert nodes.read_text().split() == [head, head, "second"]  # its address, its Ray, the other's
    assert not requeued.exists()
    assert not list(Path("/tmp").glob(f"ray-{os.getpid()}-*"))
    assert len({node for _, node, _ in notes(tmp_path / "marks")}) <= 3  # one Ray node, then two
    assert [what for what, _, _ in notes(tmp_path / "marks") if what.startswith("main-from")] == [
        "main-from-0",
        "main-from-3",
    ]


def test_a_job_without_a_command_prints_its_usage(job: Job):
    code, output = finish(job())
    assert code == 2
    assert output.count("\n") == 1 and "sbatch" in output
