"""Token predictions: the definition by whole logits, a sample chosen by its text, and the table of each token."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from runtime.evaluation.stored_predictions import read_predictions, write_predictions
from runtime.evaluation.token_predictions import (
    NUM_LIKELY,
    Predictor,
    build_prediction_step,
    sample_windows,
)
from runtime.model.computation import whole
from runtime.model.config import LLAMA3_ROPE
from runtime.model.model import logits
from runtime.model.rotary import inverse_frequencies
from runtime.parallel.hosts import host_rows
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from tests.runtime.evaluation.test_held_out import CONFIG, EOS, SEQUENCE, VOCAB_SIZE, caches, documents_of, model

__all__ = ["caches"]


@functools.cache
def prediction_step(**shape: int):
    size = int(np.prod([*shape.values(), 1]))
    mesh = make_mesh(MeshShape(**shape), jax.devices()[:size])
    return build_prediction_step(CONFIG, LLAMA3_ROPE, mesh, attention_kernel="reference", compute_dtype="float32")


def sample_of(caches, windows_per_domain=2):
    paths = {name: cache.path for name, cache in caches.items()}
    return sample_windows(paths, sequence_length=SEQUENCE, windows_per_domain=windows_per_domain)


def predictor(caches, windows_per_batch=4, rows=None, **shape):
    return Predictor(
        sample=sample_of(caches), step=prediction_step(**shape), windows_per_batch=windows_per_batch, rows=rows
    )


def log_probs_of(windows):
    frequencies = inverse_frequencies(LLAMA3_ROPE, CONFIG.head_dim)
    values = logits(CONFIG.build(), model(), *map(jnp.asarray, windows), frequencies, computation=whole(jnp.float32))
    return np.asarray(jax.nn.log_softmax(values), np.float64)


def test_each_row_holds_a_token_and_what_the_definition_predicts_of_it(caches):
    each = predictor(caches)
    rows = each.table(7, 700, {"hot": each.predict(model())}).to_pylist()
    log_probs, (tokens, segment_ids) = log_probs_of(each.sample.windows), each.sample.windows
    assert {row["step"] for row in rows} == {7} and {row["consumed_tokens"] for row in rows} == {700}
    assert len(rows) == int((segment_ids >= 0).sum())
    window_of = {digest: index for index, digest in enumerate(each.sample.digests)}
    num_predicted = 0
    for row in rows:
        window, position = window_of[row["window"]], row["position"]
        assert row["token"] == tokens[window, position]
        assert row["domain"] == each.sample.domains[window]
        if position == 0 or segment_ids[window, position] != segment_ids[window, position - 1]:
            assert row["log_prob"] is None and row["rank"] is None
            continue
        expected = log_probs[window, position - 1]
        order = np.argsort(-expected)
        assert row["log_prob"] == pytest.approx(expected[row["token"]], abs=1e-4)
        assert row["rank"] == list(order).index(row["token"])
        assert row["entropy"] == pytest.approx(-(np.exp(expected) * expected).sum(), abs=1e-4)
        assert row["likely"] == order[:NUM_LIKELY].tolist()
        assert row["likely_log_prob"] == pytest.approx(expected[order[:NUM_LIKELY]], abs=1e-4)
        num_predicted += 1
    assert num_predicted > 50


@pytest.mark.parametrize("windows_per_batch", [1, 3, 16])
def test_the_batch_changes_rounding_at_most(caches, windows_per_batch):
    expected = predictor(caches).predict(model())
    found = predictor(caches, windows_per_batch).predict(model())
    np.testing.assert_allclose(found.log_prob, expected.log_prob, atol=1e-4)
    np.testing.assert_array_equal(found.has_target, expected.has_target)


def test_the_host_rows_of_a_mesh_give_the_same(caches):
    mesh = make_mesh(MeshShape(data=1), jax.devices()[:1])
    found = predictor(caches, rows=host_rows(mesh, 4)).predict(model())
    np.testing.assert_array_equal(found.rank, predictor(caches).predict(model()).rank)


def test_a_sample_depends_on_the_text_alone(tmp_path: Path, caches):
    rng = np.random.default_rng(3)
    documents = [rng.integers(2, VOCAB_SIZE, SEQUENCE - 2) for _ in range(8)]
    forward = documents_of(tmp_path / "forward", documents)
    backward = documents_of(tmp_path / "backward", documents[::-1])
    assert (forward.read(0, 2 * SEQUENCE) == EOS).sum() == 2
    assert sample_of({"text": forward}).digests == sample_of({"text": backward}).digests
    alone = sample_of({"web": caches["web"]})
    beside = sample_of(caches)
    assert alone.digests == tuple(d for d, name in zip(beside.digests, beside.domains, strict=True) if name == "web")


def test_a_domain_with_fewer_windows_gives_all_of_them(tmp_path: Path):
    cache = documents_of(tmp_path / "short", [[5, 6, 7]])
    sample = sample_of({"short": cache})
    assert sample.domains == ("short",)
    assert (sample.windows.segment_ids >= 0).sum() == 5


def test_a_table_comes_back_as_it_was_written(tmp_path: Path, caches):
    each = predictor(caches)
    predictions = each.predict(model())
    table = each.table(3, 300, {"hot": predictions, "slow": predictions})
    url = str(tmp_path / "folder/step-3.parquet")
    write_predictions(url, table)
    assert read_predictions(url).to_pylist() == table.to_pylist()
    assert all(len(set(each.to_pylist())) == len(each) for name in ("domain", "window", "weights")
               for each in [table[name].combine_chunks().dictionary])  # fmt: skip
    assert set(table["weights"].to_pylist()) == {"hot", "slow"}
