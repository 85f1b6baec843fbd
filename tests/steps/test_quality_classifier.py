"""Quality classifier as a step: it keeps the wanted kind of documents, with the same bytes each time."""

import json
from pathlib import Path

import numpy as np
import pytest

from marin_dag.errors import UserError
from marin_dag.graph.inputs import Input
from runtime.text.documents import Document, read_documents, write_documents
from runtime.text.filter_rules import Length, QualityScore, SingleCharacter
from steps.documents import DocumentsResult
from steps.filter import FilterConfig, filter_documents
from steps.train_quality_classifier import TrainQualityClassifierConfig, train_quality_classifier
from tests.catalogue import expect_error

TOYS = ("toy", "wound", "window", "morning", "sea", "alone", "walked", "wooden", "key", "child", "play", "gentle")
SPAM = ("buy", "cheap", "offer", "click", "casino", "bonus", "free", "deal", "price", "sale", "order", "online")
COMMON = ("of", "and", "to", "a", "in", "that", "it", "with", "for", "on", "as", "at", "by", "this")


def texts(words, count, seed):
    chance = np.random.default_rng(seed)
    return [" ".join(chance.choice([*words, *COMMON], size=60)) for _ in range(count)]


def documents(tmp_path, name, shards):
    folder = tmp_path / name
    counts = []
    for index, shard in enumerate(shards):
        rows = [Document(f"{name}/{index}/{number}", text, name) for number, text in enumerate(shard)]
        counts.append(write_documents(str(folder / f"{index}.parquet"), rows))
    result = DocumentsResult(
        shards=tuple(f"{index}.parquet" for index in range(len(shards))),
        num_documents=sum(count for count, _ in counts),
        num_bytes=sum(size for _, size in counts),
        dropped={},
    )
    return Input(name=name, digest="e" * 64, path=str(folder), result=result)


@pytest.fixture
def trained(run_alone, tmp_path):
    def train(name="classifier", cut=50, **changes):
        good, bad = texts(TOYS, 150, 0), texts(SPAM, 120, 1)
        config = TrainQualityClassifierConfig(
            positives=(documents(tmp_path, f"good-{name}", [good[:cut], good[cut:]]),),
            negatives=(documents(tmp_path, f"bad-{name}", [bad]),),
            table_bits=12,
            held_out_share=0.2,
            **changes,
        )
        return run_alone(train_quality_classifier, config, name)

    return train


def test_the_result_has_the_accuracy_on_held_out_documents(trained):
    result = trained().result
    assert (result.num_positives, result.num_negatives) == (150, 120)
    assert 40 <= result.num_held_out <= 60
    assert result.held_out_accuracy > 0.95
    assert min(result.held_out_positives_found, result.held_out_negatives_found) > 0.9


def test_the_model_does_not_depend_on_shards(trained):
    one, same, other = trained("one"), trained("same", cut=99), trained("other", epochs=2)

    def model(found):
        return [
            Path(found.join("classifier")).joinpath(name).read_bytes() for name in ("weights.npy", "classifier.json")
        ]

    assert model(one) == model(same)
    assert model(one) != model(other)


def test_each_class_gives_about_the_configured_bytes(trained):
    result = trained(bytes_per_class=15_000).result
    assert 40 <= result.num_positives <= 80
    assert 40 <= result.num_negatives <= 80


def test_a_filter_keeps_documents_by_score_or_by_fraction(run_alone, tmp_path, trained):
    mixed = documents(tmp_path, "mixed", [texts(TOYS, 20, 5) + texts(SPAM, 20, 6), texts(SPAM, 40, 7)])
    classifier = trained()

    def kept(name, rule):
        config = FilterConfig(documents=mixed, rules=(Length(min_words=5), rule), quality_classifier=classifier)
        found = run_alone(filter_documents, config, name)
        return found, [document.id for document in read_documents(map(found.join, found.result.shards))]

    by_score, ids = kept("by-score", QualityScore(min_score=0.5))
    assert ids == [f"mixed/0/{number}" for number in range(20)]
    assert by_score.result.dropped == {"quality classifier": 60}
    (sample, *_) = Path(by_score.join(by_score.result.dropped_samples)).read_text().splitlines()
    assert json.loads(sample)["detail"].endswith(", at least 0.5")
    _, ids = kept("by-fraction", QualityScore(keep_fraction=0.1))
    assert len(ids) == 8
    assert set(ids) <= {f"mixed/0/{number}" for number in range(20)}


def test_a_quality_rule_needs_a_classifier(tmp_path):
    mixed = documents(tmp_path, "mixed", [["a text"]])
    with expect_error(ValueError):
        filter_documents.check(FilterConfig(documents=mixed, rules=(QualityScore(min_score=0.5),)))
    with expect_error(ValueError):
        filter_documents.check(FilterConfig(documents=mixed, rules=(QualityScore(keep_fraction=0.5),) * 2))


def test_a_negative_number_in_a_rule_is_refused_by_the_plan(tmp_path):
    mixed = documents(tmp_path, "mixed", [["a text"]])
    for rule, _said in (
        (Length(min_words=-1), r"Length\.min_words is -1"),
        (SingleCharacter(-0.5), "max_share is -0.5"),
    ):
        with expect_error(ValueError):
            filter_documents.check(FilterConfig(documents=mixed, rules=(Length(min_words=0), rule)))


def test_too_few_documents_are_an_error(run_alone, tmp_path):
    one, other = documents(tmp_path, "one", [["a toy"]]), documents(tmp_path, "none", [[]])
    config = TrainQualityClassifierConfig(positives=(one,), negatives=(other,))
    with expect_error(UserError):
        run_alone(train_quality_classifier, config, "classifier")
