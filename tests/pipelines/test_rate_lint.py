"""Warnings about phases whose decay begins or ends elsewhere; the recipe as written has none."""

import pytest

from pipelines.corpus import eight_b_corpus, laptop_corpus
from pipelines.lint import lint_rate
from pipelines.phases import phases_in, run_phases_in
from pipelines.scales import EIGHT_B, LAPTOP
from pipelines.timeline import render, timeline_of
from pipelines.tootsie import branches, phases
from tests.catalogue import check_message


@pytest.fixture(scope="module")
def laptop():
    return phases(LAPTOP, laptop_corpus(LAPTOP))


def rates_of(steps):
    run_phases = run_phases_in(phases_in(steps))
    return {name: found for name, each in run_phases.items() if (found := [*lint_rate(each, run_phases)])}


def cure_of(step):
    """Return the cure of the step's first warning, whose text is in the catalogue."""
    warning = rates_of([step])[step.name][0]
    check_message(warning.text)
    return dict(warning.cure)


@pytest.mark.parametrize(("scale", "corpus"), [(LAPTOP, laptop_corpus), (EIGHT_B, eight_b_corpus)])
def test_the_recipe_as_written_raises_no_warning(scale, corpus):
    main_line = phases(scale, corpus(scale))
    every = main_line | branches(scale, corpus(scale), main_line)
    assert rates_of(every.values()) == {}


def test_a_phase_that_starts_before_its_decay_gets_a_warning_with_the_length_of_the_constant_rate(laptop):
    early = laptop["starling"].fork("early", start=laptop["phoenix"].at(step=1100))
    assert cure_of(early) == {"learning_rate.start_step": "1100", "until_step": "1200"}
    assert early.config.learning_rate(1200) == early.config.learning_rate(1100) > early.config.learning_rate(1202)
    moved = early.fork("moved", **{"learning_rate.start_step": 1100, "until_step": 1200})
    assert rates_of([moved]) == {} and run_phases_in(phases_in([moved]))["moved"].steps == 100
    assert cure_of(early.fork("never", until_step=1150)) == {"learning_rate.start_step": "1100"}


def test_a_decay_longer_or_shorter_than_its_phase_gets_a_warning(laptop):
    starling = laptop["starling"]
    assert cure_of(starling.fork("longer", **{"learning_rate.decay_steps": 200})) == {"until_step": "1401"}
    shorter = starling.fork("shorter", **{"learning_rate.decay_steps": 99})
    assert cure_of(shorter) == {"learning_rate.decay_steps": "100"}
    assert cure_of(laptop["phoenix"].fork("shorter", until_step=930)) == {"until_step": "941"}


def test_a_phase_that_starts_within_a_decay_gets_a_warning_unless_it_continues_the_decay(laptop):
    late = laptop["phoenix"].at(step=1150).then("late", learning_rate=laptop["jellyfish"].config.learning_rate)
    assert "learning_rate.start_step" in cure_of(late)
    half = laptop["starling"].fork("half", until_step=1251)
    rest = half.then("rest", until_step=1301)
    assert rates_of([rest]) == {}
    assert "half" in rates_of([half]), "no phase continues it"
    other = half.then(
        "other",
        until_step=1301,
        learning_rate=laptop["starling"].fork("x", **{"learning_rate.decay_steps": 90}).config.learning_rate,
        acknowledge=("learning_rate",),
    )
    cure_of(other)


def test_the_timeline_says_where_a_decay_begins_and_what_is_odd_about_it(laptop):
    early = laptop["starling"].fork("early", start=laptop["phoenix"].at(step=1100))
    output = render(timeline_of(phases_in([early]), {}, names=("early",))).splitlines()
    assert "  ~ learning_rate     ->  linear 5.1e-3 → 1.5e-3 over 100 steps from step 1,201" in output
    (note,) = [
        index for index, line in enumerate(output) if line.startswith("  note           its decay starts at step")
    ]
    assert output[note + 1].split(": ")[1] == "--set early.learning_rate.start_step=1100 --set early.until_step=1200"
