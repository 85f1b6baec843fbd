"""Planning 10,000 steps, ten layers of a thousand with two parents each, against Snakemake's dry run of that graph.

Ours is measured in a fresh process: the digests and the plan over a local prefix, once with nothing made and once with
a record for every step; the slower of the two counts. (What it takes to build the steps is printed too.) Snakemake's
figure is its whole dry run, and is compared with our whole process, interpreter and imports included. They take turns.
Needs the peers' environment (`make benchmarks`). The last line is JSON: claim, ours, reference, ratio, bar, holds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / ".venv-peers" / "bin"
sys.path.insert(0, str(ROOT))

LAYERS, WIDTH = 10, 1000
SECONDS_BAR, RATIO_BAR = 1.0, 12.0

SNAKEFILE = """
WIDTH = {width}
rule all:
    input: [f"layer{last}/{{i}}" for i in range(WIDTH)]
rule first:
    output: "layer0/{{i}}"
    shell: "touch {{output}}"
def parents(wildcards):
    layer, i = int(wildcards.layer), int(wildcards.i)
    return [f"layer{{layer - 1}}/{{i}}", f"layer{{layer - 1}}/{{(7 * i + layer) % WIDTH}}"]
rule next:
    input: parents
    output: "layer{{layer,[1-9]}}/{{i}}"
    shell: "touch {{output}}"
"""


def plan_once(prefix: str) -> dict[str, float]:
    """Build the steps, then digest and plan them in this process; return the seconds of each."""
    from benchmarks.layered_graph import layered_graph
    from marin_dag.graph.graph import Graph
    from marin_dag.plan.plan import make_plan
    from marin_dag.store.prefix import open_store

    began = time.perf_counter()
    graph = Graph(layered_graph(LAYERS, WIDTH))
    built = time.perf_counter()
    plan = make_plan(graph, open_store(prefix))
    planned = time.perf_counter()
    assert len(plan.steps) == LAYERS * WIDTH
    return {"build": built - began, "plan": planned - built, "would_run": len(plan.will_run)}


def commit_everything(prefix: Path) -> None:
    """Write a record for each step, which a plan lists and reads."""
    from benchmarks.layered_graph import layered_graph, record_of
    from marin_dag.graph.graph import Graph
    from marin_dag.ledger.records import record_path

    for step in Graph(layered_graph(LAYERS, WIDTH)).steps:
        path = prefix / record_path(step.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(record_of(step))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--once", metavar="PREFIX", help="one measurement in this process, printed as JSON")
    arguments = parser.parse_args()
    if arguments.once:
        from marin_dag.paused_collection import collection_of_a_command, collection_paused

        with collection_of_a_command(is_run=False), collection_paused():  # as in a dry run
            print(json.dumps(plan_once(arguments.once)))
        return
    import statistics  # neither is for the process that is measured

    from benchmarks.verdict import conclude

    if not (PEERS / "snakemake").exists():
        sys.exit(f"{PEERS / 'snakemake'}: not there; `make benchmarks` makes the peers' environment.")
    with tempfile.TemporaryDirectory() as folder:
        empty, done, peer = Path(folder, "empty"), Path(folder, "done"), Path(folder, "peer")
        peer.mkdir()
        (peer / "Snakefile").write_text(SNAKEFILE.format(width=WIDTH, last=LAYERS - 1))
        commit_everything(done)
        inner: list[dict[str, float]] = []
        ours, theirs = [], []
        for turn in range(arguments.turns):
            for prefix, would_run in ((empty, LAYERS * WIDTH), (done, 0)):
                began = time.perf_counter()
                command = [sys.executable, __file__, "--once", str(prefix)]
                printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                ours.append(time.perf_counter() - began)
                inner.append(json.loads(printed))
                assert inner[-1]["would_run"] == would_run
            if turn < 2:  # half a minute each: two are enough to see that they agree
                began = time.perf_counter()
                command = [str(PEERS / "snakemake"), "--dry-run", "--quiet", "all", "--cores", "1"]
                environment = {**os.environ, "XDG_CACHE_HOME": folder}
                subprocess.run(command, check=True, cwd=peer, capture_output=True, env=environment)
                theirs.append(time.perf_counter() - began)
    medians = [statistics.median(turn["plan"] for turn in inner[start::2]) for start in (0, 1)]
    for name_of_case, start in (("nothing made", 0), ("all done", 1)):
        parts = {name: statistics.median(turn[name] for turn in inner[start::2]) for name in ("build", "plan")}
        print(name_of_case, " ".join(f"{name} {seconds:.3f} s" for name, seconds in parts.items()))
    whole, reference = statistics.median(ours), min(theirs)
    print(f"whole process {whole:.2f} s; snakemake --dry-run {', '.join(f'{seconds:.1f}' for seconds in theirs)} s")
    claim = "digests and plan of 10,000 steps, seconds in process and whole-process ratio to Snakemake's dry run"
    holds = max(medians) < SECONDS_BAR and reference / whole >= RATIO_BAR
    report = {
        "claim": claim,
        "ours": round(max(medians), 3),
        "reference": round(reference, 2),
        "ratio": round(reference / whole, 1),
        "bar": f"under {SECONDS_BAR} s and at least {RATIO_BAR:g}x",
        "holds": holds,
    }
    conclude(report)


if __name__ == "__main__":
    main()
