"""The engine's cost per step: 1,000 trivial steps through Ray, wide (independent) and deep (one chain).

Ours runs each step as a Ray task with its lease, attempt, log, manifest and record on a local prefix; the cluster's
start is not counted. redun and doit run the same graphs of empty tasks, redun through its local executor, doit through
its file dependencies; both keep their own databases, start-up included, since they cannot be asked for less. Needs the
peers' environment (`make benchmarks`). The last line is JSON: claim, ours, reference, ratio, bar, holds.
"""

import argparse
import io
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / ".venv-peers" / "bin"
sys.path.insert(0, str(ROOT))

MILLISECONDS_BAR = 12.0

REDUN = """
from redun import task
redun_namespace = "bench"
@task()
def trivial(number, parent):
    return number
@task()
def total(numbers):
    return len(numbers)
@task()
def main(num_steps: int, deep: bool):
    steps, parent = [], None
    for number in range(num_steps):
        step = trivial(number, parent)
        parent = step if deep else None
        steps.append(step)
    return total(steps)
"""

DOIT = """
import pathlib
def touch(targets):
    pathlib.Path(targets[0]).touch()
def task_step():
    for number in range({num_steps}):
        yield dict(name=str(number), actions=[touch], targets=[f"out-{{number}}"],
                   task_dep=[f"step:{{number - 1}}"] if {deep} and number else [])
"""


def ours(num_steps: int, *, deep: bool) -> float:
    """Return the seconds a step, from the first submission to the last record, with the cluster running."""
    import ray
    from rich.console import Console

    from benchmarks.layered_graph import chain, layered_graph
    from marin_dag.graph.graph import Graph
    from marin_dag.ledger.records import Records
    from marin_dag.run.driver import Run
    from marin_dag.run.live import LineDisplay
    from marin_dag.run.ray.backend import RayBackend
    from marin_dag.store.prefix import open_store

    unseen = Console(file=io.StringIO())
    steps = Graph(chain(num_steps) if deep else layered_graph(1, num_steps)).steps
    with tempfile.TemporaryDirectory() as prefix:
        store = open_store(prefix)
        run = Run(steps, store, RayBackend(), LineDisplay(unseen, unseen), command="")
        began = time.perf_counter()
        code = run.run()
        elapsed = time.perf_counter() - began
        assert code == 0
        assert len(Records(store).committed_keys()) == num_steps
    assert ray.is_initialized()
    return elapsed / num_steps


def start_cluster() -> None:
    """Start a cluster as the backend does; a run that finds one joins it."""
    from marin_dag.run.ray.cluster import PRIVATE_CLUSTER_VARIABLES, ensure_token

    ensure_token()
    os.environ.update(PRIVATE_CLUSTER_VARIABLES)
    os.environ["PYTHONPATH"] = str(ROOT)
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    ray.get([ray.remote(lambda: None).remote() for _ in range(4)])  # workers are up


def redun(num_steps: int, *, deep: bool) -> float:
    """Return the seconds a step; a chain has at most 100, since redun's recursion ends there."""
    num_steps = min(num_steps, 100) if deep else num_steps
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "flow.py").write_text(REDUN)
        command = [str(PEERS / "redun"), "run", "flow.py", "main", "--num-steps", str(num_steps)]
        if deep:
            command += ["--deep", "True"]
        else:
            command += ["--deep", "False"]
        began = time.perf_counter()
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        return (time.perf_counter() - began) / num_steps


def doit(num_steps: int, *, deep: bool) -> float:
    """Return the seconds a step."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "dodo.py").write_text(DOIT.format(num_steps=num_steps, deep=deep))
        began = time.perf_counter()
        subprocess.run([str(PEERS / "doit"), "run"], cwd=folder, check=True, capture_output=True)
        return (time.perf_counter() - began) / num_steps


def main() -> None:
    from benchmarks.verdict import conclude

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    if not (PEERS / "redun").exists():
        sys.exit(f"{PEERS / 'redun'}: not there; `make benchmarks` makes the peers' environment.")
    start_cluster()
    slowest, reference = 0.0, float("inf")
    for deep in (False, True):
        own = ours(arguments.steps, deep=deep)
        peers = {"redun": redun(arguments.steps, deep=deep), "doit": doit(arguments.steps, deep=deep)}
        shown = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in peers.items())
        print(f"{'deep' if deep else 'wide'}: ours {1e3 * own:.1f} ms a step; {shown}")
        slowest, reference = max(slowest, own), min(reference, peers["redun"])
    report = {
        "claim": f"milliseconds a step over {arguments.steps} trivial steps through Ray, the slower of wide and deep",
        "ours": round(1e3 * slowest, 2),
        "reference": round(1e3 * reference, 2),
        "ratio": round(reference / slowest, 2),
        "bar": f"at most {MILLISECONDS_BAR:g} ms a step (the ratio is redun's cost over ours)",
        "holds": 1e3 * slowest <= MILLISECONDS_BAR,
    }
    conclude(report)


if __name__ == "__main__":
    main()
