"""Pins down: run by the engine on any store, tokenize commits caches that open from their committed place."""

import io
import uuid

import pytest
from rich.console import Console

from marin_dag.live import LineDisplay
from marin_dag.local_backend import LocalBackend
from marin_dag.records import Records
from marin_dag.run import Run
from marin_dag.store import open_store
from runtime.data.cache import TokenCache
from steps.tokenize import TokenizeConfig, TokenizeResult, tokenize
from steps.train_tokenizer import TrainTokenizerConfig, train_tokenizer
from tests.steps.text_steps import WrittenConfig, written

TEXTS = tuple(f"Document {index}: 吾輩は猫である, naïve café 👩‍👩‍👧, {index * 7919} times." for index in range(60))


@pytest.fixture(params=["local", "gcs"])
def prefix(request, tmp_path):
    """An unused prefix on a store of each kind."""
    if request.param == "local":
        return str(tmp_path / "runs")
    return f"gs://{request.getfixturevalue('gcs_bucket')}/{uuid.uuid4().hex}"


def test_documents_become_committed_caches_on_every_store(prefix):
    documents = written("documents", WrittenConfig(shards=(TEXTS[:25], TEXTS[25:])))
    tokenizer = train_tokenizer("tokenizer", TrainTokenizerConfig(documents={"test": documents}, vocab_size=300))
    caches = tokenize("tokenize", TokenizeConfig(documents=documents, tokenizer=tokenizer, validation_share=0.2))
    shown = io.StringIO()
    code = Run(
        [documents, tokenizer, caches],
        open_store(prefix),
        LocalBackend(),
        LineDisplay(Console(file=shown), Console(file=shown)),
        command="test",
    ).run()
    assert code == 0, shown.getvalue()

    store = open_store(prefix)
    record = Records(store).get(caches.key)
    assert record is not None
    result = TokenizeResult.model_validate(record.result)
    sizes = []
    for split in (result.train, result.validation):
        cache = TokenCache.open(f"{store.prefix}/{record.output_path}/{split}")
        cache.verify()
        sizes.append((cache.num_tokens, cache.num_bytes, cache.num_documents))
    assert sizes == [
        (result.num_train_tokens, result.num_train_bytes, result.num_train_documents),
        (result.num_validation_tokens, result.num_validation_bytes, result.num_validation_documents),
    ]
    assert result.num_train_documents + result.num_validation_documents == 60
