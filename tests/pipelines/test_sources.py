"""Pins down: every component of the recipe has its data set, and sources say what they are."""

import gzip

import pytest

from pipelines import mixtures
from pipelines.roles import ROLES, role_of_file
from pipelines.sources import corpus_sources, documents_of, eight_b_sources, evaluation_items_step, laptop_sources
from steps.download import Wheel

COMPONENTS = {name for value in vars(mixtures).values() if isinstance(value, dict) for name in value if name.islower()}
STAGES = ["decontaminate", "dedup", "filter", "extract", "download"]


def stages(source):
    step, names = documents_of(source, evaluation_items_step()), []
    while True:
        names.append(step.name)
        following = [given.step for path, given in step.inputs if path in ("documents", "download")]
        if not following:
            return names
        (step,) = following


def test_every_component_of_the_mixtures_has_its_data_set():
    sources = eight_b_sources()
    assert COMPONENTS - {"__name__"} >= set(sources)
    for weights in (mixtures.DCLM, mixtures.COOLDOWN_V1, mixtures.PHOENIX_WARM, mixtures.STARLING, mixtures.SPOONBILL):
        assert set(weights) <= set(sources)


def test_the_laptop_has_seven_sources_that_play_every_role():
    sources = laptop_sources()
    assert {source.role for source in sources.values()} == set(ROLES)
    assert len({source.fetch for source in sources.values()}) == len(sources) == 7
    assert all(source.licence and source.description for source in sources.values())


@pytest.mark.parametrize("name", sorted(laptop_sources()))
def test_a_laptop_source_goes_through_all_five_stages(name):
    assert stages(laptop_sources()[name]) == [f"{stage}/{name}" for stage in STAGES]


def test_a_published_corpus_is_used_as_it_is_and_only_checked():
    dclm = eight_b_sources()["dclm_baseline"]
    assert stages(dclm) == ["decontaminate/dclm_baseline", "extract/dclm_baseline", "download/dclm_baseline"]
    assert dclm.decontamination == "report"


def test_compiled_packages_are_the_same_file_on_every_machine():
    wheels = [source.fetch for source in laptop_sources().values() if isinstance(source.fetch, Wheel)]
    assert [wheel.name for wheel in wheels if wheel.platform_tags] == ["scikit-learn"]


def test_own_files_become_sources_in_the_role_of_their_name(tmp_path):
    for name in ("wiki_de.jsonl.gz", "notes.jsonl.gz"):
        (tmp_path / name).write_bytes(gzip.compress(b'{"text": "x"}\n'))
    found = corpus_sources(str(tmp_path), role_of_file)
    assert {name: source.role for name, source in found.items()} == {"wiki_de": "encyclopedia", "notes": "web"}


def test_two_own_files_of_one_name_are_refused(tmp_path):
    for name in ("notes.jsonl.gz", "notes.jsonl"):
        (tmp_path / name).write_bytes(gzip.compress(b'{"text": "x"}\n'))
    with pytest.raises(ValueError, match="two sources have one name"):
        corpus_sources(str(tmp_path), role_of_file)
