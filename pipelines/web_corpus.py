"""Web corpus: pages of a crawl become clean documents, a token cache, and the first steps of a model that reads it.

    python pipelines/web_corpus.py --dry-run
    python pipelines/web_corpus.py --backend local              a small built-in crawl, without a download
    python pipelines/web_corpus.py --warc DIR --evals DIR       your WARC files and your evaluation sets

Each of these is a step: the rules of language, Gopher, C4 and FineWeb, a trained classifier, exact and near duplicates,
evaluation sets. The report shows what each step dropped and why.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence

from marin_dag.cli.session import Finished
from marin_dag.graph.resources import Cpu
from marin_dag.graph.step import Step
from pipelines import recipe
from pipelines.reporting import report_on
from pipelines.source import DEGENERATE
from pipelines.sources import check_all_are_read, evaluation_items_step
from runtime.model.config import LLAMA2_ROPE
from runtime.model.llama.config import LlamaConfig
from runtime.optim.schedule import Constant
from runtime.text.extraction.formats import PythonDocstrings, WebArchive
from runtime.text.filter_rules import (
    C4Document,
    C4Lines,
    FineWebQuality,
    GopherQuality,
    GopherRepetition,
    Language,
    QualityScore,
    Rule,
)
from runtime.text.minhash import MinHash
from steps.decontaminate import DecontaminateConfig, decontaminate
from steps.dedup import DedupConfig, dedup
from steps.download import DownloadConfig, download
from steps.evaluation_items import OwnItemsConfig, own_evaluation_items
from steps.example_crawl import ExampleCrawlConfig, example_crawl
from steps.extract import ExtractConfig, extract
from steps.fetch import files_in, installed_python
from steps.filter import FilterConfig, filter_documents
from steps.tokenize import TokenizeConfig, tokenize
from steps.train_quality_classifier import TrainQualityClassifierConfig, train_quality_classifier

# FineWeb's filters in its order (arXiv:2406.17557, section 3), without C4's rule that a line must end in a terminal
# mark, which alone drops 30 % of the tokens.
RULES: tuple[Rule, ...] = (
    Language(("en",), min_probability=0.65),
    *DEGENERATE,
    GopherRepetition(),
    GopherQuality(),
    C4Lines(terminal_punctuation=()),
    C4Document(),
    FineWebQuality(),
)
# DCLM keeps a tenth, too few of some hundred pages.
QUALITY = QualityScore(keep_fraction=0.9)
# Large enough for some of a few dozen documents.
VALIDATION_SHARE = 0.2
# Packages of the interpreter's library of which the example crawl has no pages.
WANTED = ("asyncio/*", "concurrent/*", "email/*", "http/*", "importlib/*", "json/*", "xml/*")
EVALUATION_SET = "*.jsonl"
STEPS = 20
SEQUENCE_LENGTH = 64
MODEL = LlamaConfig(
    vocab_size=512,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    max_position_embeddings=SEQUENCE_LENGTH,
)
RESULTS = {"train": ""}


def build(arguments: argparse.Namespace) -> Sequence[Step]:
    """Build a model that begins to read before all text is tokenized, and the report on it and its text."""
    crawl, items = _crawl_and_items(arguments)
    pages = extract("extract", ExtractConfig(download=crawl, formats=(WebArchive(),)))
    ruled = filter_documents("filter/rules", FilterConfig(documents=pages, rules=RULES))
    classifier = train_quality_classifier(
        "classifier", TrainQualityClassifierConfig(positives=(_wanted(arguments),), negatives=(ruled,), table_bits=16)
    )
    good = filter_documents(
        "filter/quality", FilterConfig(documents=ruled, rules=(QUALITY,), quality_classifier=classifier)
    )
    single = dedup("dedup", DedupConfig(documents=good, minhash=MinHash()))
    clean = decontaminate("decontaminate", DecontaminateConfig(documents=single, evaluation_items=items))
    tokenizer = recipe.tokenizer({"web": clean}, vocab_size=MODEL.vocab_size)
    cache = tokenize(
        "tokenize",
        TokenizeConfig(documents=clean, tokenizer=tokenizer, validation_share=VALIDATION_SHARE, shards_per_block=1),
    )
    page = report_on(
        (),
        title="A corpus from a crawl",
        introduction="What became of the pages of a crawl, and the first steps of a model on the text that is left.",
        further_phases=(_first_steps(cache),),
    )
    return [page]


def _crawl_and_items(arguments: argparse.Namespace) -> tuple[Step, Step]:
    """Return the WARC files, and the items that the corpus must not hold."""
    if arguments.warc is None:
        crawl: Step = example_crawl("crawl", ExampleCrawlConfig(python=installed_python()))
    else:
        crawl = download("crawl", DownloadConfig(fetch=files_in(arguments.warc, "*.warc.gz", "*.warc")))
    if arguments.evals is not None:
        reads = "an evaluation set is a file of JSON lines"
        check_all_are_read(arguments.evals, (EVALUATION_SET,), reads, "search the corpus for", nested=True)
        files = files_in(arguments.evals, f"**/{EVALUATION_SET}")
        evals = download("download/evals", DownloadConfig(fetch=files))
        return crawl, own_evaluation_items("evaluation_items", OwnItemsConfig(download=evals))
    if arguments.warc is None:
        return crawl, own_evaluation_items("evaluation_items", OwnItemsConfig(download=crawl))
    return crawl, evaluation_items_step()


def _wanted(arguments: argparse.Namespace) -> Step:
    """Return the documents that the classifier learns to prefer."""
    if arguments.wanted is None:
        return recipe.documents("wanted", installed_python(), PythonDocstrings(members=WANTED))
    return recipe.documents("wanted", files_in(arguments.wanted, "*.jsonl.gz", "*.jsonl"))


def _first_steps(cache: Step) -> Step:
    return recipe.phase(
        "train",
        mixture={"web": 1.0},
        caches={"web": cache.growing()},
        until_step=STEPS,
        model=MODEL,
        rope=LLAMA2_ROPE,
        sequence_length=SEQUENCE_LENGTH,
        global_batch_size=4,
        learning_rate=Constant(3e-3),
        weight_decay=0.05,
        z_loss=1e-4,
        compute_dtype="float32",
        checkpoint_every_steps=STEPS,
        resources=Cpu(1),
    )


def summary(run: Finished) -> Iterator[str]:
    """Print how much of the crawl is left."""
    pages, clean = run.result("extract"), run.result("decontaminate")
    if pages is not None and clean is not None:
        num_records = pages.num_documents + sum(pages.dropped.values())
        yield (
            f"{clean.num_documents:,} of {num_records:,} records became clean documents "
            f"({clean.num_bytes / 1e6:.2f} MB of text)"
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folders of pages, evaluation sets and preferred documents."""
    parser.add_argument("--warc", metavar="DIR", help="folder of *.warc.gz (default: a small built-in crawl)")
    parser.add_argument(
        "--evals", metavar="DIR", help="folder of evaluation sets, *.jsonl (default: the pinned package)"
    )
    parser.add_argument("--wanted", metavar="DIR", help="folder of *.jsonl.gz for the classifier to prefer (default: "
                        "docstrings of Python's library)")  # fmt: skip


if __name__ == "__main__":
    sys.exit(recipe.main(build, name="web_corpus", add_arguments=add_arguments, results=RESULTS, summary=summary))
