"""Claim: a tokenize step, from Parquet to a committed cache, costs little more than its encoder alone.

The bare encoder is tiktoken's `encode_ordinary_batch` on all cores, over the same texts in memory, its ids thrown away.
What "auto" gains by taking it is measured beside it: over a part of the texts, by turns, against `encode_batch_fast` of
tokenizers on the same cores, which the step would take else (`encoders` of the last line).
Ours reads the documents, encodes, compares with tokenizers on a part, counts for the gates, splits, writes both caches,
reads back what it wrote, and commits with checksums, in this process. The peer is datatrove's DocumentTokenizer on the
same Parquet files and the same tokenizer.json, one worker a core (`.venv-peers`, see peers.txt); its import is not
counted. The texts are the documents of DIR/*.jsonl.gz, and behind them, up to `--megabytes`, the Python sources of this
environment: a step takes most of a second before it encodes, whatever it is given.

    python benchmarks/tokenize_at_the_encoders_limit.py [DIR] [--megabytes 400]
        [--tokenizer tokenizer.json --eos TOKEN --bos TOKEN]
"""

import argparse
import gzip
import hashlib
import io
import itertools
import json
import os
import platform
import subprocess
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import tiktoken
import tokenizers
from pydantic import BaseModel
from rich.console import Console

from benchmarks.verdict import conclude
from marin_dag.graph.step import Runtime, Step, StepContext, step
from marin_dag.run.driver import Run
from marin_dag.run.live import LineDisplay
from marin_dag.run.local.backend import LocalBackend
from marin_dag.store.prefix import open_store
from runtime.data.plain_tokenizer import plain_document
from runtime.data.ranks import ranks_of
from runtime.text.documents import Document, write_documents
from runtime.text.tokenizer_training import BEGIN_OF_TEXT, END_OF_TEXT, train
from steps.documents import DocumentsResult, ShardSize
from steps.tokenize import TokenizeConfig, tokenize
from steps.tokenizer import TokenizerResult
from steps.train_tokenizer import write_tokenizer

PEERS = Path(__file__).parent.parent / ".venv-peers" / "bin" / "python"
BAR, BAR_TO_DATATROVE = 0.9, 3.0
NUM_SHARDS = 4
VOCAB_SIZE = 32_000
TRAINING_BYTES = 8 << 20
REPEATS = 3
COMPARED_BYTES = 32 << 20
"""Texts for the comparison of tokenizers and tiktoken: the slower one would take minutes for them all."""
AT_ONCE_BYTES = 4 << 20
"""Texts that the step encodes at once; tokenizers keeps a hundred bytes for each token of a call."""

DATATROVE = """
import importlib.metadata, json, sys, time
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.tokens import DocumentTokenizer
if __name__ == "__main__":
    source, tokenizer, folder, cores, eos = sys.argv[1:]
    steps = [
        ParquetReader(source, glob_pattern="*.parquet"),
        DocumentTokenizer(folder + "/out", tokenizer, eos_token=eos, shuffle_documents=False),
    ]
    began = time.perf_counter()
    LocalPipelineExecutor(steps, tasks=int(cores), workers=int(cores), logging_dir=folder + "/logs").run()
    print(json.dumps({"seconds": time.perf_counter() - began, "datatrove": importlib.metadata.version("datatrove")}))
"""


class FolderConfig(BaseModel, frozen=True, extra="forbid"):
    folder: Runtime[str]
    number: int
    eos: str = END_OF_TEXT
    bos: str | None = BEGIN_OF_TEXT


@step()
def documents_in(config: FolderConfig, context: StepContext) -> DocumentsResult:
    names = sorted(path.name for path in Path(config.folder).glob("*.parquet"))
    sizes = tuple(ShardSize(**size) for size in json.loads(Path(config.folder, "counts.json").read_text()))
    for name in names:
        os.link(f"{config.folder}/{name}", f"{context.output_path}/{name}")
    return DocumentsResult(
        shards=tuple(names),
        num_documents=sum(size.num_documents for size in sizes),
        num_bytes=sum(size.num_bytes for size in sizes),
        shard_sizes=sizes,
        dropped={},
    )


