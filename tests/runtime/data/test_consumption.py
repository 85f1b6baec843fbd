"""Planned consumption is what the loader then draws, and bad mixtures are found."""

import dataclasses
import subprocess
import sys

import pytest

from runtime.data.allocation import allocate
from runtime.data.consumption import PhaseSpan, consumption
from runtime.data.mixing.odm import OdmPaper
from runtime.data.mixture import MixtureSchedule, MixtureSegment, apportioned
from tests.catalogue import check_message, expect_error

CHANGING = MixtureSchedule((MixtureSegment(0, {"a": 3.0, "b": 1.0}), MixtureSegment(13, {"b": 1.0, "c": 2.0})))
SPANS = (
    PhaseSpan(name="first", start_step=0, until_step=20, global_batch_size=7, sequence_length=100, mixture=CHANGING),
    PhaseSpan(name="second", start_step=20, until_step=33, global_batch_size=11, sequence_length=100, mixture=CHANGING),
)


def report(spans=SPANS, max_epochs=1_000.0, **num_tokens):
    sizes = {"a": 5_000, "b": 5_000, "c": 5_000} | num_tokens
    return consumption(spans, num_tokens=sizes, max_epochs=max_epochs)


def test_the_report_is_what_is_drawn_step_by_step():
    carry: dict[str, int] = {}
    drawn = {"a": 0, "b": 0, "c": 0}
    for span in SPANS:
        for step in range(span.start_step, span.until_step):
            weights = apportioned(dict(span.mixture.segment_at(step).weights))
            counts, carry = allocate(weights, carry, span.global_batch_size)
            drawn = {source: drawn[source] + counts.get(source, 0) for source in drawn}
    reported = {source: sum(use.num_tokens for use in report().uses if use.source == source) for source in drawn}
    for source, count in drawn.items():
        assert abs(reported[source] - 100 * count) <= 200
    last = {use.source: use.epochs for use in report().uses}
    assert last["b"] == pytest.approx(drawn["b"] / 50, abs=0.05)


def test_skipped_batches_count_as_read_by_the_mixture_of_the_first_step():
    begin = dataclasses.replace(SPANS[0], start_step=10, skip_batches=30)
    uses = {use.source: use for use in report([begin]).uses}
    # Three steps and thirty batches by the first segment, seven steps by the second.
    assert uses["a"].num_tokens == round(33 * 7 * 100 * 3 / 4)
    assert uses["c"].num_tokens == round(7 * 7 * 100 * 2 / 3)
    assert uses["a"].epochs == pytest.approx(33 * 7 * 3 / 4 / 50)
    later = dataclasses.replace(begin, start_step=13)
    assert "a" not in {use.source for use in report([later]).uses}
    assert sum(use.num_tokens for use in report([later]).uses) == (7 + 30) * 7 * 100


def test_tokens_of_all_sources_sum_to_the_tokens_of_the_phase():
    uses = report().uses
    assert sum(use.num_tokens for use in uses if use.phase == "first") == 20 * 7 * 100
    assert {use.source for use in uses if use.phase == "second"} == {"b", "c"}


def test_a_source_read_too_often_is_found_with_its_phase():
    (finding,) = report(max_epochs=2.5, a=100_000, b=100_000).findings
    assert (finding.kind, finding.source) == ("over_epochs", "c")
    check_message(str(finding))


def test_sources_that_cannot_be_drawn_are_found():
    dust = MixtureSchedule.constant({"a": 1.0, "b": 1e-6, "c": 1.0, "d": 1.0})
    spans = [
        PhaseSpan(name="only", start_step=0, until_step=10, global_batch_size=8, sequence_length=100, mixture=dust)
    ]
    found = report(spans, c=99).findings
    assert [finding.kind for finding in found] == ["never_drawn", "too_small", "no_cache"]
    check_message("\n".join(map(str, found)))


def test_a_sound_mixture_has_no_findings():
    assert report().findings == ()


def test_a_phase_of_decreasing_steps_is_refused():
    with expect_error(ValueError):
        PhaseSpan(name="x", start_step=5, until_step=4, global_batch_size=8, sequence_length=100, mixture=CHANGING)


def test_a_plan_reads_mixtures_without_heavy_imports():
    code = (
        "import sys, runtime.data.consumption; print([m for m in ('numpy', 'jax', 'tensorstore') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_declaring_the_tokenize_step_loads_nothing_heavy():
    heavy = "('numpy', 'jax', 'tensorstore', 'tokenizers', 'pyarrow', 'ray')"
    code = f"import sys, steps.tokenize; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_sequences_drawn_before_the_first_phase_count():
    spans = [
        PhaseSpan(
            name="later", start_step=20, until_step=21, global_batch_size=4, sequence_length=100, mixture=CHANGING
        )
    ]
    found = consumption(
        spans,
        num_tokens={"a": 1_000, "b": 1_000, "c": 1_000},
        drawn_before={"a": 1_000, "b": 39},
    )
    # One third of four sequences, after 39 of a cache that holds ten; "a" is in no phase any more.
    assert [use.epochs for use in found.uses if use.source == "b"] == [pytest.approx((39 + 4 / 3) / 10)]
    assert [(finding.kind, finding.source) for finding in found.findings] == [("over_epochs", "b")]


def test_a_learning_policy_is_planned_by_the_written_mixture():
    mixture = MixtureSchedule.constant({"a": 8.0, "b": 1.0, "c": 1.0})
    fields = {"start_step": 0, "until_step": 30, "global_batch_size": 4, "sequence_length": 100, "mixture": mixture}
    span = PhaseSpan(name="only", mixing=OdmPaper(alpha=0.9), **fields)
    uses = report([span]).uses
    assert {use.source: use.num_tokens for use in uses} == {"a": 9_600, "b": 1_200, "c": 1_200}


def test_a_phase_of_longer_sequences_counts_its_own_tokens():
    """A source of 5,050 tokens is 50 sequences of 100, or 12 of 400."""
    mixture = MixtureSchedule.constant({"a": 1.0})
    fields = {"global_batch_size": 5, "mixture": mixture}
    short = PhaseSpan(name="short", start_step=0, until_step=10, sequence_length=100, **fields)
    long = PhaseSpan(name="long", start_step=10, until_step=16, sequence_length=400, **fields)
    found = consumption([short, long], num_tokens={"a": 5_050})
    assert [(use.phase, use.num_tokens, use.epochs) for use in found.uses] == [
        ("short", 5_000, 1.0),
        ("long", 12_000, 3.5),
    ]
    (too_small,) = consumption([short, long], num_tokens={"a": 399}).findings
    assert (too_small.kind, too_small.source) == ("too_small", "a")
