"""Claim: random windows of a cache of a billion tokens are read as fast as Megatron maps them, with their checksums.

Ours reads windows of 4,096 tokens through TokenCache, and checks each chunk of 16,384 before it gives out the first of
it. The first reference is Megatron's layout, a `.bin` of bare ids under `numpy.memmap`, a slice copied for each window;
its own reader needs torch, so that this is a plain reader of the documented layout, with nothing else to do. The second
is Grain over ArrayRecord, a record a window (`.venv-peers`, see peers.txt). All read the same places of the same ids,
by turns, into new arrays, with the files in the page cache; the best pass of each counts, and the figure of our first
pass, which checks every chunk that it touches, stands beside it. The first batch is timed before all that, in a process
that has opened no cache yet and with the files of ours dropped from the page cache, so that the disk is in it.

    python benchmarks/random_windows.py [--tokens 1000000000]
"""

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.verdict import conclude
from runtime.data.cache import TokenCache, TokenFormat
from runtime.data.cache_writer import ShardWriter, finish_cache
from runtime.data.loader import Loader
from runtime.data.mixture import MixtureSchedule
from runtime.data.sampler import DataPosition

ROOT = Path(__file__).parent.parent
PEERS = ROOT / ".venv-peers" / "bin" / "python"
LENGTH = 4_096
WINDOWS = 8_192
A_BATCH = 256
PASSES = 5
VOCAB_SIZE = 65_536
SHARD_TOKENS = 1 << 27
LOG_OF_DOCUMENT_TOKENS = 5.9, 1.0
"""Mean and spread of the logarithm of a document's tokens: about 600 in the mean, as of web pages."""
BARS = {"megatron": 1.0, "grain": 5.0, "first_batch_seconds": 1.0}

