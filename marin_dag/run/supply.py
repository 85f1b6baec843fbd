"""Supply: checks what steps ask for against what the machines have, before the first step starts.

Only sums over all machines are compared. A step that fits the sum but no single machine waits in Ray.
"""

import contextlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from marin_dag.errors import UserError, listed
from marin_dag.graph.resources import Cpu, Gpu, Resources, Tpu, is_gang

MAX_NAMES = 3
NICENESS = 19
"""The lowest priority, for steps in the background. Ray's own workers have niceness 15, and so get 2.4 times the share
of a busy core."""
SHOWN = ("CPU", "GPU", "TPU")


def check_one_machine(wanted: Mapping[str, Resources], has: Mapping[str, float] | None) -> None:
    """Raise UserError for steps, by name, that a single machine can never run.

    `has` is what it has, by Ray's names; None if any step but a gang can run there.
    """
    lacking = {
        name: asked for name, asked in wanted.items() if is_gang(asked) or (has is not None and _lacks(asked, has))
    }
    if lacking:
        place = "--backend local is one process" if has is None else f"this machine has {_shown(has)}"
        cluster = "Run them on Ray" if has is None else "Set RAY_ADDRESS to a cluster that has them"
        raise UserError(
            f"{_listed(lacking)}, but {place}. Nothing was started. {cluster}, give the steps other resources, or "
            "select other steps with --until or --only."
        )


def missing_resources(wanted: Mapping[str, Resources], has: Mapping[str, float]) -> str:
    """Return a line about the steps that wait until more machines join the cluster; "" if it has enough for all."""
    lacking = {name: asked for name, asked in wanted.items() if _lacks(asked, has)}
    if not lacking:
        return ""
    return f"{_listed(lacking)}, but the cluster has {_shown(has)} now. These steps wait for more machines."


def _lacks(resources: Resources, has: Mapping[str, float]) -> bool:
    match resources:
        case Cpu(num_cpus, num_hosts):
            needs: dict[str, float] = {"CPU": num_cpus * num_hosts}
        case Gpu(kind, count, num_hosts):
            needs = {"CPU": num_hosts, "GPU": count * num_hosts, f"accelerator_type:{kind}": 0.001}
        case Tpu():
            needs = {f"TPU-{resources.slice}-head": resources.num_slices}
    return any(amount > has.get(name, 0) for name, amount in needs.items())


def _listed(lacking: Mapping[str, Resources]) -> str:
    """Return text like "kestrel asks for 2 x v5litepod-256; ocelot, jellyfish and 2 more ask for v4-2048"."""
    by_resources: dict[Resources, list[str]] = {}
    for name, resources in lacking.items():
        by_resources.setdefault(resources, []).append(name)
    return "; ".join(
        f"{listed(names, MAX_NAMES)} {'asks' if len(names) == 1 else 'ask'} for {resources}"
        for resources, names in by_resources.items()
    )


def _shown(has: Mapping[str, float]) -> str:
    slices = [name for name in sorted(has) if name.startswith("TPU-") and name.endswith("-head")]
    counted = [f"{has[name]:g} {name}" for name in SHOWN if has.get(name)]
    counted += [f"{has[name]:g} x {name.removeprefix('TPU-').removesuffix('-head')}" for name in slices]
    kinds = [name.partition(":")[2] for name in sorted(has) if name.startswith("accelerator_type:")]
    return ", ".join(counted + kinds) or "nothing"


def lower_process_priority() -> None:
    """Lower the priority of all threads of this process for good; only Linux has a priority for each thread."""
    if sys.platform != "linux":
        return
    for thread in (int(entry.name) for entry in Path("/proc/self/task").iterdir()):
        with contextlib.suppress(ProcessLookupError):  # a thread may end meanwhile
            os.setpriority(os.PRIO_PROCESS, thread, NICENESS)


def usable_cpus(root: Path = Path("/")) -> int:
    """Return the number of whole CPUs, at least 1. The machine may have more than a batch job or a container gets."""
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
