"""Planning 10,000 steps whose outputs lie in a bucket that answers each request after 20 ms, beside 86,000 objects.

The bucket is the tests' fake Cloud Storage in a process of its own. What must hold: the plan takes under ten seconds,
and it asks no more often for 10,000 steps than the pages of the listings require. The same objects are planned against
by a graph of 1,000 steps as well, so that any request a step would show. The last line is JSON.
"""

import math
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

NUM_OBJECTS, LAYERS, WIDTH, LATENCY_SECONDS = 86_000, 10, 1000, 0.020
OBJECTS_A_PAGE = 1000
SECONDS_BAR = 10.0
ASKED_ANYWAY = 10
BUCKET = "plans"


def main() -> None:
    from benchmarks.verdict import conclude
    from tests.gcs_server.control import GcsServerProcess

    with GcsServerProcess(buckets=[BUCKET]) as server:
        os.environ.update(server.environment())
        from benchmarks.layered_graph import layered_graph, record_of
        from marin_dag.graph.graph import Graph
        from marin_dag.ledger.records import LABELS, record_path
        from marin_dag.plan.plan import make_plan
        from marin_dag.plan.planned import Verdict
        from marin_dag.store.prefix import open_store

        whole = Graph(layered_graph(LAYERS, WIDTH))
        small = Graph(layered_graph(1, WIDTH))
        # All but the last layer is made; the files of the outputs fill the bucket up.
        made = [step for step in whole.steps if not step.name.startswith(f"layer{LAYERS - 1}/")]
        objects = {f"runs/{record_path(step.key)}": record_of(step) for step in made}
        objects |= {f"runs/{LABELS}/{step.name}/{step.key}": "" for step in made}
        rest = range(NUM_OBJECTS - len(objects))
        objects |= {f"runs/outputs/{number // 100}/{number % 100}.bin": "" for number in rest}
        server.fill(BUCKET, objects)
        server.set_latency(LATENCY_SECONDS)
        seconds, requests = {}, {}
        for name, graph, pending in (("10,000 steps", whole, WIDTH), ("1,000 steps", small, 0)):
            server.clear_requests()
            began = time.perf_counter()
            plan = make_plan(graph, open_store(f"gs://{BUCKET}/runs"))
            seconds[name] = time.perf_counter() - began
            requests[name] = len(server.requests())
            assert sum(step.verdict is not Verdict.DONE for step in plan.steps) == pending
            print(f"{name}: plan {seconds[name]:.2f} s, {requests[name]} requests, {pending} steps not done")
    # The listings of the records and of the labels in pages, and what is asked whatever the size of the graph: the
    # listings that are empty here, and the few past attempts that an estimate of the time is made from.
    pages = 2 * math.ceil(len(made) / OBJECTS_A_PAGE) + ASKED_ANYWAY
    report = {
        "claim": f"plan of 10,000 steps over a bucket of {NUM_OBJECTS:,} objects at 20 ms a request, seconds",
        "ours": round(seconds["10,000 steps"], 2),
        "reference": SECONDS_BAR,
        "ratio": round(SECONDS_BAR / seconds["10,000 steps"], 1),
        "bar": f"under {SECONDS_BAR:g} s and at most {pages} requests (it took {requests['10,000 steps']})",
        "holds": seconds["10,000 steps"] < SECONDS_BAR and requests["10,000 steps"] <= pages,
    }
    conclude(report)


if __name__ == "__main__":
    main()
