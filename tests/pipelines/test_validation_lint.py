"""Warnings of phases that are never measured on their way; the recipe as written has none."""

import dataclasses

import pytest

from pipelines.corpus import eight_b_corpus, laptop_corpus
from pipelines.lint import lint_validation
from pipelines.phases import legs_in, phases_in
from pipelines.scales import EIGHT_B, LAPTOP
from pipelines.timeline import render, timeline_of
from pipelines.tootsie import branches, phases
from tests.catalogue import check_message


@pytest.fixture(scope="module")
def laptop():
    return phases(LAPTOP, laptop_corpus(LAPTOP))


def linted(steps):
    legs = legs_in(phases_in(steps))
    return {name: found for name, leg in legs.items() if (found := [*lint_validation(leg, legs)])}


def warnings_of(step):
    found = linted([step]).get(step.name, ())
    return [(warning.text, dict(warning.cure)) for warning in found]


@pytest.mark.parametrize(("scale", "corpus"), [(LAPTOP, laptop_corpus), (EIGHT_B, eight_b_corpus)])
def test_the_recipe_as_written_has_no_warning(scale, corpus):
    main_line = phases(scale, corpus(scale))
    every = main_line | branches(scale, corpus(scale), main_line)
    assert linted(every.values()) == {}


def test_a_phase_never_measured_on_its_way_is_a_warning(laptop):
    starling = laptop["starling"]
    assert (starling.config.begin_step, starling.config.until_step) == (1201, 1301)
    ((text, cure),) = warnings_of(starling.fork("rare", validate_every_steps=1301))
    check_message(text)
    assert cure == {"validate_every_steps": "10"} and warnings_of(starling.fork("often", validate_every_steps=10)) == []


@pytest.mark.parametrize("every", [0, 100, 1300])
def test_a_phase_without_validation_or_measured_on_its_way_has_no_warning(laptop, every):
    assert warnings_of(laptop["starling"].fork("other", validate_every_steps=every)) == []


def test_a_value_equal_to_the_length_has_no_warning(laptop):
    assert warnings_of(laptop["kestrel"].fork("short", until_step=120)) == []


def test_a_short_phase_with_an_inherited_value_has_no_warning(laptop):
    brief = laptop["starling"].fork("brief", until_step=1203)
    assert warnings_of(brief) == [] and warnings_of(brief.fork("own", validate_every_steps=121)) != []
    ((text, cure),) = warnings_of(laptop["kestrel"].fork("brief", until_step=3))
    assert cure == {"validate_every_steps": "1"}
    check_message(text)


@pytest.mark.parametrize("every", [2, 120, 5_000])
def test_a_phase_of_one_step_has_no_warning(laptop, every):
    assert warnings_of(laptop["starling"].fork("one", until_step=1202, validate_every_steps=every)) == []
    assert warnings_of(laptop["starling"].fork("two", until_step=1203, validate_every_steps=5_000)) != []


def test_a_value_too_large_for_every_phase_warns_in_every_phase():
    main_line = phases(dataclasses.replace(LAPTOP, validate_every_steps=100_000), laptop_corpus(LAPTOP))
    assert list(linted(main_line.values())) == list(main_line)


def test_a_value_is_inherited_through_short_phases(laptop):
    brief = laptop["starling"].then("brief", until_step=1_305)
    assert warnings_of(brief.then("briefer", until_step=1_310)) == []


def test_the_timeline_has_the_warning_and_the_command(laptop):
    rare = laptop["starling"].fork("rare", validate_every_steps=5_000)
    output = render(timeline_of(phases_in([rare]), {}, names=("rare",))).splitlines()
    (note,) = [index for index, line in enumerate(output) if "validate_every_steps is 5,000" in line]
    assert output[note + 1].split(": ")[1] == "--set rare.validate_every_steps=10"
