"""Pins down: the report of what a run will draw is what the loader then draws, and bad mixtures are found."""

import dataclasses
import subprocess
import sys

import pytest

from runtime.data.allocation import allocate, integer_weights
from runtime.data.consumption import Leg, NeverDrawn, NoCache, OverEpoch, TooSmall, consumption
from runtime.data.mixing.odm import OdmPaper
from runtime.data.mixing.static import Proportional, Stratified
from runtime.data.mixture import MixtureSchedule, MixtureSegment
from tests.catalogue import expect_error

CHANGING = MixtureSchedule((MixtureSegment(0, {"a": 3.0, "b": 1.0}), MixtureSegment(13, {"b": 1.0, "c": 2.0})))
LEGS = (
    Leg(name="first", start_step=0, until_step=20, global_batch_size=7, sequence_length=100, mixture=CHANGING),
    Leg(name="second", start_step=20, until_step=33, global_batch_size=11, sequence_length=100, mixture=CHANGING),
)


def report(legs=LEGS, max_epochs=1_000.0, **num_tokens):
    sizes = {"a": 5_000, "b": 5_000, "c": 5_000} | num_tokens
    return consumption(legs, num_tokens=sizes, max_epochs=max_epochs)


def test_the_report_is_what_is_drawn_step_by_step():
    carry: dict[str, int] = {}
    drawn = {"a": 0, "b": 0, "c": 0}
    for leg in LEGS:
        for step in range(leg.start_step, leg.until_step):
            weights = integer_weights(dict(leg.mixture.segment_at(step).weights))
            counts, carry = allocate(weights, carry, leg.global_batch_size)
            drawn = {source: drawn[source] + counts.get(source, 0) for source in drawn}
    reported = {source: sum(use.num_tokens for use in report().uses if use.source == source) for source in drawn}
    for source, count in drawn.items():
        assert abs(reported[source] - 100 * count) <= 200
    last = {use.source: use.epochs for use in report().uses}
    assert last["b"] == pytest.approx(drawn["b"] / 50, abs=0.05)


def test_batches_that_are_left_out_count_as_read_by_the_mixture_of_the_first_step_alone():
    begin = dataclasses.replace(LEGS[0], start_step=10, skip_batches=30)
    uses = {use.source: use for use in report([begin]).uses}
    # Three steps and thirty batches by the first segment, seven steps by the second.
    assert uses["a"].num_tokens == round(33 * 7 * 100 * 3 / 4)
    assert uses["c"].num_tokens == round(7 * 7 * 100 * 2 / 3)
    assert uses["a"].epochs == pytest.approx(33 * 7 * 3 / 4 / 50)
    later = dataclasses.replace(begin, start_step=13)
    assert "a" not in {use.source for use in report([later]).uses}
    assert sum(use.num_tokens for use in report([later]).uses) == (7 + 30) * 7 * 100


def test_tokens_of_all_sources_sum_to_those_of_the_leg():
    uses = report().uses
    assert sum(use.num_tokens for use in uses if use.leg == "first") == 20 * 7 * 100
    assert {use.source for use in uses if use.leg == "second"} == {"b", "c"}


def test_a_source_read_too_often_is_found_with_the_leg_in_which_it_happens():
    (finding,) = report(max_epochs=2.5, a=100_000, b=100_000).findings
    assert finding == OverEpoch("c", finding.epochs, 2.5, "second")
    assert str(finding).startswith("mixture: 'c' is read 2.56 times in all (limit 2.5, passed in second)")


def test_sources_that_cannot_be_drawn_are_found():
    dust = MixtureSchedule.constant({"a": 1.0, "b": 1e-6, "c": 1.0, "d": 1.0})
    legs = [Leg(name="only", start_step=0, until_step=10, global_batch_size=8, sequence_length=100, mixture=dust)]
    found = report(legs, c=99).findings
    assert [type(finding) for finding in found] == [NeverDrawn, TooSmall, NoCache]
    assert "holds 99 tokens, less than one sequence of 100" in str(found[1])
    assert "never drawn; raise its weight" in str(found[0])
    assert "'d' has a weight but no token cache" in str(found[2])


def test_a_sound_mixture_has_no_findings():
    assert report().findings == ()


def test_a_leg_that_runs_backwards_is_refused():
    with expect_error(ValueError):
        Leg(name="x", start_step=5, until_step=4, global_batch_size=8, sequence_length=100, mixture=CHANGING)


def test_a_plan_reads_mixtures_without_heavy_imports():
    code = (
        "import sys, runtime.data.consumption; print([m for m in ('numpy', 'jax', 'tensorstore') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_declaring_the_tokenize_step_loads_nothing_heavy():
    heavy = "('numpy', 'jax', 'tensorstore', 'tokenizers', 'pyarrow', 'ray')"
    code = f"import sys, steps.tokenize; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_what_was_drawn_before_the_first_leg_counts_too():
    legs = [Leg(name="later", start_step=20, until_step=21, global_batch_size=4, sequence_length=100, mixture=CHANGING)]
    found = consumption(
        legs,
        num_tokens={"a": 1_000, "b": 1_000, "c": 1_000},
        drawn_before={"a": 1_000, "b": 39},
    )
    # One third of four sequences, after 39 of a cache that holds ten; "a" is in no leg any more.
    assert [use.epochs for use in found.uses if use.source == "b"] == [pytest.approx((39 + 4 / 3) / 10)]
    assert [type(finding) for finding in found.findings] == [OverEpoch]
    assert found.findings[0].source == "b"


def test_the_policies_that_go_by_number_or_size_are_summed_up_as_they_draw():
    mixture = MixtureSchedule.constant({"a": 8.0, "b": 1.0, "c": 1.0})
    fields = {"start_step": 0, "until_step": 30, "global_batch_size": 4, "sequence_length": 100, "mixture": mixture}
    sizes = {"a": 1_000, "b": 2_000, "c": 3_099}
    expected = {
        Stratified(): {"a": 4_000, "b": 4_000, "c": 4_000},
        Proportional(): {"a": 2_000, "b": 4_000, "c": 6_000},
        OdmPaper(alpha=0.9): {"a": 9_600, "b": 1_200, "c": 1_200},
    }
    for mixing, tokens in expected.items():
        leg = Leg(name="only", mixing=mixing, **fields)
        uses = consumption(
            [leg],
            num_tokens=sizes,
        ).uses
        assert {use.source: use.num_tokens for use in uses} == tokens


def test_a_leg_of_longer_sequences_counts_its_own_tokens():
    """A source of 5,050 tokens is 50 sequences of 100, or 12 of 400."""
    mixture = MixtureSchedule.constant({"a": 1.0})
    fields = {"global_batch_size": 5, "mixture": mixture}
    short = Leg(name="short", start_step=0, until_step=10, sequence_length=100, **fields)
    long = Leg(name="long", start_step=10, until_step=16, sequence_length=400, **fields)
    found = consumption([short, long], num_tokens={"a": 5_050})
    assert [(use.leg, use.num_tokens, use.epochs) for use in found.uses] == [
        ("short", 5_000, 1.0),
        ("long", 12_000, 3.5),
    ]
    (too_small,) = consumption([short, long], num_tokens={"a": 399}).findings
    assert too_small == TooSmall("a", 399, 400)
