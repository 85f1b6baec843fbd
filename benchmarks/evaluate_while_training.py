"""Claim: a phase is at most 2 % slower while its six milestones are evaluated, and all evaluations end soon after it.

A phase trains twice, under prefixes of its own: by itself, and with `--evaluate-every` (bits per byte, export, and a
task of lm-eval for each milestone). XLA on a CPU uses every core that it finds, so the benchmark keeps the phase on the
first core and the evaluations on the second: the claim is about a machine with a core to spare. The time between the
first and the last report of progress is compared. "Soon" is the time of one milestone's evaluation. The benchmark takes
five minutes on two idle cores of Linux. The last line is JSON.

    python benchmarks/evaluate_while_training.py
"""

import argparse
import contextlib
import datetime
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.verdict import conclude
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Record, Records
from marin_dag.store.prefix import open_store
from pipelines import recipe
from runtime.tracking.events import read_events
from runtime.training.background import repeated

BAR = 0.02
NUM_MILESTONES = 6
STEPS_BETWEEN = 200
WORDS = ("the", "fox", "dog", "jumps", "over", "lazy", "brown", "quick", "and", "sleeps", "under", "a", "tree")
MODEL = recipe.LlamaConfig(
    vocab_size=300, hidden_size=128, intermediate_size=344, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, max_position_embeddings=256,
)  # fmt: skip


def build(arguments: argparse.Namespace) -> list[Step[Any]]:
    """Return the evaluation and the score of one phase, over the files that `write_files` wrote."""
    documents = {"web": recipe.documents("web", f"{arguments.files}/web.jsonl")}
    tokenizer = recipe.tokenizer(documents, vocab_size=MODEL.vocab_size)
    phase = recipe.phase(
        "base",
        resources=recipe.Cpu(1),
        model=MODEL,
        until_step=NUM_MILESTONES * STEPS_BETWEEN,
        sequence_length=128,
        global_batch_size=8,
        learning_rate=recipe.Constant(1e-3),
        mixture={"web": 1.0},
        caches=recipe.token_caches(documents, tokenizer, validation_share=0.1),
    )
    export = recipe.export(phase, tokenizer)
    task = recipe.TaskSpec("piqa", items=f"{arguments.files}/piqa.jsonl")
    return [*recipe.evaluate([phase], max_tokens_per_domain=2**14), recipe.score(export, (task,), limit=None)]


def write_files(folder: Path) -> None:
    """Write documents and items."""
    texts = (" ".join(random.Random(seed).choices(WORDS, k=120)) for seed in range(4_000))
    lines = [json.dumps({"id": str(number), "text": text}) for number, text in enumerate(texts)]
    (folder / "web.jsonl").write_text("\n".join(lines) + "\n")
    items = [
        {"goal": f"The fox {number} jumps", "sol1": "over the dog", "sol2": "a tree and the", "label": number % 2}
        for number in range(200)
    ]
    (folder / "piqa.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))


def keep_apart() -> None:
    """Keep the phase on the first core, and all other steps on the second."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            title = (process / "cmdline").read_bytes().split(b"\0")[0].decode()
            if title.startswith("ray::"):
                core = 0 if title == "ray::base" else 1
                for thread in (process / "task").iterdir():
                    os.sched_setaffinity(int(thread.name), {core})


def run(folder: Path, name: str, *options: str) -> tuple[float, list[Record]]:
    """Run the recipe under a prefix of its own; return the seconds of training, and the records."""
    words = ["recipe", "--files", str(folder), "--prefix", str(folder / name), *options]
    with repeated(keep_apart, pause_seconds=lambda: 0.05, name="keep apart"):
        subprocess.run([sys.executable, "-m", "benchmarks.evaluate_while_training", *words], check=True)
    records = Records(open_store(str(folder / name)))
    found = list(records.find_all(records.committed_keys()).values())
    digest = next(record.digest for record in found if record.name == "base")
    (log,) = (folder / name / "work" / digest / "events").glob("*.jsonl")
    reported = [event["elapsed_seconds"] for event in read_events(str(log)) if event["event"] == "progress"]
    return reported[-1] - reported[0], found


def seconds_of(record: Record) -> float:
    """Return how long a step ran."""
    started, finished = (
        datetime.datetime.fromisoformat(getattr(record.provenance, at)) for at in ("started", "finished")
    )
    return (finished - started).total_seconds()


def main() -> None:
    """Train alone and with evaluations, and print one line of JSON."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_files(folder)
        alone, _ = run(folder, "alone")
        options = ["--evaluate-every", str(STEPS_BETWEEN), "--evaluate-on", "cpu:1"]
        beside, records = run(folder, "beside", *options)
    made = [record for record in records if record.kind in ("ema_eval", "hf_export", "lm_eval")]
    end = max(record.provenance.finished for record in records if record.name == "base")
    ends = [datetime.datetime.fromisoformat(each) for each in (end, max(record.provenance.finished for record in made))]
    late = max(0.0, (ends[1] - ends[0]).total_seconds())
    one = sum(map(seconds_of, made)) / NUM_MILESTONES
    slower = beside / alone - 1
    num_scored = sum(record.kind == "lm_eval" for record in made)
    conclude(
        {
            "claim": "a phase is at most 2 % slower while its milestones are evaluated, and all evaluations end soon",
            "holds": slower <= BAR and num_scored == NUM_MILESTONES and late <= one,
            "slower": round(slower, 4),
            "seconds_alone": round(alone, 1),
            "seconds_beside": round(beside, 1),
            "scored": num_scored,
            "last_evaluation_after_the_phase": round(late, 1),
            "seconds_of_one_evaluation": round(one, 1),
        }
    )


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--files", required=True, metavar="DIR", help="folder of documents and items")


if __name__ == "__main__":
    if sys.argv[1:2] == ["recipe"]:
        sys.argv[1:2] = []
        sys.exit(recipe.main(build, name="evaluate_while_training", add_arguments=_add_arguments))
    main()
