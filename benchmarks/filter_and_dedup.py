"""Claim: filter and deduplication take at most half of DataTrove's time, keep the cores busy, and memory does not grow.

The rules are Gopher's quality and repetition rules and FineWeb's three; then exact and MinHash duplicates go (14
bands of 8 over 5-grams of words). The corpora are `wiki_en`, `code_multi` and `code_thealgorithms`, whole. The steps
`filter` and `dedup` run on a pool of processes, and DataTrove's stages on as many, one after the other; both read and
write the same Parquet shards. Filters and deduplication are also timed apart, since the peer's tokenizer takes most
of its time. Both run on one shard too, which gives the cost of further text without the cost of starting.

Ours also runs on a quarter, half and twice the documents; the second half of twice is each text with its lines
reversed. Libraries and the largest shard take most of the memory of the largest process. The bar is therefore on the
slope: bytes that this process takes more for each byte of text more. A program that held the texts would take 1 or
more, and one that held the signatures of all documents 0.3. Equal runs differ by tens of megabytes, which alone is
over the bar below `--every 1`.

A core is busy while one of our processes runs on it. Time in which our processes wait for a core is measured, and
counts for nothing, so this bar holds on a quiet machine only.

Filters spend their time in some forty passes of NumPy over a batch, none of which takes 6 % of it; the language model
takes more than all other rules together. Rules measure the texts that earlier rules left, so dear ones belong last.

The status is 1 where a bar does not hold.

    python benchmarks/filter_and_dedup.py --corpora ../shared/data/corpora

DataTrove comes out of the peers' environment (`make benchmarks`). The last line is JSON.
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import gzip
import itertools
import json
import logging
import multiprocessing
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from benchmarks.verdict import conclude
from marin_dag.graph.context import StepContext
from marin_dag.graph.inputs import Input
from runtime.text.documents import Document, write_documents
from runtime.text.filter_rules import FineWebQuality, GopherQuality, GopherRepetition
from steps.dedup import DedupConfig, dedup
from steps.documents import DocumentsResult
from steps.filter import FilterConfig, filter_documents

ROOT = Path(__file__).resolve().parent.parent
PEER = ROOT / ".venv-peers" / "bin" / "python"
CORPORA = ("wiki_en", "code_multi", "code_thealgorithms")
SHARD_BYTES = 4_000_000
MAX_CHARACTERS = 50_000
RATIO_BAR, RUNNING_BAR = 2.0, 0.9
MEMORY_BAR = 0.25
"""Bytes of memory for each byte of text more: under what the signatures alone would take."""
REPEATS = 3
PARTS = {"quarter": 4, "half": 2, "all": 1, "twice": 1}
KEYS_PER_TASK = 4_096
"""So few that a task of the smallest part is as full as one of the whole; by default a task may hold 16 million."""
# Looser than for prose, so that code is left to deduplicate; DataTrove counts punctuation among the words.
RULES = (GopherQuality(min_stop_words=1, min_alphabetic_words=0.5), GopherRepetition(), FineWebQuality())


@dataclasses.dataclass
class Pool:
    """The part of a StepContext that these steps need, on processes that stay."""

    executor: concurrent.futures.Executor
    name: str
    output_path: str
    seconds_in_line: dict[int, float]
    """Seconds by process."""
    log: logging.Logger = dataclasses.field(default_factory=lambda: logging.getLogger("benchmark"))

    def warn_about_output(self, text: str, **_: Any) -> None:
        self.log.warning("%s: %s", self.name, text)

    def map(self, function: Callable[..., Any], items: Iterable[Any], *, in_flight: int, name: str = "shards") -> list:
        del in_flight  # as many as there are processes
        items = list(items)
        paths = [f"{self.output_path}/{name}/{index:05d}" for index in range(len(items))]
        results = []
        for result, process, seconds in self.executor.map(functools.partial(_timed, function), items, paths):
            results.append(result)
            self.seconds_in_line[process] = max(seconds, self.seconds_in_line.get(process, 0.0))
        return results


def _context(executor: concurrent.futures.Executor, name: str, output: Path, in_line: dict[int, float]) -> StepContext:
    return cast(StepContext, Pool(executor, name, str(output), in_line))


def _timed(function: Callable[..., Any], item: Any, path: str) -> tuple[Any, int, float]:
    """Return the result, the process, and the seconds that it has waited for a core since it started."""
    result = function(item, path)
    threads = Path("/proc/self/task").iterdir()
    return result, os.getpid(), sum(int((thread / "schedstat").read_text().split()[1]) for thread in threads) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, default=ROOT.parent / "shared" / "data" / "corpora")
    parser.add_argument("--every", type=int, default=1, help="take every n-th document; 1 is all")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ours:
        print(json.dumps(_ours(arguments.ours, arguments.workers)))
        return
    if not PEER.exists():
        sys.exit(f"{PEER}: not there; `make benchmarks` makes the peers' environment.")
    if missing := [path for corpus in CORPORA if not (path := _lines_of(arguments.corpora, corpus)).is_file()]:
        sys.exit(f"{missing[0]}: not there; name the folder of the corpora with --corpora.")
    with tempfile.TemporaryDirectory() as folder:
        sizes = {}
        for name, part in PARTS.items():
            every = part * arguments.every
            documents = _documents(arguments.corpora, every)
            if name == "twice":
                documents = itertools.chain(documents, map(_turned_round, _documents(arguments.corpora, every)))
            sizes[name] = _write_shards(Path(folder, name, "input"), documents)
        Path(folder, "shard", "input").mkdir(parents=True)
        shutil.copy(Path(folder, "quarter", "input", "00000.parquet"), Path(folder, "shard", "input"))
        own_command = [sys.executable, __file__, "--workers", str(arguments.workers), "--ours"]
        shard = _run([*own_command, f"{folder}/shard"])
        runs = {name: [_run([*own_command, f"{folder}/{name}"]) for _ in range(REPEATS)] for name in PARTS}
        parts = {name: found[0] for name, found in runs.items()}
        peaks = {name: min(each["peak_in_bytes"] for each in found) for name, found in runs.items()}
        ours = parts["all"]
        peer_command = [str(PEER), str(Path(__file__).with_name("filter_and_dedup_by_datatrove.py"))]
        their_shard = _run([*peer_command, f"{folder}/shard", str(arguments.workers)])
        theirs = _run([*peer_command, f"{folder}/all", str(arguments.workers)])
    for name, found in {"one shard": shard, **parts}.items():
        print(f"ours, {name}: {found}")
    print(f"DataTrove, one shard: {their_shard}\nDataTrove: {theirs}")
    rate, reference = (sizes["all"] / 1e6 / found["seconds"] for found in (ours, theirs))
    without_start = (theirs["seconds"] - their_shard["seconds"]) / (ours["seconds"] - shard["seconds"])
    per_byte = _slope([sizes[name] for name in PARTS], [peaks[name] for name in PARTS])
    holds = {
        "ratio": min(rate / reference, without_start) >= RATIO_BAR,
        "cores_running": ours["running"] > RUNNING_BAR,
        "memory": per_byte <= MEMORY_BAR,
    }
    line = {
        "claim": "filter, exact and near-duplicate removal, MB/s of text against DataTrove's",
        "ours": round(rate, 2),
        "reference": round(reference, 2),
        "ratio": round(rate / reference, 2),
        "bar": RATIO_BAR,
        "ratio_without_start": round(without_start, 2),
        "filter_ratio": round(theirs["filter_seconds"] / ours["filter_seconds"], 2),
        "dedup_ratio": round(theirs["dedup_seconds"] / ours["dedup_seconds"], 2),
        "cores_running": round(ours["running"], 3),
        "cores_running_bar": RUNNING_BAR,
        "cores_stood_in_line_for": round(ours["in_line"], 3),
        "memory_bytes_per_byte_of_text_added": round(per_byte, 3),
        "memory_bar": MEMORY_BAR,
        "peak_memory_of_a_process_mb": {name: round(peak / 1e6) for name, peak in peaks.items()},
        "peak_memory_of_one_shard_mb": round(shard["peak_in_bytes"] / 1e6),
        "holds": all(holds.values()),
        "fails": sorted(name for name, does in holds.items() if not does),
        "text_mb": {name: round(size / 1e6, 1) for name, size in sizes.items()},
        "workers": arguments.workers,
        "device": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    conclude(line)


def _slope(sizes: Sequence[float], peaks: Sequence[float]) -> float:
    """Return the slope of the line of least squares."""
    middle, mean_peak = sum(sizes) / len(sizes), sum(peaks) / len(peaks)
    covariance = sum((size - middle) * (peak - mean_peak) for size, peak in zip(sizes, peaks, strict=True))
    return covariance / sum((size - middle) ** 2 for size in sizes)


def _lines_of(corpora: Path, corpus: str) -> Path:
    return corpora / f"{corpus}.jsonl.gz"


def _documents(corpora: Path, every: int) -> Iterator[Document]:
    for corpus in CORPORA:
        with gzip.open(_lines_of(corpora, corpus), "rt") as lines:
            for number, line in enumerate(itertools.islice(lines, 0, None, every)):
                # Cut, so that the largest document of a part is about as large as that of the whole.
                yield Document(f"{corpus}/{number}", json.loads(line)["text"][:MAX_CHARACTERS], corpus)


def _turned_round(document: Document) -> Document:
    """Return a text of the same lines in reverse."""
    return document._replace(id=f"{document.id}/turned", text="\n".join(document.text.splitlines()[::-1]))


def _write_shards(folder: Path, documents: Iterator[Document]) -> int:
    total = 0
    numbers = itertools.count()
    while shard := list(_taken(documents)):
        total += write_documents(str(folder / f"{next(numbers):05d}.parquet"), shard)[1]
    return total


def _taken(documents: Iterator[Document]) -> Iterator[Document]:
    size = 0
    while size < SHARD_BYTES and (document := next(documents, None)) is not None:
        size += len(document.text.encode())
        yield document


def _ours(folder: Path, workers: int) -> dict[str, float]:
    shards = tuple(sorted(path.name for path in (folder / "input").iterdir()))
    result = DocumentsResult(shards=shards, num_documents=0, num_bytes=0, dropped={})
    given = Input(name="input", digest="0" * 64, path=str(folder / "input"), result=result)
    in_line: dict[int, float] = {}
    ran_before = time.process_time()
    began = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as executor:
        config = FilterConfig(documents=given, rules=RULES)
        filtered = filter_documents.function(config, _context(executor, "filter", folder / "filtered", in_line))
        filtered_at = time.perf_counter()
        kept_by_rules = Input(name="filter", digest="1" * 64, path=str(folder / "filtered"), result=filtered)
        deduplicate = DedupConfig(documents=kept_by_rules, keys_per_task=KEYS_PER_TASK)
        kept = dedup.function(deduplicate, _context(executor, "dedup", folder / "deduplicated", in_line))
    seconds = time.perf_counter() - began
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "seconds": seconds,
        "filter_seconds": filtered_at - began,
        "dedup_seconds": began + seconds - filtered_at,
        "running": (sum(each.ru_utime + each.ru_stime for each in used) - ran_before) / seconds / workers,
        "in_line": sum(in_line.values()) / seconds / workers,
        "peak_in_bytes": max(1024.0 * each.ru_maxrss for each in used),
        "filtered": filtered.num_documents,
        "kept": kept.num_documents,
    }


def _run(command: list[str]) -> dict[str, float]:
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env={**os.environ, **threads}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: status {done.returncode}\n{done.stderr[-4_000:]}")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
