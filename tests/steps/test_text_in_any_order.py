"""Pins down: every step over documents writes the same bytes on one worker and on many, in a memory that stays flat."""

import concurrent.futures
import dataclasses
import gc
import json
import random
import tracemalloc
from pathlib import Path

import pytest

from marin_dag.fields import markers
from marin_dag.inputs import Input
from runtime.text.documents import Document, read_documents, write_documents
from runtime.text.extraction.formats import JsonLines
from runtime.text.filter_rules import BadWords, Length
from runtime.text.span_rule import RepeatedSpans
from steps.decontaminate import DecontaminateConfig, decontaminate
from steps.dedup import DedupConfig, dedup
from steps.dedup_spans import DedupSpansConfig, dedup_spans
from steps.documents import DocumentsResult
from steps.download import DownloadedFile, DownloadResult
from steps.extract import ExtractConfig, extract
from steps.filter import FilterConfig, _filter_shard, filter_documents
from tests.steps import text_chain
from tests.steps.text_chain import WORDS


@dataclasses.dataclass
class Workers:
    """A context whose shards run on threads, begun in an order of their own."""

    context: object
    num_workers: int
    begun: set

    def __getattr__(self, name):
        return getattr(self.context, name)

    def map(
        self,
        function,
        items,
        *,
        in_flight,
        name="shards",
        on_finished=lambda index, result: None,
        on_counted=lambda done, total: None,
    ):
        items = list(items)
        on_counted(0, len(items))
        self.begun.add(f"{self.context.name}/{name}")
        order = random.Random(self.num_workers).sample(range(len(items)), len(items))
        with concurrent.futures.ThreadPoolExecutor(self.num_workers) as pool:
            begun = {
                index: pool.submit(function, items[index], f"{self.output_path}/{name}/{index:05d}") for index in order
            }
        for index in order:
            on_finished(index, begun[index].result())
        return [begun[index].result() for index in range(len(items))]


def ended(folder, corpus, num_workers, context_of):
    """What every step of the chain writes and returns, and the maps that ran."""
    inputs, results, begun = {}, {}, set()
    for name, step in text_chain.chain(corpus).items():
        output = folder / name
        output.mkdir(parents=True)
        result = step.kind.function(
            bound(step.config, inputs), Workers(context_of(name, str(output)), num_workers, begun)
        )
        inputs[step.digest] = Input(None, name=name, digest=step.digest, path=str(output), result=result)
        results[name] = result
    files = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return files, results, begun


def bound(config, inputs):
    """A config with the outputs of other steps, as the engine binds them."""

    def of(value):
        if isinstance(value, Input):
            return inputs[value.step.digest]
        return tuple(map(of, value)) if isinstance(value, tuple) else value

    return config.model_copy(update={name: of(getattr(config, name)) for name in markers(type(config))})


@pytest.mark.parametrize("num_workers", [2, 16])
def test_every_step_writes_the_same_bytes_on_one_worker_and_on_many(tmp_path, num_workers, context_of):
    text_chain.write_corpus(tmp_path / "corpus")
    one = ended(tmp_path / "one", str(tmp_path / "corpus"), 1, context_of)
    many = ended(tmp_path / "many", str(tmp_path / "corpus"), num_workers, context_of)
    assert one == many
    assert one[2] == set(text_chain.MAPS)


def peak_of(action):
    tracemalloc.start()
    action()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def test_a_shard_of_twice_the_size_takes_no_more_memory_to_filter(tmp_path, monkeypatch):
    monkeypatch.setattr("runtime.text.documents.ROW_GROUP_DOCUMENTS", 64)

    def peak(num_documents):
        shard = str(tmp_path / f"{num_documents}.parquet")
        chance = random.Random(0)
        rows = (
            Document(str(number), " ".join(chance.choices(WORDS, k=400)), "toys") for number in range(num_documents)
        )
        write_documents(shard, rows)
        return peak_of(
            lambda: _filter_shard((Length(min_words=5),), None, shard, str(tmp_path / f"out-{num_documents}"))
        )

    peak(64)  # what is loaded once
    assert peak(1_024) < 1.2 * peak(512)


SHARD_DOCUMENTS = 50
FEW_NO = BadWords(words=("boats boats", "key key"))


def shards(folder, count):
    """Shards of 50 documents of 10 lines; of each shard a tenth are copies, a tenth near copies, all share a banner."""
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
    return Input(None, name="toys", digest="e" * 64, path=str(folder), result=result)


@pytest.fixture(scope="module")
def fewer_and_more(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    return [shards(folder / str(count), count) for count in (1, 8, 16)]


def downloaded(documents):
    """The same texts as files of JSON lines."""
    folder, files = Path(documents.path), []
    for shard in documents.result.shards:
        lines = (json.dumps({"text": document.text}) + "\n" for document in read_documents([documents.join(shard)]))
        path = folder / f"{shard}.jsonl"
        path.write_text("".join(lines))
        file = {"path": path.name, "name": path.name, "sha256": "0" * 64, "size_in_bytes": path.stat().st_size}
        files.append(DownloadedFile(**file))
    return Input(None, name="files", digest="d" * 64, path=str(folder), result=DownloadResult(files=tuple(files)))


CONFIGS = {
    "extract": (extract, lambda given, items: ExtractConfig(download=downloaded(given), formats=(JsonLines(),))),
    "filter": (filter_documents, lambda given, items: FilterConfig(documents=given, rules=(FEW_NO,))),
    "dedup": (dedup, lambda given, items: DedupConfig(documents=given, keys_per_task=400)),
    "spans": (
        dedup_spans,
        lambda given, items: DedupSpansConfig(documents=given, spans=RepeatedSpans(), keys_per_task=1_000),
    ),
    "decontaminate": (
        decontaminate, lambda given, items: DecontaminateConfig(documents=given, evaluation_items=items),
    ),
}  # fmt: skip


@dataclasses.dataclass
class OneByOne:
    """A context whose shards run one after the other, with what each leaves behind in cycles taken away."""

    context: object

    def __getattr__(self, name):
        return getattr(self.context, name)

    def map(self, function, items, *, in_flight, name="shards"):
        results = []
        for index, item in enumerate(items):
            results.append(function(item, f"{self.output_path}/{name}/{index:05d}"))
            gc.collect()
        return results


@pytest.mark.parametrize("name", CONFIGS)
def test_twice_the_shards_take_no_more_memory(name, fewer_and_more, tmp_path, context_of):
    kind, config_of = CONFIGS[name]
    output = tmp_path / "items"
    output.mkdir()
    context = context_of("items", str(output))
    result = text_chain.items.function(text_chain.ItemsConfig(question=text_chain.ITEM), context)
    items = Input(None, name="items", digest="f" * 64, path=str(output), result=result)
    peaks = []
    gc.collect()
    gc.freeze()
    for given in fewer_and_more:  # the first loads what is loaded once
        turns = []
        for turn in range(2):  # on a busy machine one may hold what its slowness alone brought about
            folder = tmp_path / f"{given.result.num_documents}-{turn}"
            folder.mkdir()
            step = OneByOne(context_of(name, str(folder)))
            turns.append(peak_of(lambda given=given, step=step: kind.function(config_of(given, items), step)))
        peaks.append(min(turns))
    gc.unfreeze()
    _, few, many = peaks
    # What is left is the results of the shards, 2 KB each, and a few numbers for each duplicate.
    added = fewer_and_more[2].result.num_bytes - fewer_and_more[1].result.num_bytes
    assert many - few < 0.05 * added
    assert many < 1.2 * few
