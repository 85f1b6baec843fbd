"""The whole way from files to clean documents as a graph, and a process that is killed in the middle of it.

    python -m tests.steps.text_chain PREFIX CORPUS [LOG STEP/MAP ...]

Runs the graph. With more arguments, first runs once for each STEP/MAP in a fork that kills itself when the second shard
of that map starts. LOG gets a line for every shard that starts.
"""

import json
import os
import random
import signal
import sys
import zipfile
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.console import Console

from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step, StepContext, step
from marin_dag.run.driver import Run
from marin_dag.run.live import LineDisplay
from marin_dag.run.local.backend import LocalBackend
from marin_dag.run.shards import ShardCall
from marin_dag.store.prefix import open_store
from runtime.text import quality, signature_files  # noqa: F401 -- once, not in each fork
from runtime.text.extraction.formats import JsonLines
from runtime.text.filter_rules import C4Lines, Length, QualityScore
from runtime.text.filters import filtered  # noqa: F401
from runtime.text.item_index import build_index
from runtime.text.items import read_item_fields
from steps.decontaminate import DecontaminateConfig, decontaminate
from steps.dedup import DedupConfig, dedup
from steps.download import DownloadConfig, download
from steps.evaluation_items import EvaluationItemsResult
from steps.extract import ExtractConfig, extract
from steps.fetch import files_in
from steps.filter import FilterConfig, filter_documents
from steps.train_quality_classifier import TrainQualityClassifierConfig, train_quality_classifier

NUM_FILES = 5
WORDS = "toy wound window morning sea alone walked wooden key child play gentle river valley boats farmers".split()  # noqa: SIM905
ITEM = "Which wooden toy walked to the sea alone in the morning and wound the gentle child of the valley"
MAPS = (
    "download/files",
    "extract/listing",
    "extract/shards",
    "classifier/samples",
    "filter/samples",
    "filter/shards",
    "dedup/signatures",
    "dedup/pairs",
    "dedup/shards",
    "decontaminate/shards",
)


class ItemsConfig(BaseModel, frozen=True, extra="forbid"):
    question: str


@step()
def items(config: ItemsConfig, context: StepContext) -> EvaluationItemsResult:
    """Write one evaluation item."""
    file = Path(context.output_path) / "toy.jsonl"
    file.write_text(json.dumps({"question": config.question}) + "\n")
    fields = read_item_fields({"toy": str(file)})
    num_ngrams = build_index(fields, f"{context.output_path}/ngrams", ngram_words=13, min_field_words=8).num_ngrams
    return EvaluationItemsResult(
        files={"toy": "toy.jsonl"}, fewshot_files={}, num_items={"toy": 1}, ngram_index="ngrams", num_ngrams=num_ngrams
    )


def write_corpus(folder: Path) -> None:
    """Write files of sentences: copies, near copies, a short text and a contaminated one."""
    chance = random.Random(0)
    phrases = [" ".join(chance.choices(WORDS, k=8)) + "." for _ in range(400)]
    texts = ["\n".join(chance.sample(phrases, k=8)) for _ in range(50)]
    texts += [
        texts[3],
        texts[7].upper(),
        f"{texts[11]}\nAnd so it goes on.",
        "short.",
        "\n".join([*chance.sample(phrases, k=4), f"{ITEM}."]),
    ]
    chance.shuffle(texts)
    folder.mkdir(parents=True)
    for index in range(NUM_FILES):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts[index::NUM_FILES])
        with zipfile.ZipFile(folder / f"{index}.zip", "w") as archive:
            archive.writestr(zipfile.ZipInfo(f"{index}.jsonl"), lines)


def chain(folder: str) -> dict[str, Step[Any]]:
    """Return every step by name."""
    fetched = download("download", DownloadConfig(fetch=files_in(folder, "*.zip")))
    documents = extract("extract", ExtractConfig(download=fetched, formats=(JsonLines(),)))
    training = TrainQualityClassifierConfig(
        positives=(documents,), negatives=(documents,), table_bits=8, held_out_share=0.2
    )
    classifier = train_quality_classifier("classifier", training)
    rules = (C4Lines(), Length(min_words=5), QualityScore(keep_fraction=1.0))
    kept = filter_documents("filter", FilterConfig(documents=documents, rules=rules, quality_classifier=classifier))
    single = dedup("dedup", DedupConfig(documents=kept, keys_per_task=100))
    found = items("items", ItemsConfig(question=ITEM))
    clean = decontaminate("decontaminate", DecontaminateConfig(documents=single, evaluation_items=found))
    return {each.name: each for each in Graph([clean]).steps}


def run(prefix: str, corpus: str) -> int:
    display = LineDisplay(Console(stderr=True), Console(stderr=True))
    return Run(list(chain(corpus).values()), open_store(prefix), LocalBackend(), display, command="").run()


def kill_at(log: str, victim: str) -> None:
    """Log each shard that starts in this process, and kill it at the second shard of `victim`."""
    begin = ShardCall.__call__

    def noted(call: ShardCall) -> None:
        _, name, _, mapped, index = call.folder.split("/")
        shard = f"{name.rpartition('-')[0]}/{mapped}"
        with open(log, "a") as file:
            file.write(f"{shard} {index}\n")
        if shard == victim and index == "00001":
            os.kill(os.getpid(), signal.SIGKILL)
        begin(call)

    ShardCall.__call__ = noted  # type: ignore[method-assign]


def main(prefix: str, corpus: str, log: str = "", *victims: str) -> int:
    if victims:  # files that each fork would load again
        assert all(each.identity for each in chain(corpus).values())
    for victim in victims:
        child = os.fork()
        if child == 0:
            kill_at(log, victim)
            os._exit(run(prefix, corpus))
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            print(f"{victim}: ended with status {status}, and was to be killed", file=sys.stderr)
            return 3
    if log:
        kill_at(log, "")
    return run(prefix, corpus)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
