"""Claim: to check every input file against its record takes at most 2 % of the processor time of a step that reads it.

Steps `filter`, `dedup` and `tokenize` run through the engine on one prefix, over made-up prose of `--megabytes`. The
time inside the check is summed up by thread and divided by the processor time of the whole process during the step, so
that other work on the machine does not count. The cheapest filter, one rule on lengths, is measured for the upper end.
What the audit hook costs is printed as well. The last line is JSON.
"""

import argparse
import contextlib
import io
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.verdict import conclude  # noqa: E402
from marin_dag.graph.step import StepContext, step  # noqa: E402
from runtime.text.documents import Document, write_documents  # noqa: E402
from steps.documents import DocumentsResult, ShardSize  # noqa: E402

SHARE_BAR = 0.02
TEXTS_A_SHARD, WORDS_A_TEXT, NUM_WORDS = 2_000, 300, 20_000
NUM_EVENTS = 20_000


def shards(megabytes: int) -> tuple[tuple[str, ...], ...]:
    """Return texts of random words in shards of 2,000."""
    chance = random.Random(0)
    letters = "etaoinshrdlucmfwypvbgk"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(NUM_WORDS)]
    texts, size = [], 0
    while size < megabytes * 1_000_000:
        texts.append(" ".join(chance.choices(words, k=WORDS_A_TEXT)) + ".")
        size += len(texts[-1])
    return tuple(tuple(texts[at : at + TEXTS_A_SHARD]) for at in range(0, len(texts), TEXTS_A_SHARD))


class ProseConfig(BaseModel, frozen=True, extra="forbid"):
    """Amount of prose to write."""

    megabytes: int


@step()
def prose(config: ProseConfig, context: StepContext) -> DocumentsResult:
    """Write made-up documents."""
    written = []
    for index, texts in enumerate(shards(config.megabytes)):
        rows = [Document(f"{index}/{number}", text, "made up") for number, text in enumerate(texts)]
        written.append(write_documents(f"{context.output_path}/{index:05d}.parquet", rows))
    return DocumentsResult(
        shards=tuple(f"{index:05d}.parquet" for index in range(len(written))),
        num_documents=sum(count for count, _ in written),
        num_bytes=sum(size for _, size in written),
        shard_sizes=tuple(ShardSize(num_documents=count, num_bytes=size) for count, size in written),
        dropped={},
    )


@contextlib.contextmanager
def timed_checks() -> Iterator[list[float]]:
    """Yield the processor seconds of each check in the block."""
    from marin_dag.run import input_files

    seconds: list[float] = []
    check = input_files._Watched.check

    def timed(watched: Any, path: str) -> None:
        began = time.thread_time()
        try:
            check(watched, path)
        finally:
            seconds.append(time.thread_time() - began)

    setattr(input_files._Watched, "check", timed)  # noqa: B010 -- mypy refuses the plain assignment
    try:
        yield seconds
    finally:
        setattr(input_files._Watched, "check", check)  # noqa: B010


def run(prefix: str, item: Any) -> None:
    """Run one step whose inputs are there."""
    from rich.console import Console

    from marin_dag.run.driver import Run
    from marin_dag.run.live import LineDisplay
    from marin_dag.run.local.backend import LocalBackend
    from marin_dag.store.prefix import open_store

    shown = io.StringIO()
    display = LineDisplay(Console(file=shown), Console(file=shown))
    assert Run([item], open_store(prefix), LocalBackend(), display, command="").run() == 0, shown.getvalue()


def steps_to_measure(megabytes: int) -> tuple[list[Any], list[Any]]:
    """Return the steps that make the inputs, and the steps to measure."""
    from runtime.text.filter_rules import GopherQuality, GopherRepetition, Length
    from steps.dedup import DedupConfig, dedup
    from steps.filter import FilterConfig, filter_documents
    from steps.tokenize import TokenizeConfig, tokenize
    from steps.train_tokenizer import TrainTokenizerConfig, train_tokenizer

    documents = prose("documents", ProseConfig(megabytes=megabytes))
    few = prose("few", ProseConfig(megabytes=1))
    tokenizer = train_tokenizer("tokenizer", TrainTokenizerConfig(documents={"few": few}, vocab_size=1_000))
    rules = (GopherQuality(min_stop_words=0), GopherRepetition())
    measured = [
        filter_documents("filter-by-length", FilterConfig(documents=documents, rules=(Length(min_words=5),))),
        filter_documents("filter", FilterConfig(documents=documents, rules=rules)),
        dedup("dedup", DedupConfig(documents=documents)),
        tokenize("tokenize", TokenizeConfig(documents=documents, tokenizer=tokenizer, validation_share=0.01)),
    ]
    return [documents, few, tokenizer], measured


def print_costs_of_the_hook() -> None:
    """Print the added cost of an opening, of any other audit event, and of a whole step."""
    from marin_dag.run.usage import Usage

    usage = Usage((), "/nowhere", time.time())
    file = Path(__file__)

    def microseconds(action: Callable[[], object]) -> float:
        began = time.thread_time()
        for _ in range(NUM_EVENTS):
            action()
        return (time.thread_time() - began) / NUM_EVENTS * 1e6

    def open_it() -> None:
        with file.open("rb"):
            pass

    before = microseconds(open_it)
    with usage.recording():
        during = microseconds(open_it)
    print(f"an opening: {before:.2f} us, {during:.2f} us while a step is recorded")
    print(f"another audit event: {microseconds(lambda: sys.audit('nothing')):.2f} us with the hook")
    print(f"a step that reads nothing outside: {microseconds(lambda: Usage((), '/nowhere', 0.0).used()):.2f} us")


def main() -> None:
    """Print the share of each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    megabytes = parser.parse_args().megabytes
    inputs, measured = steps_to_measure(megabytes)
    shares = {}
    with tempfile.TemporaryDirectory() as prefix:
        for item in inputs:
            run(prefix, item)
        for item in measured:
            from marin_dag.run import input_files

            input_files._checked.clear()  # as in a worker that has read none of the files
            with timed_checks() as seconds:
                began = time.process_time()
                run(prefix, item)
                whole = time.process_time() - began
            shares[item.name] = sum(seconds) / whole
            print(f"{item.name}: {sum(seconds):.3f} s of {whole:.1f} s in {len(seconds)} openings of inputs")
    print_costs_of_the_hook()
    worst = max(shares.values())
    claim = f"checks of inputs over {megabytes} MB: largest share of a step's processor time"
    conclude({"claim": claim, "ours": round(worst, 4), "bar": SHARE_BAR, "holds": worst <= SHARE_BAR, "shares": shares})


if __name__ == "__main__":
    main()
