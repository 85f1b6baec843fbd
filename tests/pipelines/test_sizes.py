"""Sizes of the flagship: what the rules derive, at any length, and that every part of the recipe keeps its share."""

import dataclasses
import math

import pytest

from marin_dag.errors import UserError
from pipelines import tootsie
from pipelines.corpus import sampled_corpus, sources_at
from pipelines.length import (
    LEAST_STEPS,
    PARTS,
    evaluated_tokens,
    hours_named,
    main_line_tokens,
    tokens_by_part,
    tokens_named,
)
from pipelines.mixtures import scaled
from pipelines.sampled_sources import MIXTURES, sampled_weights
from pipelines.scales import EIGHT_B, LAPTOP
from pipelines.sizes import SCALES, SIZES, parameters_without_embeddings, scale_at
from runtime.optim.schedule import WsdS
from tests.catalogue import expect_error


def test_the_ladder_has_every_size_and_names_it_after_its_parameters():
    assert list(SCALES) == ["laptop", "30m", "125m", "400m", "1b", "3b", "8b", "32b"]
    assert SCALES["laptop"] is LAPTOP and SCALES["8b"] is EIGHT_B
    for name in SIZES:
        named = float(name[:-1]) * {"m": 1e6, "b": 1e9}[name[-1]]
        assert parameters_without_embeddings(SCALES[name].model) == pytest.approx(named, rel=0.1)
        assert SCALES[name].model.use_qk_norm == (name == "32b")


def test_the_rules_give_the_eight_b_its_own_shape_batch_and_rate():
    eight_b = EIGHT_B.model
    assert (eight_b.intermediate_size, eight_b.num_attention_heads) == (eight_b.hidden_size * 7 // 2, 32)
    small, large, largest = (batch.global_batch_size for batch in SCALES["3b"].batches)
    assert (large, largest) == (3 * small, 4 * small)
    # The Step Law's own constants (arXiv:2503.04715) give the derived rate, relative to what they give the 8B.
    for name in SIZES:
        scale = SCALES[name]
        ratio = step_law(scale) / step_law(EIGHT_B)
        assert scale.rate == pytest.approx(ratio, rel=0.05)
        tokens = scale.batches[1].global_batch_size * scale.sequence_length
        of_8b = EIGHT_B.batches[1].global_batch_size * EIGHT_B.sequence_length
        wanted = of_8b * (main_line_tokens(scale) / main_line_tokens(EIGHT_B)) ** 0.571
        assert wanted / 1.5 < tokens < wanted * 1.5


def step_law(scale):
    return 1.79 * parameters_without_embeddings(scale.model) ** -0.713 * main_line_tokens(scale) ** 0.307


@pytest.mark.parametrize("name", SCALES)
def test_every_part_keeps_its_share_of_the_tokens(name):
    template = LAPTOP if name == "laptop" else EIGHT_B
    whole = main_line_tokens(SCALES[name])
    scale = scale_at(name, whole / 2)
    assert main_line_tokens(scale) == pytest.approx(whole / 2, rel=0.01)
    wanted, found = tokens_by_part(template), tokens_by_part(scale)
    for part, batch in PARTS.items():
        one_step = scale.batches[batch.batch].global_batch_size * scale.sequence_length
        share = wanted[part] / main_line_tokens(template)
        # Kestrel is a whole number of cycles and a step.
        assert found[part] == pytest.approx(share * main_line_tokens(scale), rel=0.03, abs=2 * one_step), part
    WsdS(1.0, 0.1, scale.warmup_steps, scale.kestrel_cycles)  # which checks that the cycles meet
    assert (scale.boundaries.kestrel - 1) % scale.kestrel_cycles[1].cycle_steps == 0


@pytest.mark.parametrize(("name", "template"), [("8b", EIGHT_B), ("32b", EIGHT_B), ("laptop", LAPTOP)])
def test_a_length_of_its_own_keeps_checkpoints_validations_and_milestones(name, template):
    fields = ("checkpoint_every_steps", "keep_good_every_steps", "validate_every_steps")
    whole = main_line_tokens(SCALES[name])
    for tokens in (whole, 2 * whole):
        scale = scale_at(name, tokens)
        assert all(getattr(scale, field) <= getattr(template, field) for field in fields)
        assert scale.publish_every_steps == template.publish_every_steps
    # Of a short run, the share is the smaller.
    short = scale_at("125m", 1.2e8)
    assert all(getattr(short, field) < getattr(EIGHT_B, field) for field in fields)
    assert short.boundaries.deeper_starling / short.validate_every_steps > 40


def test_a_length_too_short_for_a_part_is_refused_with_the_least_that_is_not():
    with expect_error(UserError) as caught:
        scale_at("125m", 5e7)
    least = tokens_named(str(caught.value).partition("--tokens ")[2].partition(",")[0])
    shortest = min(tokens_by_part(scale := scale_at("125m", least)).items(), key=lambda item: item[1])
    assert shortest[1] >= LEAST_STEPS * scale.batches[PARTS[shortest[0]].batch].global_batch_size * 2048
    with expect_error(UserError):
        scale_at("125m", 0.98 * least)


def test_evaluations_are_those_of_the_phases_at_their_ends_and_while_they_train():
    scale = scale_at("125m", 1e9)
    without = dataclasses.replace(scale, validation_tokens_per_source=0)
    phases = tootsie.phases(scale, sampled_corpus(scale))
    every = phases | tootsie.branches(scale, sampled_corpus(scale), phases)
    sets = sum(1 + len(phase.config.averages) for phase in every.values())
    assert evaluated_tokens(without, 8) == 8 * scale.evaluation_tokens * sets
    validated = evaluated_tokens(scale, 1) - evaluated_tokens(without, 1)
    measured = validated / scale.validation_tokens_per_source
    assert 100 < measured < 300 and evaluated_tokens(scale, 3) == 3 * evaluated_tokens(scale, 1)


def test_lengths_are_read_as_people_write_them():
    assert tokens_named("3B") == 3_000_000_000
    for wrong in ("many", "1,5B", "1e400"):
        with expect_error(UserError):
            tokens_named(wrong)
    assert hours_named("0.5") == 0.5
    for wrong in ("long", "0", "inf", "nan"):
        with expect_error(UserError):
            hours_named(wrong)


def test_shares_of_data_are_sized_by_the_mixtures_of_the_phases():
    scale = SCALES["125m"]
    main_line = tootsie.phases(scale, sampled_corpus(scale))
    for part, weights in MIXTURES.items():
        config = main_line[part.removesuffix("_warm")].config
        step = getattr(scale.boundaries, part) - 1
        shares = config.mixture.shares_at(step)
        assert shares == pytest.approx(scaled(sampled_weights(weights), 1.0)), part


def test_a_size_downloads_the_share_of_the_data_that_it_needs():
    sizes = {name: sources_at(SCALES[name]) for name in ("30m", "125m", "3b")}
    downloaded = {name: sum(source.size_in_bytes for source in sources.values()) for name, sources in sizes.items()}
    assert downloaded["30m"] < downloaded["125m"] < 30e9 < downloaded["3b"]
    for name, sources in sizes.items():
        assert sum(source.num_tokens for source in sources.values()) > main_line_tokens(SCALES[name])
        assert all(source.share == 2.0 ** round(math.log2(source.share)) for source in sources.values())
