"""Quality classifier: it separates two kinds of text, the same way each time."""

import numpy as np
import pytest

from runtime.text.batch import TextBatch
from runtime.text.quality import QualityModel, TrainingSet, features_of, least_score, score_of
from tests.catalogue import expect_error


def test_features_are_words_and_pairs_of_words_of_one_text():
    texts = ["The toy, the TOY", "", "toy the"]
    found = features_of(TextBatch(texts), max_ngram_words=2, table_bits=20)
    assert found.lengths.tolist() == [7, 0, 3]
    the, toy, the_toy = found.indices[0], found.indices[1], found.indices[4]
    assert found.indices[:4].tolist() == [the, toy, the, toy]
    assert found.indices[6] == the_toy
    assert found.indices[7:9].tolist() == [toy, the]
    alone = features_of(TextBatch(texts[2:]), max_ngram_words=2, table_bits=20)
    assert found.indices[7:].tolist() == alone.indices.tolist()


def test_a_saved_model_scores_as_before_and_holds_no_code(tmp_path):
    model = QualityModel(np.random.default_rng(0).normal(size=1 << 10).astype(np.float32), 0.25, 2)
    model.save(str(tmp_path))
    batch = TextBatch(["A toy that winds itself.", "x", ""])
    assert QualityModel.load(str(tmp_path)).scores(batch).tolist() == model.scores(batch).tolist()
    assert model.scores(batch)[2] == score_of(np.array(0.25))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["classifier.json", "weights.npy"]
    np.save(tmp_path / "weights.npy", np.array([{"a": 1}]), allow_pickle=True)
    with expect_error(ValueError):
        QualityModel.load(str(tmp_path))


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5])
def test_the_least_score_of_a_fraction_keeps_that_fraction(fraction):
    scores = score_of(np.random.default_rng(1).normal(scale=6, size=10_000))
    assert np.mean(scores >= least_score(scores, fraction)) == fraction
    assert least_score(scores, 1.0) < scores.min()


def test_equal_scores_are_kept_together_or_not_at_all():
    scores = np.array([0.1, 0.5, 0.5, 0.9])
    assert least_score(scores, 0.5) == 0.9
    with expect_error(ValueError):
        least_score(np.full(100, 0.5), 0.1)


def test_copies_of_a_text_are_all_held_out_or_none():
    texts = [f"toy number {number}" for number in range(400)]

    def training(*labels):
        pairs = [(text, label) for label in labels for text in texts]
        return TrainingSet(pairs, held_out_share=0.3, max_ngram_words=1, table_bits=10)

    once, thrice = training(True), training(True, False, True)
    assert 80 < once.num_held_out < 160
    assert thrice.num_held_out == 3 * once.num_held_out
    assert thrice.has_both_labels()
    assert not once.has_both_labels()
