"""Norm places: parts whose norms changed most against their medians, and parts that are not finite."""

import numpy as np
import pytest

from runtime.model.llama.config import LlamaConfig
from runtime.tracking.parts import MEASURED, Tensor, norms_fields, norms_of, part_names
from runtime.training.norm_places import RecentNorms, standing_out
from runtime.training.part_norms import tensors_of
from runtime.training.state import abstract_state

TENSORS = (Tensor("embed_tokens", None), Tensor("layers.down_proj", 3), Tensor("norm", None))
NAMES = ("embed_tokens", "layers.0.down_proj", "layers.1.down_proj", "layers.2.down_proj", "norm")


def followed(norms: np.ndarray, learning_rate: float = 1e-3) -> RecentNorms:
    recent = RecentNorms(TENSORS)
    for each in norms:
        recent.add(each, learning_rate)
    return recent


def noise(num_steps: int, seed: int = 0) -> np.ndarray:
    """Return norms as [step, measured, part]."""
    return np.exp(0.05 * np.random.default_rng(seed).normal(size=(num_steps, 3, 5))).astype(np.float32)


def test_parts_are_named_as_tensors_with_their_layer():
    assert part_names(TENSORS) == NAMES
    model = LlamaConfig(
        vocab_size=8, hidden_size=4, intermediate_size=6, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=2, max_position_embeddings=4, tie_word_embeddings=True,
    )  # fmt: skip
    names = part_names(tensors_of(abstract_state(model).params))
    assert len(names) == 2 * 9 + 2
    assert {"embed_tokens", "layers.0.q_proj", "layers.1.down_proj", "norm"} < set(names)


@pytest.mark.parametrize("num_steps", [16, 64, 200])
def test_the_largest_change_against_the_median_comes_first(num_steps):
    history, update = noise(num_steps), noise(1, seed=1)[0]
    update[0, [1, 2, 4]] *= [0.01, 41, 12]
    place = followed(history).place(update, 1e-3)
    factors = update[0] / np.median(history[-64:, 0], axis=0)
    expected = sorted(range(5), key=lambda part: -abs(np.log(factors[part])))
    assert expected[:3] == [1, 2, 4]
    assert [each["part"] for each in place["parts"]] == [NAMES[part] for part in expected]
    assert [each["factor"] for each in place["parts"]] == pytest.approx(factors[expected], rel=1e-3)
    assert [each["norm"] for each in place["parts"]] == pytest.approx(update[0, expected], rel=1e-3)
    count = min(num_steps, 64)
    assert (place["norms_of"], place["median_updates"]) == ("gradient", count)


def test_an_event_names_at_most_five_parts():
    tensors = (Tensor("layers.w", 12),)
    recent = RecentNorms(tensors)
    for _ in range(16):
        recent.add(np.ones((3, 12), np.float32), 1e-3)
    place = recent.place(np.full((3, 12), 2.0, np.float32), 1e-3)
    assert [each["part"] for each in place["parts"]] == [f"layers.{layer}.w" for layer in range(5)]
    assert recent.place(np.ones((3, 12), np.float32), 1e-3)["parts"] == []


def test_norms_of_updates_are_compared_relative_to_the_learning_rate():
    recent = RecentNorms(TENSORS)
    update = np.ones((3, 5), np.float32)
    for step in range(1, 65):
        recent.add(update * [[1], [1e-3 * step], [1]], 1e-3 * step)  # a rate that rises to 64 times its start
    newest = 0.5 * update
    newest[1, 2] = 1.5
    [part] = recent.place(newest, 0.5, measured="update")["parts"]
    assert part == {"part": "layers.1.down_proj", "factor": 3.0, "norm": 1.5}


def test_a_part_with_median_0_is_ignored_and_one_that_falls_to_0_is_named():
    history, update = noise(20), noise(1)[0]
    history[:, 0, 0] = 0.0
    update[0, [0, 3]] = 7.0, 0.0
    parts = followed(history).place(update, 1e-3)["parts"]
    assert parts[0] == {"part": "layers.2.down_proj", "factor": 0.0, "norm": 0.0}
    assert "embed_tokens" not in [each["part"] for each in parts]


def test_without_a_median_no_part_is_named():
    place = followed(noise(15)).place(noise(1)[0], 1e-3)
    assert place == {"norms_of": "gradient", "median_updates": 15, "parts": []}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ([3], ["layers.2.down_proj"]),
        ([1, 3], ["layers.0.down_proj", "layers.2.down_proj"]),
        ([0, 1, 2, 3], list(NAMES[:4])),
        ([0, 1, 2, 3, 4], "all"),
    ],
)
@pytest.mark.parametrize("measured", MEASURED)
@pytest.mark.parametrize("worst", [np.nan, np.inf])
def test_parts_that_are_not_finite_are_named_with_or_without_a_median(wrong, named, measured, worst):
    update = noise(1)[0]
    update[MEASURED.index(measured) :, wrong] = worst
    for recent in (followed(noise(20)), followed(noise(0))):
        place = recent.place(update, 1e-3)
        assert place == {"norms_of": measured, "not_finite": named}
    assert ("all" in standing_out(place)) == (named == "all")


def test_an_event_restores_every_norm_by_its_part():
    norms = noise(1)[0]
    norms[1, 2] = np.inf
    event = norms_fields(TENSORS, norms)
    assert event["gradient"].keys() == {"embed_tokens", "layers.down_proj", "norm"}
    assert event["update"]["layers.down_proj"][1] is None
    for measured, expected in zip(MEASURED, np.where(np.isfinite(norms), norms, np.nan), strict=True):
        read = dict(norms_of(event, measured))
        assert tuple(read) == NAMES
        assert list(read.values()) == pytest.approx(expected, rel=1e-3, nan_ok=True)
