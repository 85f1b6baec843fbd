"""Sources: every component of the recipe has its data set, and each source its role."""

import argparse
import fnmatch
import gzip
import json
import re
import uuid

import fsspec
import pytest

from marin_dag.errors import UserError
from pipelines import mixtures
from pipelines.corpus import corpus_of, laptop_corpus
from pipelines.eight_b_sources import eight_b_sources
from pipelines.scales import LAPTOP
from pipelines.source import PRIORITY, clean_documents, documents_of
from pipelines.sources import OWN_FILES, corpus_sources, evaluation_items_step, laptop_sources
from pipelines.tootsie import add_arguments, phases, tootsie
from runtime.text.minhash import MinHash
from steps.dedup import dedup
from steps.evaluation_items import evaluation_items
from steps.fetch import Wheel
from tests.catalogue import expect_error


@pytest.fixture
def tmp_path(tmp_path):
    """Return a folder with one name in every test, so that messages do not depend on the tests that run."""
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


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


def test_the_laptop_has_seven_sources_in_every_role():
    sources = laptop_sources()
    assert {source.role for source in sources.values()} == set(PRIORITY)
    assert len({source.fetch for source in sources.values()}) == len(sources) == 7
    assert all(source.licence and source.description for source in sources.values())


@pytest.mark.parametrize("name", sorted(laptop_sources()))
def test_a_laptop_source_has_all_five_steps(name):
    assert stages(laptop_sources()[name]) == [f"{stage}/{name}" for stage in STAGES]


def test_a_published_corpus_is_only_checked():
    dclm = eight_b_sources()["dclm_baseline"]
    assert stages(dclm) == ["decontaminate/dclm_baseline", "extract/dclm_baseline", "download/dclm_baseline"]
    assert dclm.decontamination == "report"


def test_compiled_packages_are_the_same_file_on_every_machine():
    wheels = [source.fetch for source in laptop_sources().values() if isinstance(source.fetch, Wheel)]
    assert [wheel.name for wheel in wheels if wheel.platform_tags] == ["scikit-learn"]


def test_a_text_of_two_sources_stays_in_the_one_of_higher_priority():
    documents = clean_documents(laptop_sources().values(), evaluation_items_step())
    deduplicated = {name: next(i.step for f, i in step.inputs if f == "documents") for name, step in documents.items()}
    before = {name: [item.step.name for item in step.config.against] for name, step in deduplicated.items()}
    assert before["textbook"] == []
    assert before["papers"] == ["dedup/textbook", "dedup/encyclopedia"]
    assert len(before["web"]) == 6


def test_sources_with_different_signatures_are_refused_by_the_plan():
    documents = clean_documents(laptop_sources().values(), evaluation_items_step())
    web = next(item.step for field, item in documents["web"].inputs if field == "documents")
    assert dedup.check is not None
    dedup.check(web.config)
    with expect_error(ValueError):
        dedup.check(web.config.model_copy(update={"minhash": MinHash(num_bands=20)}))


@pytest.mark.parametrize("changes", [{"ngram_words": 128}, {"ngram_words": 5}])
def test_impossible_ngrams_are_refused_by_the_plan(changes):
    config = evaluation_items_step().config
    assert evaluation_items.check is not None
    evaluation_items.check(config.model_copy(update={"ngram_words": 127}))
    with expect_error(ValueError):
        evaluation_items.check(config.model_copy(update=changes))


def own_file(folder, name, text="x"):
    folder.mkdir(exist_ok=True)
    line = json.dumps({"text": text}).encode() + b"\n"
    (folder / name).write_bytes(gzip.compress(line, mtime=0) if name.endswith(".gz") else line)


def test_own_files_become_sources_in_the_role_of_their_name(tmp_path):
    for name in ("wiki_de.jsonl.gz", "notes.jsonl.gz"):
        own_file(tmp_path, name, text=name)
    found = corpus_sources(str(tmp_path))
    assert {name: source.role for name, source in found.items()} == {"wiki_de": "encyclopedia", "notes": "web"}


def test_every_packing_in_the_help_is_read(tmp_path):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    named = re.findall(r"\*(\.jsonl\S*)", " ".join(parser.format_help().split()))
    assert named == [pattern.removeprefix("*") for pattern in OWN_FILES] == [".jsonl", ".jsonl.gz", ".jsonl.zst"]
    for packing in named:
        own_file(tmp_path, f"notes{packing.replace('.', '_')}{packing}", text=packing)
    found = corpus_sources(str(tmp_path)).values()
    assert len(found) == len(named)
    for source in found:
        (file,), (reader,) = source.fetch.files, source.formats
        assert any(fnmatch.fnmatch(file.name, pattern) for pattern in reader.members), file.name


def test_another_name_of_the_same_role_changes_no_identity_from_download_to_training(tmp_path):
    for folder, name in (("one", "notes.jsonl.gz"), ("two", "my diary (2024).jsonl.gz")):
        own_file(tmp_path / folder, name)
        own_file(tmp_path / folder, "code_mine.jsonl.gz", text="y")
    graphs = []
    for folder in ("one", "two"):
        corpus = corpus_of(str(tmp_path / folder), LAPTOP)
        graphs.append((corpus, phases(LAPTOP, corpus)))
    (one, main_line), (two, renamed) = graphs
    assert sorted(one.labels.values()) == ["code_mine", "notes"]
    assert sorted(two.labels.values()) == ["code_mine", "my-diary-2024"]
    assert {step.digest for step in one.caches.values()} == {step.digest for step in two.caches.values()}
    assert {name: step.digest for name, step in main_line.items()} == {
        name: step.digest for name, step in renamed.items()
    }
    assert {step.name for step in two.caches.values()} == {"tokenize/code_mine", "tokenize/my-diary-2024"}


