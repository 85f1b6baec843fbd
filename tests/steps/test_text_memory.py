"""Text steps: memory does not grow with the number of shards.

Measured in a process of its own: tracemalloc counts the allocations of every thread, those of other tests included.
"""

import concurrent.futures
import dataclasses
import gc
import json
import multiprocessing
import random
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from marin_dag.graph.inputs import Input
from runtime.text import documents
from runtime.text.documents import Document, read_documents, write_documents
from runtime.text.extraction.formats import JsonLines
from runtime.text.filter_rules import BadWords, Length
from steps.decontaminate import DecontaminateConfig, decontaminate
from steps.dedup import DedupConfig, dedup
from steps.documents import DocumentsResult
from steps.download import DownloadedFile, DownloadResult
from steps.extract import ExtractConfig, extract
from steps.filter import FilterConfig, _filter_shard, filter_documents
from tests.steps import text_chain
from tests.steps.conftest import FolderContext
from tests.steps.text_chain import WORDS


@pytest.fixture(scope="module")
def alone() -> Iterator[concurrent.futures.Executor]:
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        yield process


def peak_of(action: Callable[[], object]) -> int:
    tracemalloc.start()
    action()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def peak_to_filter(folder: Path, num_documents: int) -> int:
    shard = str(folder / f"{num_documents}.parquet")
    chance = random.Random(0)
    rows = (Document(str(number), " ".join(chance.choices(WORDS, k=400)), "toys") for number in range(num_documents))
    with mock.patch.object(documents, "ROW_GROUP_DOCUMENTS", 64):
        write_documents(shard, rows)
        return peak_of(lambda: _filter_shard((Length(min_words=5),), None, shard, str(folder / f"out-{num_documents}")))


def test_a_shard_of_twice_the_size_takes_no_more_memory_to_filter(alone, tmp_path):
    alone.submit(peak_to_filter, tmp_path, 64).result()  # loads modules
    less, more = (alone.submit(peak_to_filter, tmp_path, count).result() for count in (512, 1_024))
    assert more < 1.2 * less


SHARD_DOCUMENTS = 50
FEW_NO = BadWords(words=("boats boats", "key key"))


def shards(folder, count):
    """Write shards of 50 documents of 10 lines: a tenth copies, a tenth near copies, and a banner on all."""
    chance = random.Random(0)
    num_bytes = 0
    for index in range(count):
        lines = [[" ".join(chance.choices(WORDS, k=30)) + "." for _ in range(10)] for _ in range(SHARD_DOCUMENTS)]
        for place in range(5):
            lines[place + 10] = lines[place]
            lines[place + 20] = [*lines[place][:9], "And so it goes on and on."]
        banner = ["This site uses cookies.", "Accept them all now.", "Or go away from here."]
        texts = ("\n".join([*text, *banner]) for text in lines)
        rows = [Document(f"{index}/{number}", text, "toys") for number, text in enumerate(texts)]
        num_bytes += write_documents(str(folder / f"{index:05d}.parquet"), rows)[1]
    result = DocumentsResult(
        shards=tuple(f"{index:05d}.parquet" for index in range(count)),
        num_documents=count * SHARD_DOCUMENTS,
        num_bytes=num_bytes,
        dropped={},
    )
    return Input(name="toys", digest="e" * 64, path=str(folder), result=result)


@pytest.fixture(scope="module")
def fewer_and_more(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    return [shards(folder / str(count), count) for count in (1, 8, 16)]


def downloaded(documents):
    """Write the same texts as files of JSON lines."""
    folder, files = Path(documents.path), []
    for shard in documents.result.shards:
        lines = (json.dumps({"text": document.text}) + "\n" for document in read_documents([documents.join(shard)]))
        path = folder / f"{shard}.jsonl"
        path.write_text("".join(lines))
        file = {"path": path.name, "name": path.name, "sha256": "0" * 64, "size_in_bytes": path.stat().st_size}
        files.append(DownloadedFile(**file))
    return Input(name="files", digest="d" * 64, path=str(folder), result=DownloadResult(files=tuple(files)))


CONFIGS = {
    "extract": (extract, lambda given, items: ExtractConfig(download=downloaded(given), formats=(JsonLines(),))),
    "filter": (filter_documents, lambda given, items: FilterConfig(documents=given, rules=(FEW_NO,))),
    "dedup": (dedup, lambda given, items: DedupConfig(documents=given, keys_per_task=400)),
    "decontaminate": (
        decontaminate, lambda given, items: DecontaminateConfig(documents=given, evaluation_items=items),
    ),
}  # fmt: skip


@dataclasses.dataclass
class OneByOne:
    """A context whose shards run one after the other, with garbage collected after each."""

    context: object

    def __getattr__(self, name):
        return getattr(self.context, name)

    def map(self, function, items, *, in_flight, name="shards"):
        results = []
        for index, item in enumerate(items):
            results.append(function(item, f"{self.output_path}/{name}/{index:05d}"))
            gc.collect()
        return results


def peaks_of(name: str, folder: Path, given: list[Input]) -> list[int]:
    kind, config_of = CONFIGS[name]
    output = folder / "items"
    output.mkdir()
    context = FolderContext("items", str(output), str(folder))
    result = text_chain.items.function(text_chain.ItemsConfig(question=text_chain.ITEM), context)
    items = Input(name="items", digest="f" * 64, path=str(output), result=result)
    peaks = []
    gc.collect()
    gc.freeze()
    for several in given:
        path = folder / str(several.result.num_documents)
        path.mkdir()
        step = OneByOne(FolderContext(name, str(path), str(folder)))
        peaks.append(peak_of(lambda several=several, step=step: kind.function(config_of(several, items), step)))
    gc.unfreeze()
    return peaks


@pytest.mark.parametrize("name", CONFIGS)
def test_twice_the_shards_take_no_more_memory(alone, name, fewer_and_more, tmp_path):
    _, few, many = alone.submit(peaks_of, name, tmp_path, fewer_and_more).result()  # loads modules
    # The results of the shards take 2 KB each, and each duplicate a few numbers.
    added = fewer_and_more[2].result.num_bytes - fewer_and_more[1].result.num_bytes
    assert many - few < 0.05 * added
    assert many < 1.2 * few
