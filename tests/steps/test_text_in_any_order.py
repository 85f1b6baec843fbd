"""Pins down: the steps over documents write the same bytes whichever worker ends first, and hold a part of a shard."""

import concurrent.futures
import dataclasses
import random
import tracemalloc
from pathlib import Path

import pytest

from marin_dag.inputs import Input
from runtime.text.documents import Document, write_documents
from runtime.text.filter_rules import C4Lines, Length, QualityScore
from steps.dedup import DedupConfig, dedup
from steps.documents import DocumentsResult
from steps.filter import FilterConfig, _filter_shard, filter_documents
from steps.train_quality_classifier import TrainQualityClassifierConfig, train_quality_classifier

WORDS = "toy wound window morning sea alone walked wooden key child play gentle river valley boats farmers".split()  # noqa: SIM905


@dataclasses.dataclass
class Workers:
    """A context whose shards run on threads, begun in an order of their own."""

    context: object
    num_workers: int

    def __getattr__(self, name):
        return getattr(self.context, name)

    def map(self, function, items, *, in_flight, name="shards"):
        items = list(items)
        order = random.Random(self.num_workers).sample(range(len(items)), len(items))
        with concurrent.futures.ThreadPoolExecutor(self.num_workers) as pool:
            begun = {
                index: pool.submit(function, items[index], f"{self.output_path}/{name}/{index:05d}") for index in order
            }
        return [begun[index].result() for index in range(len(items))]


def shards(folder):
    chance = random.Random(0)
    texts = [" ".join(chance.choices(WORDS, k=40)) + "." for _ in range(60)]
    texts += [texts[3], texts[7].upper(), f"{texts[11]} And one more.", "short.", "no end"]
    chance.shuffle(texts)
    counts = []
    for index in range(5):
        rows = [Document(f"{index}/{number}", text, "toys") for number, text in enumerate(texts[index::5])]
        counts.append(write_documents(str(folder / f"{index}.parquet"), rows))
    result = DocumentsResult(
        shards=tuple(f"{index}.parquet" for index in range(5)),
        num_documents=sum(count for count, _ in counts),
        num_bytes=sum(size for _, size in counts),
        dropped={},
    )
    return Input(None, name="toys", digest="e" * 64, path=str(folder), result=result)


def chain(folder, given, num_workers, context_of):
    def run(kind, config, name):
        output = folder / name
        output.mkdir(parents=True)
        result = kind.function(config, Workers(context_of(name, str(output)), num_workers))
        return Input(None, name=name, digest="d" * 64, path=str(output), result=result)

    training = TrainQualityClassifierConfig(positives=(given,), negatives=(given,), table_bits=8, held_out_share=0.2)
    classifier = run(train_quality_classifier, training, "classifier")
    rules = (C4Lines(), Length(min_words=5), QualityScore(keep_fraction=1.0))
    kept = run(filter_documents, FilterConfig(documents=given, rules=rules, quality_classifier=classifier), "filter")
    run(dedup, DedupConfig(documents=kept, keys_per_task=100), "dedup")
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("num_workers", [2, 16])
def test_filter_classifier_and_dedup_write_the_same_bytes_on_one_worker_and_on_many(tmp_path, num_workers, context_of):
    given = shards(tmp_path / "given")
    one = chain(tmp_path / "one", given, 1, context_of)
    many = chain(tmp_path / "many", given, num_workers, context_of)
    # What names where it lies is read by nobody: clusters, signatures, pairs and shards must agree to the byte.
    assert one == many
    assert any("clusters" in path.name for path in map(Path, one))


def test_a_shard_of_twice_the_size_takes_no_more_memory_to_filter(tmp_path, monkeypatch):
    monkeypatch.setattr("runtime.text.documents.ROW_GROUP_DOCUMENTS", 64)

    def peak(num_documents):
        shard = str(tmp_path / f"{num_documents}.parquet")
        chance = random.Random(0)
        rows = (
            Document(str(number), " ".join(chance.choices(WORDS, k=400)), "toys") for number in range(num_documents)
        )
        write_documents(shard, rows)
        tracemalloc.start()
        _filter_shard((Length(min_words=5),), None, shard, str(tmp_path / f"out-{num_documents}"))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(64)  # what is loaded once
    assert peak(1_024) < 1.2 * peak(512)
