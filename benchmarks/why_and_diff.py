"""`why` and `diff` of a step whose change lies nine layers above it, in a graph of 10,000 steps with all records made.

One number of the first layer was changed since. Each figure is the command's own work in a process that has built the
graph: `why` makes the whole plan and follows the change to its root, `diff` compares the step with its last output.
The last line is JSON: claim, ours, reference, ratio, bar, holds.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

LAYERS, WIDTH, SECONDS_BAR, TURNS = 10, 1000, 1.0, 5


def main() -> None:
    from benchmarks.layered_graph import layered_graph, record_of
    from benchmarks.verdict import conclude
    from marin_dag.graph.graph import Graph
    from marin_dag.ledger.records import LABELS, Records, record_path
    from marin_dag.plan.causes import Siblings
    from marin_dag.plan.explain import compare, explain, of_record, of_step
    from marin_dag.plan.plan import make_plan
    from marin_dag.store.prefix import open_store

    with tempfile.TemporaryDirectory() as folder:
        for step in Graph(layered_graph(LAYERS, WIDTH, first=-1)).steps:
            for path, text in ((record_path(step.key), record_of(step)), (f"{LABELS}/{step.name}/{step.key}", "")):
                file = Path(folder, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
        graph = Graph(layered_graph(LAYERS, WIDTH))
        name = f"layer{LAYERS - 1}/0"
        assert graph.step(name).digest
        seconds: dict[str, list[float]] = {"why": [], "diff": []}
        for _ in range(TURNS):
            store = open_store(folder)
            began = time.perf_counter()
            why = explain(make_plan(graph, store), name, store)
            seconds["why"].append(time.perf_counter() - began)
            began = time.perf_counter()
            records = Records(store)
            newest = Siblings(records, records.labels(), records.committed_keys()).keys(name)[0]
            diff = "\n".join(compare(of_record(records.get(newest)), of_step(graph.step(name)), graph, store))
            seconds["diff"].append(time.perf_counter() - began)
        assert "layer0/0" in why and "layer0/0" in diff, "the root is named"
    medians = {command: statistics.median(turns) for command, turns in seconds.items()}
    print(", ".join(f"{command} {median:.2f} s" for command, median in medians.items()))
    slowest = max(medians.values())
    report = {
        "claim": "why and diff on the graph of 10,000 steps, the slower of the two, seconds",
        "ours": round(slowest, 3),
        "reference": SECONDS_BAR,
        "ratio": round(SECONDS_BAR / slowest, 1),
        "bar": f"under {SECONDS_BAR:g} s",
        "holds": slowest < SECONDS_BAR,
    }
    conclude(report)


if __name__ == "__main__":
    main()
