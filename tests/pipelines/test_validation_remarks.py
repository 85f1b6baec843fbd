"""What is said of a phase that is never measured on its way; of the recipe as written, nothing."""

import dataclasses

import pytest

from pipelines.corpus import eight_b_corpus, laptop_corpus
from pipelines.scales import EIGHT_B, LAPTOP
from pipelines.timeline import legs_in, phases_in, render
from pipelines.tootsie import branches, phases
from pipelines.validation_remarks import validation_remarks


@pytest.fixture(scope="module")
def laptop():
    return phases(LAPTOP, laptop_corpus(LAPTOP))


def said_of(step):
    found = validation_remarks(legs_in(phases_in([step]))).get(step.name, ())
    return [(warning.text, dict(warning.cure)) for warning in found]


@pytest.mark.parametrize(("scale", "corpus"), [(LAPTOP, laptop_corpus), (EIGHT_B, eight_b_corpus)])
def test_of_the_recipe_as_written_there_is_nothing_to_say(scale, corpus):
    main_line = phases(scale, corpus(scale))
    every = main_line | branches(scale, corpus(scale), main_line)
    assert validation_remarks(legs_in(phases_in(every.values()))) == {}


def test_a_phase_that_is_never_measured_on_its_way_is_said_to_be(laptop):
    starling = laptop["starling"]
    assert (starling.config.begin_step, starling.config.until_step) == (1201, 1301)
    ((text, cure),) = said_of(starling.fork("rare", validate_every_steps=1301))
    assert text == (
        "validate_every_steps is 1,301, and the phase goes from step 1,201 to 1,301: held-out text is measured as it "
        "begins and as it ends"
    )
    assert cure == {"validate_every_steps": "10"} and said_of(starling.fork("often", validate_every_steps=10)) == []


@pytest.mark.parametrize("every", [0, 100, 1300])
def test_one_that_measures_nothing_or_on_its_way_is_left_alone(laptop, every):
    assert said_of(laptop["starling"].fork("other", validate_every_steps=every)) == []


def test_one_whose_number_is_its_length_is_left_alone(laptop):
    assert said_of(laptop["kestrel"].fork("short", until_step=120)) == []


def test_a_short_phase_with_the_number_of_the_one_before_is_left_alone(laptop):
    brief = laptop["starling"].fork("brief", until_step=1203)
    assert said_of(brief) == [] and said_of(brief.fork("own", validate_every_steps=121)) != []
    ((text, cure),) = said_of(laptop["kestrel"].fork("brief", until_step=3))
    assert text.startswith("validate_every_steps is 120, and the phase goes from step 0 to 3") and cure == {
        "validate_every_steps": "1"
    }


@pytest.mark.parametrize("every", [2, 120, 5_000])
def test_a_phase_of_one_update_is_left_alone_for_no_number_would_measure_between(laptop, every):
    assert said_of(laptop["starling"].fork("one", until_step=1202, validate_every_steps=every)) == []
    assert said_of(laptop["starling"].fork("two", until_step=1203, validate_every_steps=5_000)) != []


def test_a_number_too_large_for_every_phase_is_said_of_every_phase_and_not_of_the_first_alone():
    main_line = phases(dataclasses.replace(LAPTOP, validate_every_steps=100_000), laptop_corpus(LAPTOP))
    assert list(validation_remarks(legs_in(phases_in(main_line.values())))) == list(main_line)


def test_a_number_is_taken_over_through_phases_that_are_too_short_for_it(laptop):
    brief = laptop["starling"].then("brief", until_step=1_305)
    assert said_of(brief.then("briefer", until_step=1_310)) == []


def test_the_timeline_says_it_and_what_to_type_instead(laptop):
    rare = laptop["starling"].fork("rare", validate_every_steps=5_000)
    said = render(phases_in([rare]), {}, names=("rare",)).splitlines()
    (note,) = [index for index, line in enumerate(said) if "validate_every_steps is 5,000" in line]
    assert said[note + 1].split(": ")[1] == "--set rare.validate_every_steps=10"
