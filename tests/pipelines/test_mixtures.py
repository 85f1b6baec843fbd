"""Mixtures of the recipe have the normalised figures of the public run."""

import pytest

from pipelines import mixtures
from pipelines.corpus import weights_by_source
from pipelines.mixtures import scaled
from pipelines.source import role_of_file


@pytest.mark.parametrize(
    ("weights", "published"),
    [
        (mixtures.DCLM, {"dclm_baseline": 0.92570, "starcoderdata": 0.06090, "proofpile_2": 0.01340}),
        (mixtures.COOLDOWN_V1, {"dolmino_dclm": 0.67773, "pes2o": 0.10776, "finemath_3_plus": 0.06306}),
        (mixtures.DESSERT_REPAIRED, {"flan": 0.08012, "all_math": 0.01988}),
        (mixtures.PHOENIX_WARM, {"dclm_baseline": 0.25655, "nemotron_medium": 0.22819}),
        (mixtures.PHOENIX, {"nemotron_hq_synth": 0.24824, "starcoderdata": 0.02282}),
        (mixtures.STARLING, {"nemotron_medium": 0.22097, "pes2o": 0.05198, "medu_science_qa": 0.00107}),
    ],
)
def test_normalised_weights_are_the_published_ones(weights, published):
    shares = scaled(weights, 1.0)
    for component, share in published.items():
        assert shares[component] == pytest.approx(share, abs=6e-6)


def test_the_bad_dessert_has_the_two_shares_swapped():
    assert sum(mixtures.DESSERT_BAD[name] for name in mixtures.DESSERT) == pytest.approx(0.2)
    assert sum(mixtures.DESSERT_REPAIRED[name] for name in mixtures.DESSERT) == pytest.approx(0.1)


def test_stand_ins_keep_the_weight_of_each_role_and_share_it_by_size():
    sources = {"web": ("web", 30.0), "blogs": ("web", 10.0), "code": ("code", 5.0), "math": ("math", 5.0)}
    weights = weights_by_source(mixtures.DCLM, sources)
    assert weights == pytest.approx({"web": 3.8 * 0.75, "blogs": 3.8 * 0.25, "code": 0.25, "math": 0.055})


def test_a_role_without_source_leaves_its_weight_to_the_web():
    weights = weights_by_source(mixtures.COOLDOWN_V1, {"web": ("web", 1.0), "math": ("math", 1.0)})
    assert set(weights) == {"web", "math"}
    assert sum(weights.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("stem", "role"),
    [
        ("wiki_en", "encyclopedia"),
        ("code_multi", "code"),
        ("my-notes", "web"),
        ("math_tex", "math"),
        ("math.0001", "math"),
        ("Code 2", "code"),
        ("wiki.en", "encyclopedia"),
        ("mathematics", "web"),
    ],
)
def test_the_first_word_of_a_file_gives_its_role(stem, role):
    assert role_of_file(stem) == role
