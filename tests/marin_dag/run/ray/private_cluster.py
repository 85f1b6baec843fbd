"""Start of a private cluster that fails once when all its processes are up; the script prints what it saw as JSON."""

import json
import os
from typing import Any

import psutil

from marin_dag.run.ray import cluster


def listening() -> list[str]:
    """Return the addresses on which this process and its children listen."""
    here = psutil.Process()
    found = set()
    for process in (here, *here.children(recursive=True)):
        found |= {each.laddr.ip for each in process.net_connections(kind="inet") if each.status == psutil.CONN_LISTEN}
    return sorted(found)


def main() -> None:
    import ray
    from ray._private.node import Node

    start_processes: Any = Node.start_ray_processes
    first: list[int] = []

    def start_and_fail_once(node: Any) -> None:
        start_processes(node)
        if not first:
            first.extend(process.pid for process in psutil.Process().children(recursive=True))
            raise RuntimeError("the port of an agent is not known in time")

    setattr(Node, "start_ray_processes", start_and_fail_once)  # noqa: B010 -- a type checker rejects the assignment
    lines: list[str] = []
    cluster.start_cluster(2, "a job", lines.append)
    result = ray.get(ray.remote(lambda: os.environ.get("RAY_AUTH_MODE")).remote())
    left = [pid for pid in first if psutil.pid_exists(pid)]
    print(json.dumps({"lines": lines, "result": result, "left": left, "listening": listening()}))


if __name__ == "__main__":
    main()
