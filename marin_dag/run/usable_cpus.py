"""Usable CPUs: how many this process may use, by its affinity and the quotas of its control groups."""

import contextlib
import os
from pathlib import Path


def usable_cpus(root: Path = Path("/")) -> int:
    """Return the number of whole CPUs, at least 1. The machine may have more than a batch job or a container gets.

    Args:
        root: where `proc` and `sys` lie.
    """
    found: list[float] = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    top = root / "sys/fs/cgroup"
    with contextlib.suppress(OSError, ValueError, ArithmeticError):  # there are none, or of another form
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            # "0::PATH" of version 2. In a container the path may be the host's, while its own group lies at the top.
            inner = top / line.split(":", 2)[2].lstrip("/")
            for group in (inner, *inner.parents):
                if line.startswith("0::") and group.is_relative_to(top) and (group / "cpu.max").is_file():
                    quota, period = (group / "cpu.max").read_text().split()  # "150000 100000", or "max 100000"
                    found.append(float(quota) / float(period) if quota != "max" else found[0])
    return max(1, int(min(found)))
