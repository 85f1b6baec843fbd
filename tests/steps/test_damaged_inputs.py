"""Damaged inputs: a flipped bit in the output of any kind of text step never becomes the output of another."""

import io
import random
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from marin_dag.ledger.records import Record, Records
from marin_dag.run.driver import Run
from marin_dag.run.live import LineDisplay
from marin_dag.run.local.backend import LocalBackend
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store
from steps.tokenize import TokenizeConfig, tokenize
from steps.train_tokenizer import TrainTokenizerConfig, train_tokenizer
from tests.steps.text_chain import chain, write_corpus

FLIPS_A_STEP = 3


def run(store: Store, steps: list[Any], force: frozenset[str] = frozenset()) -> tuple[int, str]:
    shown = io.StringIO()
    display = LineDisplay(Console(file=shown), Console(file=shown))
    return Run(steps, store, LocalBackend(), display, command="test", force=force).run(), shown.getvalue()


def whole_graph(folder: str) -> dict[str, Any]:
    """The text chain, a tokenizer and a token cache of its result."""
    steps = chain(folder)
    tokenizer = train_tokenizer(
        "tokenizer", TrainTokenizerConfig(documents={"clean": steps["decontaminate"]}, vocab_size=300)
    )
    caches = TokenizeConfig(documents=steps["decontaminate"], tokenizer=tokenizer, validation_share=0.2)
    return {**steps, "tokenizer": tokenizer, "tokenize": tokenize("tokenize", caches)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("damaged")
    write_corpus(folder / "corpus")
    steps = whole_graph(str(folder / "corpus"))
    store = open_store(str(folder / "runs"))
    code, shown = run(store, list(steps.values()))
    assert code == 0, shown
    return store, steps


def flipped_bits(store: Store, record: Record, chance: random.Random) -> list[tuple[str, int]]:
    """Return files of an output, and a bit of each."""
    files = [entry for entry in record.manifest if entry.size_in_bytes]
    return [(entry.path, chance.randrange(8 * entry.size_in_bytes)) for entry in chance.choices(files, k=FLIPS_A_STEP)]


READERS = {
    "download": "extract",
    "extract": "filter",
    "classifier": "filter",
    "filter": "dedup",
    "dedup": "decontaminate",
    "items": "decontaminate",
    "decontaminate": "tokenize",
    "tokenizer": "tokenize",
}


@pytest.mark.parametrize("source", READERS)
def test_a_flipped_bit_changes_no_output_of_the_step_that_reads_it(
    made: tuple[Store, dict[str, Any]], source: str
) -> None:
    store, steps = made
    records, reader = Records(store), steps[READERS[source]]
    record, first = records.get(steps[source].key), records.get(reader.key)
    for path, bit in flipped_bits(store, record, random.Random(source)):
        target = f"{record.output_path}/{path}"
        data = bytearray(store.read(target))
        data[bit // 8] ^= 1 << bit % 8
        whole = store.read(target)
        store.delete(target)
        store.write(target, bytes(data))
        store.delete(f"commits/{reader.key}.json")
        for left in store.list("work", f"{reader.digest}/"):
            store.delete(left.path)
        code, shown = run(store, [reader])
        made_again = records.find(reader.key)
        if made_again is None:
            assert code == 1 and f"the input {source} is damaged" in shown and Path(path).name in shown
        else:  # the step does not read this file
            assert (made_again.manifest, made_again.result) == (first.manifest, first.result), path
        store.delete(target)
        store.write(target, whole)
    assert run(store, [reader])[0] == 0
    again = records.get(reader.key)
    assert (again.manifest, again.result) == (first.manifest, first.result)