@step()
def tokenizer_in(config: FolderConfig, context: StepContext) -> TokenizerResult:
    document = Path(config.folder, "tokenizer.json").read_text()
    return write_tokenizer(document, context, eos_token=config.eos, bos_token=config.bos)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", nargs="?", type=Path)
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--eos", default=END_OF_TEXT)
    parser.add_argument("--bos", default=BEGIN_OF_TEXT, help="'' if its documents open with nothing")
    parsed = parser.parse_args()
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = texts_of(parsed.directory, parsed.megabytes * 1_000_000)
        num_bytes = write_all(folder, texts, parsed.tokenizer)
        ranks = ranks_of(plain_document((folder / "tokenizer.json").read_text()))
        encoding = tiktoken.Encoding(
            "bare", pat_str=ranks.pattern, mergeable_ranks=ranks.mergeable_ranks, special_tokens={}
        )
        bare_seconds, our_seconds = [], []
        for number in range(REPEATS):  # by turns: whatever else the machine does falls on both
            began = time.perf_counter()
            num_tokens = sum(map(len, encoding.encode_ordinary_batch(texts, num_threads=cores)))
            bare_seconds.append(time.perf_counter() - began)
            our_seconds.append(seconds_of_the_step(folder, number, parsed.eos, parsed.bos or None))
        encoders = rates_of_encoders(encoding, folder / "tokenizer.json", first_of(texts, COMPARED_BYTES), cores)
        peer = datatrove(folder, cores, parsed.eos)
    rates = {
        "bare": num_tokens / min(bare_seconds),
        "ours": num_tokens / min(our_seconds),
        "datatrove": num_tokens / peer["seconds"],
    }
    for label, rate in rates.items():
        print(f"{label}: {rate / 1e6:.2f} million tokens/s of {num_bytes / 1e6:.0f} MB")
    for label, rate in encoders.items():
        print(f"{label} alone: {rate / 1e6:.2f} million tokens/s of a part")
    ratio, to_datatrove = rates["ours"] / rates["bare"], rates["ours"] / rates["datatrove"]
    line = {
        "claim": "tokens/s of a tokenize step, cache committed, against its bare encoder and against datatrove",
        "ours": round(rates["ours"]),
        "reference": round(rates["bare"]),
        "ratio": round(ratio, 3),
        "bar": BAR,
        "datatrove": round(rates["datatrove"]),
        "ratio_to_datatrove": round(to_datatrove, 2),
        "bar_to_datatrove": BAR_TO_DATATROVE,
        "encoders": {label: round(rate) for label, rate in encoders.items()},
        "tiktoken_to_tokenizers": round(encoders["tiktoken"] / encoders["tokenizers"], 2),
        "holds": ratio >= BAR and to_datatrove >= BAR_TO_DATATROVE,
        "tokens": num_tokens,
        "vocab_size": max(ranks.mergeable_ranks.values()) + 1,
        "tiktoken": tiktoken.__version__,
        "tokenizers": tokenizers.__version__,
        "datatrove_version": peer["datatrove"],
        "device": f"{platform.machine()}, {cores} cores",
    }
    conclude(line)


def rates_of_encoders(encoding: tiktoken.Encoding, path: Path, texts: list[str], cores: int) -> dict[str, float]:
    """Return tokens a second of each library on all cores, over the same texts in equal portions, by turns."""
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    portions = portions_of(texts)
    seconds: dict[str, list[float]] = {"tiktoken": [], "tokenizers": []}
    num_tokens = {}
    for _ in range(REPEATS):
        began = time.perf_counter()
        num_tokens["tiktoken"] = sum(
            len(ids) for part in portions for ids in encoding.encode_ordinary_batch(part, num_threads=cores)
        )
        seconds["tiktoken"].append(time.perf_counter() - began)
        began = time.perf_counter()
        num_tokens["tokenizers"] = sum(
            len(ids) for part in portions for ids in tokenizer.encode_batch_fast(part, add_special_tokens=False)
        )
        seconds["tokenizers"].append(time.perf_counter() - began)
    if len(set(num_tokens.values())) > 1:
        raise SystemExit(f"the two libraries make different ids: {num_tokens} tokens")
    return {label: num_tokens[label] / min(found) for label, found in seconds.items()}