GRAIN = """
import json, sys, time
import numpy as np
import grain
from array_record.python import array_record_module
folder, length, source = sys.argv[1], int(sys.argv[2]), np.memmap(sys.argv[3], np.uint16, "r")
places = np.load(sys.argv[4])
rows = len(source) // length
path = folder + "/ids.array_record"
writer = array_record_module.ArrayRecordWriter(path, "group_size:1")
for row in range(rows):
    writer.write(source[row * length : (row + 1) * length].tobytes())
writer.close()
def read():
    data = grain.sources.ArrayRecordDataSource(path)
    began = time.perf_counter()
    total = 0
    dataset = grain.MapDataset.source(data).map(lambda record: np.frombuffer(record, np.uint16))
    for place in places:
        total += int(dataset[int(place) % rows][0])
    return time.perf_counter() - began
print(json.dumps({"seconds": min(read(), read(), read()), "grain": grain.__version__}))
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=1_000_000_000)
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, parsed.tokens)
        starts = np.random.default_rng(1).integers(0, parsed.tokens - LENGTH, WINDOWS)
        cold = first_batch_of(folder)
        cache = TokenCache.open(str(folder / "cache"))
        passes, mapped_passes = [], []
        for _ in range(PASSES):  # by turns: whatever else the machine does falls on both
            mapped_passes.append(read_mapped(folder, starts))
            passes.append(read_ours(cache, starts))
        mapped = min(mapped_passes)
        same = np.memmap(folder / "ids.bin", np.uint16, "r")
        assert np.array_equal(cache.read(int(starts[0]), LENGTH), same[starts[0] : starts[0] + LENGTH])
        peer = read_by_grain(folder, starts)
    ours, rate = WINDOWS / min(passes), WINDOWS / mapped
    grain_rate = WINDOWS / peer["seconds"]
    print(f"ours: {WINDOWS / passes[0]:.0f} windows/s with every chunk checked, {ours:.0f} checked before")
    print(f"memory-mapped .bin: {rate:.0f} windows/s; Grain over ArrayRecord: {grain_rate:.0f} windows/s")
    print(f"first batch: {cold.seconds:.3f} s, of which {cold.to_open_seconds:.3f} to open the cache")
    line = {
        "claim": "random windows of 4,096 tokens a second, against Megatron's memory-mapped layout and Grain",
        "ours": round(ours),
        "reference": round(rate),
        "ratio": round(ours / rate, 2),
        "bar": BARS["megatron"],
        "ours_while_checking": round(WINDOWS / passes[0]),
        "grain": round(grain_rate),
        "ratio_to_grain": round(ours / grain_rate, 1),
        "bar_to_grain": BARS["grain"],
        "first_batch_seconds": round(cold.seconds, 3),
        "bar_of_first_batch": BARS["first_batch_seconds"],
        "holds": ours >= rate * BARS["megatron"]
        and ours >= grain_rate * BARS["grain"]
        and cold.seconds <= BARS["first_batch_seconds"],
        "tokens": parsed.tokens,
        "documents": cache.num_documents,
        "numpy": np.__version__,
        "grain_version": peer["grain"],
        "device": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    conclude(line)


def write(folder: Path, num_tokens: int) -> None:
    """Write the same ids as a cache and as Megatron's `.bin`; ids start at 1, so documents end only at EOS."""
    token_format = TokenFormat(vocab_size=VOCAB_SIZE, eos_token_id=0, bos_token_id=None, tokenizer_digest="0" * 64)
    rng = np.random.default_rng(0)
    records = []
    with (folder / "ids.bin").open("wb") as file:
        for index, start in enumerate(range(0, num_tokens, SHARD_TOKENS)):
            writer = ShardWriter(f"{folder}/cache/shards/{index}", token_format)
            for begin in range(start, min(start + SHARD_TOKENS, num_tokens), 1 << 22):
                size = min(1 << 22, num_tokens - begin)
                ids = rng.integers(1, VOCAB_SIZE, size, dtype=np.uint16)
                ends = np.cumsum(rng.lognormal(*LOG_OF_DOCUMENT_TOKENS, size // 100).astype(np.int64) + 2)
                ends = np.append(ends[ends < size], size)
                ids[ends - 1] = 0
                documents = np.split(ids, ends[:-1])
                writer.add([document[:-1] for document in documents], num_bytes=size)
                file.write(ids.tobytes())
            records.append(writer.close(f"shards/{index}"))
    finish_cache(f"{folder}/cache", token_format, [records], np.ones(VOCAB_SIZE, np.int32))


def read_mapped(folder: Path, starts: np.ndarray) -> float:
    ids = np.memmap(folder / "ids.bin", np.uint16, "r")
    began = time.perf_counter()
    for first in range(0, WINDOWS, A_BATCH):
        batch = np.empty((A_BATCH, LENGTH), np.uint16)
        for row, start in enumerate(starts[first : first + A_BATCH].tolist()):
            batch[row] = ids[start : start + LENGTH]
    return time.perf_counter() - began


def read_ours(cache: TokenCache, starts: np.ndarray) -> float:
    began = time.perf_counter()
    for first in range(0, WINDOWS, A_BATCH):
        cache.read_windows(starts[first : first + A_BATCH], LENGTH)
    return time.perf_counter() - began


class FirstBatch(NamedTuple):
    """The first batch of a loader that opens its cache, with the files on the disk."""

    to_open_seconds: float
    seconds: float


def first_batch_of(folder: Path) -> FirstBatch:
    drop_from_page_cache(folder / "cache")
    began = time.perf_counter()
    cache = TokenCache.open(str(folder / "cache"))
    opened = time.perf_counter() - began
    weights = MixtureSchedule.constant({"web": 1.0})
    loader = Loader({"web": cache}, {"web": "i"}, weights, LENGTH, seed=0)
    loader.batch(DataPosition(), 0, A_BATCH)
    return FirstBatch(opened, time.perf_counter() - began)


def drop_from_page_cache(folder: Path) -> None:
    """Drop a folder's files from the page cache, so that the next read comes from the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())  # what is not on the disk yet cannot be dropped
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_by_grain(folder: Path, starts: np.ndarray) -> dict:
    if not PEERS.exists():
        raise SystemExit(f"{PEERS} is missing; make it with `uv venv .venv-peers` and install benchmarks/peers.txt.")
    np.save(folder / "places.npy", starts // LENGTH)
    (folder / "grain").mkdir()
    command = [str(PEERS), "-c", GRAIN, f"{folder}/grain", str(LENGTH), f"{folder}/ids.bin", f"{folder}/places.npy"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
