"""Ray cluster of several nodes on one machine, in a process of its own, whose nodes a test may kill and add.

As a script it reads one JSON command a line and writes one JSON line for each: python ray_nodes.py.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[1]
TOKEN = "only-for-tests-of-clusters-" + "0123456789abcdef"
# A dead node is noticed after two seconds instead of half a minute; a slow one is still waited for.
HEALTH = {"period_ms": 200, "initial_delay_ms": 0, "failure_threshold": 10, "timeout_ms": 20_000}
# One process less for each node: it would send the output of workers to drivers, which do not ask for it.
WITHOUT_LOGS = {"include_log_monitor": False}


class RayNodes:
    """Context manager that starts a head without CPUs and `nodes`, each with its options, and ends them.

    Submitting a job needs a dashboard, which takes as long to start as three nodes.
    """

    def __init__(self, *nodes: dict[str, Any], with_dashboard: bool = True, **environment: str) -> None:
        self._nodes = nodes
        self._with_dashboard = with_dashboard
        self._own = environment
        self._folder = tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True)
        self.ids: list[str] = []
        self.address = ""
        self.dashboard = ""

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the nodes, and of a driver that joins them."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        kept |= {f"RAY_health_check_{name}": str(value) for name, value in HEALTH.items()}
        kept |= {"PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "JAX_PLATFORMS": "cpu"}
        kept |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        # A driver with an environment of its own cannot use workers that a node starts in advance.
        kept |= {"RAY_prestart_worker_first_driver": "0", "RAY_worker_niceness": "0", **self._own}
        # For "auto" and for jobs Ray finds the address of the cluster in this folder.
        kept |= {"RAY_TMPDIR": self._folder.name}
        return kept | ({"RAY_ADDRESS": self.address} if self.address else {})

    def __enter__(self) -> "RayNodes":
        command = [sys.executable, "-m", "tests.ray_nodes"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started = self._ask(start={"include_dashboard": self._with_dashboard})
        self.address, self.dashboard = started["address"], started["dashboard"]
        for node in self._nodes:
            self.add(node)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()

    def add(self, node: dict[str, Any]) -> str:
        """Start a node; return its id."""
        self.ids.append(self._ask(add=node)["id"])
        return self.ids[-1]

    def kill(self, node_id: str) -> None:
        """Kill all processes of a node with SIGKILL."""
        self._ask(kill=node_id)
        self.ids.remove(node_id)

    def _ask(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError("the process that holds the cluster has died")


def _serve() -> None:
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster()
    nodes = {}
    for line in sys.stdin:
        command = json.loads(line)
        if "start" in command:
            # Free ports: another cluster's agent may hold the usual one.
            ports = {"dashboard_port": 0, "dashboard_agent_listen_port": None}
            head = cluster.add_node(num_cpus=0, no_monitor=True, **command["start"], **ports, **WITHOUT_LOGS)
            answer = {"address": cluster.address, "dashboard": f"http://{head.webui_url}"}
        elif "add" in command:
            node = cluster.add_node(**command["add"], **WITHOUT_LOGS)
            nodes[node.node_id] = node
            answer = {"id": node.node_id}
        else:
            cluster.remove_node(nodes.pop(command["kill"]), allow_graceful=False)
            answer = {}
        print(json.dumps(answer), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    _serve()