def test_the_report_names_a_users_sources_by_their_files(tmp_path):
    own_file(tmp_path, "notes.jsonl.gz")
    own_file(tmp_path, "papers_mine.jsonl.gz", text="y")
    (report,) = tootsie(LAPTOP, corpus_of(str(tmp_path), LAPTOP))
    assert report.config.title == "Tootsie on an own corpus (laptop)"
    assert "over sources of its own (notes, papers_mine)" in report.config.introduction
    mixture = {change.field: change.after for change in report.config.recipe["jellyfish"]}["mixture"]
    assert "notes" in mixture and "papers_mine" in mixture and "web_" not in mixture
    (laptop,) = tootsie(LAPTOP, laptop_corpus(LAPTOP))
    assert laptop.config.title == "Tootsie (laptop)"


def test_two_files_of_one_name_are_refused(tmp_path):
    for name in ("notes.jsonl.gz", "notes.jsonl"):
        own_file(tmp_path, name, text=name)
    with expect_error(ValueError):
        corpus_sources(str(tmp_path))


@pytest.mark.parametrize(
    "name", ["web_cafe\u0301s du Nord.jsonl", "web_caf\u00e9s du Nord.jsonl", "web_cafés du Nord.jsonl.gz"]
)
def test_a_label_has_letters_without_accents(tmp_path, name):
    own_file(tmp_path, name)
    assert list(corpus_sources(str(tmp_path))) == ["web_cafes-du-Nord"]


@pytest.mark.parametrize("names", [("café", "cafè"), ("cafe", "café"), ("wiki_日本", "wiki_中国"), ("a b", "a-b")])
def test_two_files_of_one_label_are_refused(tmp_path, names):
    for name in names:
        own_file(tmp_path, f"{name}.jsonl", text=name)
    with expect_error(ValueError):
        corpus_sources(str(tmp_path))


def test_a_corpus_without_a_name_is_refused(tmp_path, monkeypatch):
    own_file(tmp_path, "web.jsonl")
    monkeypatch.chdir(tmp_path)
    with expect_error(UserError):
        corpus_sources("")


def test_an_empty_file_is_refused(tmp_path):
    (tmp_path / "notes.jsonl").touch()
    with expect_error(ValueError):
        corpus_sources(str(tmp_path))


def test_two_files_of_one_content_are_refused(tmp_path):
    own_file(tmp_path, "notes.jsonl.gz")
    own_file(tmp_path, "code.jsonl.gz")
    with expect_error(ValueError):
        corpus_sources(str(tmp_path))


@pytest.mark.parametrize("name", ["__.jsonl.gz", "文書.jsonl.gz"])
def test_a_file_without_a_label_is_refused(tmp_path, name):
    own_file(tmp_path, name)
    with expect_error(ValueError):
        corpus_sources(str(tmp_path))


@pytest.mark.parametrize("other", ["notes.txt", "web.parquet", "more/web.jsonl", "web.json", "README.parquet"])
def test_files_that_would_not_be_read_are_refused(tmp_path, other):
    for name in (
        "web.jsonl",
        "README.txt",
        "LICENSE",
        "card.md",
        ".DS_Store",
        ".git/config",
        ".code.jsonl",
        "._web.jsonl",
        other,
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"text": "A text."}\n')
    with expect_error(ValueError):
        corpus_sources(str(tmp_path))
    (tmp_path / other).unlink()
    assert list(corpus_sources(str(tmp_path))) == ["web"]


@pytest.mark.parametrize("name", ["web.ndjson", "web.jsonlines.gz", "web.JSONL.GZ", "web.parquet", "more/web.jsonl"])
def test_a_folder_with_other_files_only_is_refused(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"text": "A text."}\n')
    with expect_error(ValueError):
        corpus_sources(str(tmp_path))


@pytest.mark.parametrize("folder", ["none", "."])
def test_a_missing_or_empty_corpus_is_refused(tmp_path, folder):
    with expect_error(UserError):
        corpus_sources(str(tmp_path / folder))


def test_an_unreachable_bucket_is_not_reported_as_a_missing_folder(monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    monkeypatch.setattr("marin_dag.store.gcs.FIRST_CONTACT_TIMEOUT_SECONDS", 0.5)
    with expect_error(UserError):
        corpus_sources("gs://bucket/texts")


def test_a_corpus_may_be_in_a_bucket(gcs_bucket):
    url = f"gs://{gcs_bucket}/{uuid.uuid4().hex}"
    with fsspec.open(f"{url}/web_notes.jsonl", "wb") as file:
        file.write(b'{"text": "A page of notes."}\n')
    (source,) = corpus_sources(url).values()
    assert (source.name, source.role, source.size_in_bytes) == ("web_notes", "web", 29)
    with expect_error(UserError):
        corpus_sources("gs://nobodys-bucket/texts")
