"""Claim: filter and deduplication take at most half of DataTrove's time, keep the cores busy, and memory does not grow.

Gopher's quality and repetition rules and FineWeb's three, then exact and MinHash duplicates (14 bands of 8 over 5-grams
of words), over encyclopedia and code: the steps `filter` and `dedup` on a pool of processes against DataTrove's stages
on as many, both from the same Parquet shards to Parquet shards, one after the other. Filters and deduplication are
timed apart as well: the peer's words come from a tokenizer, which takes most of its time. Both run on one shard too:
what each text more costs is compared without what starting costs, which for the peer's eight stages is half a minute.
The corpora are `wiki_en`, `code_multi` and `code_thealgorithms`.

Ours runs on half of the documents too. Of the memory of its largest process most is libraries and one shard, which
hides growth: so the line says as well how many bytes it takes more for each byte of text more (whoever held the texts
would take 1 or more; allocators alone move it by megabytes, so it says little below `--every 1`).
A core is busy while one of our processes runs on it or stands in line for it; how much of that it ran is told too.

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
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.verdict import conclude
from marin_dag.inputs import Input
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
RATIO_BAR, BUSY_BAR, GROWTH_BAR = 2.0, 0.9, 1.1
# Looser than for prose, so that code is left to deduplicate; DataTrove counts punctuation among the words.
RULES = (GopherQuality(min_stop_words=1, min_alphabetic_words=0.5), GopherRepetition(), FineWebQuality())


@dataclasses.dataclass
class Pool:
    """The part of a StepContext that these steps need, on processes that stay."""

    executor: concurrent.futures.Executor
    name: str
    output_path: str
    cpu_seconds: dict[int, tuple[float, float]]
    """Of each process: ran, and stood in line."""
    log: logging.Logger = dataclasses.field(default_factory=lambda: logging.getLogger("benchmark"))

    def map(self, function: Callable[..., Any], items: Iterable[Any], *, in_flight: int, name: str = "shards") -> list:
        del in_flight  # as many as there are processes
        items = list(items)
        paths = [f"{self.output_path}/{name}/{index:05d}" for index in range(len(items))]
        results = []
        for result, process, seconds in self.executor.map(functools.partial(_timed, function), items, paths):
            results.append(result)
            self.cpu_seconds[process] = max(seconds, self.cpu_seconds.get(process, (0.0, 0.0)))
        return results


def _timed(function: Callable[..., Any], item: Any, path: str) -> tuple[Any, int, tuple[float, float]]:
    """The result, and for how long this process has run and stood in line for a core since it began.

    Time in line counts: on a machine that others use too it is theirs and no idleness of ours.
    """
    result = function(item, path)
    ran = waited = 0
    for thread in Path("/proc/self/task").iterdir():
        of_thread = (thread / "schedstat").read_text().split()
        ran, waited = ran + int(of_thread[0]), waited + int(of_thread[1])
    return result, os.getpid(), (ran / 1e9, waited / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, default=ROOT.parent / "shared" / "data" / "corpora")
    parser.add_argument("--every", type=int, default=3, help="take every n-th document; 1 is all")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--ours", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ours:
        print(json.dumps(_ours(arguments.ours, arguments.workers)))
        return
    if not PEER.exists():
        sys.exit(f"{PEER}: not there; `make benchmarks` makes the peers' environment.")
    with tempfile.TemporaryDirectory() as folder:
        sizes = {}
        for name, every in (("all", arguments.every), ("half", 2 * arguments.every)):
            documents = (Document(row["id"], row["text"], row["corpus"]) for row in _rows(arguments.corpora, every))
            sizes[name] = _write_shards(Path(folder, name, "input"), documents)
        Path(folder, "shard", "input").mkdir(parents=True)
        shutil.copy(Path(folder, "half", "input", "00000.parquet"), Path(folder, "shard", "input"))
        own_command = [sys.executable, __file__, "--workers", str(arguments.workers), "--ours"]
        shard = _run([*own_command, f"{folder}/shard"])
        half = _run([*own_command, f"{folder}/half"])
        ours = _run([*own_command, f"{folder}/all"])
        peer_command = [str(PEER), str(Path(__file__).with_name("filter_and_dedup_by_datatrove.py"))]
        their_shard = _run([*peer_command, f"{folder}/shard", str(arguments.workers)])
        theirs = _run([*peer_command, f"{folder}/all", str(arguments.workers)])
    print(f"ours, one shard: {shard}\nours, half the documents: {half}\nours: {ours}")
    print(f"DataTrove, one shard: {their_shard}\nDataTrove: {theirs}")
    rate, reference = (sizes["all"] / 1e6 / found["seconds"] for found in (ours, theirs))
    without_start = (theirs["seconds"] - their_shard["seconds"]) / (ours["seconds"] - shard["seconds"])
    growth = ours["peak_in_bytes"] / half["peak_in_bytes"]
    per_byte = (ours["peak_in_bytes"] - half["peak_in_bytes"]) / (sizes["all"] - sizes["half"])
    line = {
        "claim": "filter, exact and near-duplicate removal, MB/s of text against DataTrove's",
        "ours": round(rate, 2),
        "reference": round(reference, 2),
        "ratio": round(rate / reference, 2),
        "bar": RATIO_BAR,
        "ratio_without_start": round(without_start, 2),
        "filter_ratio": round(theirs["filter_seconds"] / ours["filter_seconds"], 2),
        "dedup_ratio": round(theirs["dedup_seconds"] / ours["dedup_seconds"], 2),
        "cores_busy": round(ours["busy"], 3),
        "cores_running": round(ours["running"], 3),
        "cores_busy_bar": BUSY_BAR,
        "peak_memory_of_a_process_mb": round(ours["peak_in_bytes"] / 1e6),
        "peak_memory_growth_as_input_doubles": round(growth, 3),
        "growth_bar": GROWTH_BAR,
        "peak_memory_of_one_shard_mb": round(shard["peak_in_bytes"] / 1e6),
        "memory_bytes_per_byte_of_text_added": round(per_byte, 3),
        "holds": min(rate / reference, without_start) >= RATIO_BAR and ours["busy"] > BUSY_BAR and growth <= GROWTH_BAR,
        "text_mb": round(sizes["all"] / 1e6, 1),
        "workers": arguments.workers,
        "device": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    conclude(line)


def _rows(corpora: Path, every: int) -> Iterator[dict[str, str]]:
    for corpus in CORPORA:
        with gzip.open(corpora / f"{corpus}.jsonl.gz", "rt") as lines:
            for number, line in enumerate(itertools.islice(lines, 0, None, every)):
                # Cut, so that the largest document of the half is as large as that of the whole.
                text = json.loads(line)["text"][:MAX_CHARACTERS]
                yield {"id": f"{corpus}/{number}", "text": text, "corpus": corpus}


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
    given = Input(None, name="input", digest="0" * 64, path=str(folder / "input"), result=result)
    began, cpu = time.perf_counter(), {}
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as executor:
        config = FilterConfig(documents=given, rules=RULES)
        filtered = filter_documents.function(config, Pool(executor, "filter", str(folder / "filtered"), cpu))
        filtered_at = time.perf_counter()
        kept_by_rules = Input(None, name="filter", digest="1" * 64, path=str(folder / "filtered"), result=filtered)
        kept = dedup.function(
            DedupConfig(documents=kept_by_rules), Pool(executor, "dedup", str(folder / "deduplicated"), cpu)
        )
    seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "filter_seconds": filtered_at - began,
        "dedup_seconds": began + seconds - filtered_at,
        "busy": sum(ran + waited for ran, waited in cpu.values()) / seconds / workers,
        "running": sum(ran for ran, _ in cpu.values()) / seconds / workers,
        "peak_in_bytes": max(
            1024.0 * resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ),
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
