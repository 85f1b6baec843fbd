"""The engine commits caches on any store, and publishing blocks costs in proportion to the shards."""

import collections
import io
import uuid

import pytest
from rich.console import Console

from marin_dag.ledger.records import Records
from marin_dag.run.driver import Run
from marin_dag.run.live import LineDisplay
from marin_dag.run.local.backend import LocalBackend
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from runtime.data.cache import TokenCache
from runtime.data.gates import Tally
from steps.tokenize import TokenizeConfig, TokenizeResult, tokenize
from steps.train_tokenizer import TrainTokenizerConfig, train_tokenizer
from tests.runtime.data.caches import has_recorded_checksums
from tests.steps.text_steps import WrittenConfig, written

TEXTS = tuple(f"Document {index}: 吾輩は猫である, naïve café 👩‍👩‍👧, {index * 7919} times." for index in range(60))


@pytest.fixture(params=["local", "gs", "s3"])
def prefix(request, tmp_path):
    """Return an unused prefix on each kind of store."""
    if request.param == "local":
        return str(tmp_path / "runs")
    bucket = request.getfixturevalue({"gs": "gcs_bucket", "s3": "s3_bucket"}[request.param])
    return f"{request.param}://{bucket}/{uuid.uuid4().hex}"


def test_documents_become_committed_caches_on_every_store(prefix):
    documents = written("documents", WrittenConfig(shards=(TEXTS[:25], TEXTS[25:])))
    tokenizer = train_tokenizer("tokenizer", TrainTokenizerConfig(documents={"test": documents}, vocab_size=300))
    caches = tokenize("tokenize", TokenizeConfig(documents=documents, tokenizer=tokenizer, validation_share=0.2))
    run_all(prefix, [documents, tokenizer, caches])

    store = open_store(prefix)
    record = Records(store).get(caches.key)
    assert record is not None
    result = TokenizeResult.model_validate(record.result)
    sizes = []
    for split in (result.train, result.validation):
        cache = TokenCache.open(f"{store.prefix}/{record.output_path}/{split}")
        assert has_recorded_checksums(cache)
        sizes.append((cache.num_tokens, cache.num_bytes, cache.num_documents))
    assert sizes == [
        (result.num_train_tokens, result.num_train_bytes, result.num_train_documents),
        (result.num_validation_tokens, result.num_validation_bytes, result.num_validation_documents),
    ]
    assert result.num_train_documents + result.num_validation_documents == 60


def run_all(prefix, steps):
    shown = io.StringIO()
    display = LineDisplay(Console(file=shown), Console(file=shown))
    assert Run(steps, open_store(prefix), LocalBackend(), display, command="test").run() == 0, shown.getvalue()


def test_the_cost_of_publishing_blocks_grows_linearly_with_the_shards(tmp_path, monkeypatch):
    asked: collections.Counter[str] = collections.Counter()
    for owner, names in ((LocalStore, ("list", "read", "create", "write", "exists", "settle")), (Tally, ("add",))):
        for name in names:
            monkeypatch.setattr(owner, name, counted(getattr(owner, name), name, asked))
    texts = written("texts", WrittenConfig(shards=(TEXTS,)))
    tokenizer = train_tokenizer("tokenizer", TrainTokenizerConfig(documents={"test": texts}, vocab_size=300))
    sizes = (4, 8, 12)
    documents = [written("documents", WrittenConfig(shards=tuple(TEXTS[i : i + 5] for i in range(n)))) for n in sizes]
    run_all(str(tmp_path), [texts, tokenizer, *documents])
    seen = []
    for number, of_size in enumerate(documents):
        asked.clear()
        config = TokenizeConfig(documents=of_size, tokenizer=tokenizer, validation_share=0.2, shards_per_block=1)
        run_all(str(tmp_path), [tokenize(f"tokenize-{number}", config)])
        seen.append(dict(asked))
    few, more, most = seen
    assert (few["add"], more["add"], most["add"]) == sizes
    for name in asked:
        # A look at each shard for each block would add 16; heartbeats may add one or two.
        assert most[name] - more[name] <= more[name] - few[name] + 4, name


def counted(operation, name, asked):
    def call(*arguments, **named):
        asked[name] += 1
        return operation(*arguments, **named)

    return call
