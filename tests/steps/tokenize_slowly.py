"""A tokenize step in a process of its own, as slow as its test wants: PREFIX GATES.

Shard n is not tokenized before the file GATES/n is there. One who is killed and started again goes on.
"""

import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.run.driver import Run
from marin_dag.run.live import LineDisplay
from marin_dag.run.local.backend import LocalBackend
from marin_dag.store.prefix import open_store
from runtime.data import tokenizing
from steps.tokenize import TokenizeConfig, tokenize
from steps.train_tokenizer import TrainTokenizerConfig, train_tokenizer
from tests.steps.text_steps import WrittenConfig, written

VOCAB_SIZE = 300
SHARDS = tuple(
    tuple(f"Shard {shard}, document {number}: {shard * 7919 + number * 104729} times. " * 3 for number in range(12))
    for shard in range(5)
)


def tokenize_step() -> Step[Any]:
    """Three blocks of two shards, two and one."""
    documents = written("documents", WrittenConfig(shards=SHARDS))
    tokenizer = train_tokenizer("tokenizer", TrainTokenizerConfig(documents={"test": documents}, vocab_size=VOCAB_SIZE))
    return tokenize(
        "tokenize",
        TokenizeConfig(documents=documents, tokenizer=tokenizer, validation_share=0.1, shards_per_block=2),
    )


def run(prefix: str) -> int:
    display = LineDisplay(Console(stderr=True), Console(stderr=True))
    return Run(Graph([tokenize_step()]).steps, open_store(prefix), LocalBackend(), display, command="").run()


if __name__ == "__main__":
    prefix, gates = sys.argv[1:]
    at_once = tokenizing.tokenize_shard

    def slowly(source: str, path: str, relative_path: str, *rest: Any) -> Any:
        while not (Path(gates) / str(int(relative_path[-5:]))).exists():
            time.sleep(0.02)
        return at_once(source, path, relative_path, *rest)

    tokenizing.tokenize_shard = slowly
    sys.exit(run(prefix))
