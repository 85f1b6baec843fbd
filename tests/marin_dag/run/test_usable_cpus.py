"""Usable CPUs: affinity and quotas of control groups."""

import os
from pathlib import Path

import pytest

from marin_dag.run.supply import usable_cpus


@pytest.fixture(autouse=True)
def affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 128)


def a_system(root: Path, groups: str, **files: str) -> Path:
    """Write the control groups of a process; the keys of `files` are paths below the mount, with `__` for a slash."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("cpu_", "cpu.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_without_quotas_the_affinity_counts(tmp_path: Path):
    assert usable_cpus(tmp_path) == 64
    assert usable_cpus(a_system(tmp_path, "0::/job\n", job__cpu_max="max 100000\n")) == 64


def test_a_quota_of_version_2_counts_wherever_it_lies(tmp_path: Path):
    files = {"cpu_max": "max 100000\n", "slurm__cpu_max": "800000 100000\n", "slurm__job__cpu_max": "max 100000\n"}
    assert usable_cpus(a_system(tmp_path, "0::/slurm/job\n", **files)) == 8


def test_a_container_that_sees_the_path_of_the_host_has_its_quota_at_the_top(tmp_path: Path):
    assert usable_cpus(a_system(tmp_path, "0::/docker/abc\n", cpu_max="350000 100000\n")) == 3


@pytest.mark.parametrize(("quota", "cpus"), [("50000 100000", 1), ("1 0", 64), ("", 64)])
def test_a_quota_that_is_none_or_below_one_cpu_leaves_one(tmp_path: Path, quota: str, cpus: int):
    assert usable_cpus(a_system(tmp_path, "0::/\n", cpu_max=quota)) == cpus


def test_a_narrower_affinity_counts_before_a_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 5})
    assert usable_cpus(a_system(tmp_path, "0::/\n", cpu_max="800000 100000\n")) == 2