def first_of(texts: list[str], num_bytes: int) -> list[str]:
    """Return the first texts up to a number of bytes; of texts ordered by their hashes this is a sample."""
    sizes = itertools.accumulate(len(text.encode()) for text in texts)
    return [text for text, size in zip(texts, sizes, strict=True) if size <= num_bytes] or texts[:1]


def portions_of(texts: list[str]) -> list[list[str]]:
    portions: list[list[str]] = [[]]
    size = 0
    for text in texts:
        if size >= AT_ONCE_BYTES:
            portions.append([])
            size = 0
        portions[-1].append(text)
        size += len(text.encode())
    return portions


def texts_of(directory: Path | None, num_bytes: int) -> list[str]:
    """Return texts of a number of bytes: an equal part of each file of a folder, then installed Python sources."""
    texts: list[str] = []
    files = [] if directory is None else sorted(directory.glob("*.jsonl.gz"))
    for path in files:
        size = 0
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                text = json.loads(line)["text"]
                if text and "\ufffd" not in text:
                    texts.append(text)
                    size += len(text.encode())
                if size >= num_bytes // len(files):
                    break
    size = sum(len(text.encode()) for text in texts)
    folders = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")]  # one may lie within the other
    for path in sorted({path.resolve() for folder in folders for path in folder.rglob("*.py")}):
        text = path.read_bytes().decode(errors="replace").replace("\ufffd", "?")
        if text and size < num_bytes:
            texts.append(text)
            size += len(text.encode())
    return sorted(texts, key=lambda text: hashlib.sha256(text.encode()).digest())


def write_all(folder: Path, texts: list[str], tokenizer: Path | None) -> int:
    """Write documents as Parquet, and the tokenizer; return the bytes of text."""
    sizes = []
    for shard in range(NUM_SHARDS):
        rows = [Document(f"{shard}/{place}", text, "bench") for place, text in enumerate(texts[shard::NUM_SHARDS])]
        num_documents, num_bytes = write_documents(f"{folder}/{shard:05d}.parquet", rows)
        sizes.append({"num_documents": num_documents, "num_bytes": num_bytes})
    (folder / "counts.json").write_text(json.dumps(sizes))
    if tokenizer is not None:
        document = tokenizer.read_text()
    else:
        sample, size = [], 0
        for text in texts:
            if size < TRAINING_BYTES:
                sample.append(text)
                size += len(text.encode())
        document = train(sample, vocab_size=VOCAB_SIZE).to_str()
    (folder / "tokenizer.json").write_text(document)
    return sum(size["num_bytes"] for size in sizes)


def seconds_of_the_step(folder: Path, number: int, eos: str, bos: str | None) -> float:
    """Return the seconds of a run of the step alone: from the plan in hand to the record."""
    config = FolderConfig(folder=str(folder), number=number, eos=eos, bos=bos)
    documents, tokenizer = documents_in("documents", config), tokenizer_in("tokenizer", config)
    cache = tokenize("tokenize", TokenizeConfig(documents=documents, tokenizer=tokenizer, validation_share=0.01))
    shown = io.StringIO()
    groups: tuple[list[Step[Any]], ...] = ([documents, tokenizer], [cache])
    for steps in groups:
        display = LineDisplay(Console(file=shown), Console(file=shown))
        run = Run(steps, open_store(f"{folder}/runs"), LocalBackend(), display, command="")
        began = time.perf_counter()
        if run.run() != 0:
            raise SystemExit(shown.getvalue())
        seconds = time.perf_counter() - began
    return seconds


def datatrove(folder: Path, cores: int, eos: str) -> dict:
    if not PEERS.exists():
        raise SystemExit(f"{PEERS} is missing; make it with `uv venv .venv-peers` and install benchmarks/peers.txt.")
    (folder / "datatrove").mkdir()
    (folder / "peer.py").write_text(DATATROVE)
    command = [str(PEERS), f"{folder}/peer.py", str(folder), f"{folder}/tokenizer.json", f"{folder}/datatrove"]
    done = subprocess.run([*command, str(cores), eos], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"datatrove failed:\n{done.stderr[-4_000:]}")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
