"""Usable CPUs: how many this process may use, by its affinity and the quotas of its control groups."""

import os
from collections.abc import Iterator
from pathlib import Path

MOUNTS = "sys/fs/cgroup"


def usable_cpus(root: Path = Path("/")) -> int:
    """Return the number of whole CPUs, at least 1. The machine may have more than a batch job or a container gets.

    Args:
        root: where `proc` and `sys` lie.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, int(min([affinity, *_quotas(root)])))


def _quotas(root: Path) -> Iterator[float]:
    """Yield the CPUs that each control group of this process may use, from the innermost outwards."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Version 2 has one tree and no controllers here, version 1 a tree for each set of controllers.
        for mount in (MOUNTS,) if not controllers else (f"{MOUNTS}/{controllers}", f"{MOUNTS}/cpu"):
            top = root / mount
            # In a container the path may be the host's, while its own group lies at the top.
            for group in (top / path.lstrip("/"), *(top / path.lstrip("/")).parents):
                if group.is_relative_to(top):
                    yield from _quota(group)


def _quota(group: Path) -> Iterator[float]:
    if both := _text(group / "cpu.max").split():  # version 2: "150000 100000", or "max 100000"
        quota, period = both[0], both[-1]
    else:
        quota, period = _text(group / "cpu.cfs_quota_us").strip(), _text(group / "cpu.cfs_period_us").strip()
    if quota.isdigit() and period.isdigit() and int(period):
        yield int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # no such group, or a system without control groups
        return ""
