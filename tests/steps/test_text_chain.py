"""Text steps: own files become clean documents with the same bytes each time; each bad input is one message."""

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from marin_dag.errors import UserError
from marin_dag.graph.inputs import Input
from runtime.text.documents import read_documents
from runtime.text.extraction.formats import JsonLines, WebArchive
from runtime.text.extraction.records import UnreadableFileError
from runtime.text.fetch.errors import ChecksumError
from runtime.text.fetch.local_files import find_files
from runtime.text.filter_rules import C4Lines, Length
from runtime.text.item_index import build_index
from runtime.text.items import read_item_fields
from steps.decontaminate import DecontaminateConfig, decontaminate
from steps.dedup import DedupConfig, dedup
from steps.download import DownloadConfig, download
from steps.evaluation_items import (
    EvaluationItemsConfig,
    EvaluationItemsResult,
    OwnItemsConfig,
    evaluation_items,
    own_evaluation_items,
)
from steps.extract import ExtractConfig, extract
from steps.fetch import files_in, installed_python
from steps.filter import FilterConfig, filter_documents
from steps.input_tokenizer import InputTokenizerConfig, input_tokenizer, local_tokenizer
from steps.train_tokenizer import TrainTokenizerConfig, train_tokenizer
from tests.catalogue import check_message, expect_error


@pytest.fixture
def tmp_path(tmp_path):
    """Return a folder with one name in every test, so that messages do not depend on the tests that run."""
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


STORY = "Once there was a toy that wound itself every morning and walked to the window to look at the sea, alone."
ITEM = {
    "question": "Which toy wound itself each night and walked to the door to look at the old green hills?",
    "label": 1,
}
TEXTS = [
    STORY,
    STORY,
    "short",
    f"An unrelated opening. {ITEM['question']} And an unrelated end of the page.",
    "Nothing in this document has anything to do with toys, with windows or with the sea; it is about bread.",
]


def write_corpus(folder, texts=TEXTS, name="stories.jsonl.gz"):
    folder.mkdir(exist_ok=True)
    lines = b"".join(
        json.dumps({"id": str(number), "text": text}).encode() + b"\n" for number, text in enumerate(texts)
    )
    (folder / name).write_bytes(gzip.compress(lines, mtime=0))
    return str(folder)


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "corpus")


@pytest.fixture
def items(tmp_path):
    folder = tmp_path / "items"
    folder.mkdir()
    (folder / "toy.jsonl").write_text(json.dumps(ITEM) + "\n")
    fields = read_item_fields({"toy": str(folder / "toy.jsonl")})
    num_ngrams = build_index(fields, str(folder / "ngrams"), ngram_words=13, min_field_words=8).num_ngrams
    result = EvaluationItemsResult(
        files={"toy": "toy.jsonl"}, fewshot_files={}, num_items={"toy": 1}, ngram_index="ngrams", num_ngrams=num_ngrams
    )
    return Input(name="items", digest="e" * 64, path=str(folder), result=result)


def extracted(run_alone, folder, **changes):
    downloaded = run_alone(download, DownloadConfig(fetch=files_in(folder, "*.jsonl.gz")), "download")
    config = ExtractConfig(download=downloaded, formats=(JsonLines(),), **changes)
    return run_alone(extract, config, "extract")


def chain(run_alone, folder, items, action="drop"):
    documents = extracted(run_alone, folder)
    documents = run_alone(filter_documents, FilterConfig(documents=documents, rules=(Length(min_words=5),)), "filter")
    documents = run_alone(dedup, DedupConfig(documents=documents), "dedup")
    config = DecontaminateConfig(documents=documents, evaluation_items=items, action=action)
    return run_alone(decontaminate, config, "decontaminate")


def texts_of(documents):
    return [document.text for document in read_documents(map(documents.join, documents.result.shards))]


def lines_of(documents, relative):
    return [json.loads(line) for line in Path(documents.join(relative)).read_text().splitlines()]


def test_the_drops_of_each_step_are_counted_and_the_rest_is_clean(run_alone, corpus, items, tmp_path):
    clean = chain(run_alone, corpus, items)
    assert texts_of(clean) == [TEXTS[0], TEXTS[4]]
    assert (clean.result.num_documents, clean.result.dropped) == (2, {"overlaps with toy": 1})
    assert clean.result.num_bytes == len(TEXTS[0]) + len(TEXTS[4])
    assert clean.result.dropped_bytes == {"overlaps with toy": len(TEXTS[3])}
    filter_sample = json.loads((tmp_path / "outputs/filter/dropped.jsonl").read_text())
    assert filter_sample["reason"] == "too few words"
    assert filter_sample["detail"] == "1, at least 5"
    copy = json.loads((tmp_path / "outputs/dedup/dropped.jsonl").read_text())
    assert (copy["reason"], copy["id"]) == ("exact duplicate", f"{'d' * 12}/stories.jsonl.gz#1")
    assert copy["detail"] == f"of {'d' * 12}/stories.jsonl.gz#0"
    (hit,) = lines_of(clean, clean.result.hits)
    assert (hit["task"], hit["item"], hit["field"]) == ("toy", 0, "question")
    assert TEXTS[3].encode()[hit["start"] : hit["end"]].decode() == hit["excerpt"]


def test_a_corpus_used_as_published_only_reports_its_hits(run_alone, corpus, items):
    clean = chain(run_alone, corpus, items, action="report")
    assert clean.result.num_documents == 3
    assert (clean.result.num_hits, clean.result.hits_by_task, clean.result.dropped) == (1, {"toy": 1}, {})


def test_a_second_run_gives_the_same_bytes(run_alone, corpus, items, tmp_path):
    def all_bytes():
        files = sorted((tmp_path / "outputs").rglob("*.*"))
        return {str(file.relative_to(tmp_path)): file.read_bytes() for file in files if file.is_file()}

    chain(run_alone, corpus, items)
    first = all_bytes()
    shutil.rmtree(tmp_path / "outputs")
    chain(run_alone, corpus, items)
    assert all_bytes() == first


def test_an_empty_file_is_an_error(run_alone, tmp_path):
    with expect_error(UserError):
        extracted(run_alone, write_corpus(tmp_path / "corpus", []))


def test_rules_that_drop_everything_are_an_error(run_alone, corpus, tmp_path):
    documents = extracted(run_alone, corpus)
    with expect_error(UserError):
        run_alone(filter_documents, FilterConfig(documents=documents, rules=(Length(min_words=999),)), "filter")
    assert (tmp_path / "outputs/filter/dropped.jsonl").read_text().count("\n") == 5


def test_removed_lines_are_counted(run_alone, tmp_path):
    separator = "\u2028menu"  # a line break to some, and none in a file of JSON lines
    texts = [STORY, f"Home\n{STORY}\nNäxt page[1]", f"{separator}\n{STORY}", "Home"]
    documents = extracted(run_alone, write_corpus(tmp_path / "corpus", texts))
    kept = run_alone(filter_documents, FilterConfig(documents=documents, rules=(C4Lines(),)), "filter")
    assert texts_of(kept) == [STORY] * 3
    result = kept.result
    assert result.dropped == {"C4: no line is left": 1}
    assert (result.num_edited, result.num_bytes_removed) == (2, len(f"Home\n\nNäxt page[1]{separator}\n".encode()))
    assert (
        documents.result.num_bytes == result.num_bytes + sum(result.dropped_bytes.values()) + result.num_bytes_removed
    )


def test_a_filter_without_edits_counts_none(run_alone, corpus):
    config = FilterConfig(documents=extracted(run_alone, corpus), rules=(Length(min_words=5),))
    result = run_alone(filter_documents, config, "filter").result
    assert (result.num_edited, result.num_bytes_removed) == (0, 0)


def deduplicated(run_alone, folder, name, texts, **changes):
    corpus = write_corpus(folder / name, texts)
    downloaded = run_alone(download, DownloadConfig(fetch=files_in(corpus, "*.jsonl.gz")), f"download/{name}")
    documents = run_alone(extract, ExtractConfig(download=downloaded, formats=(JsonLines(),)), f"extract/{name}")
    return run_alone(dedup, DedupConfig(documents=documents, **changes), f"dedup/{name}")


WEB = [STORY, TEXTS[4], STORY.upper().replace(",", ";"), "A page that stands nowhere else."]


def test_a_text_of_two_sources_stays_in_the_first(run_alone, tmp_path):
    book = deduplicated(run_alone, tmp_path, "book", [STORY, STORY, "A chapter on bread, and on nothing else at all."])
    web = deduplicated(run_alone, tmp_path, "web", WEB, against=(book,))
    assert texts_of(book) == [STORY, "A chapter on bread, and on nothing else at all."]
    assert texts_of(web) == [TEXTS[4], "A page that stands nowhere else."]
    assert web.result.dropped == {
        "exact duplicate of another source": 1, "near duplicate of another source": 1,
    }  # fmt: skip
    third = deduplicated(run_alone, tmp_path, "third", [TEXTS[4], STORY, "And a third."], against=(book, web))
    assert texts_of(third) == ["And a third."]
    assert third.result.dropped == {"exact duplicate of another source": 2}


def test_a_copy_of_the_first_document_counts_as_a_duplicate_of_its_own_source(run_alone, tmp_path):
    alone = deduplicated(run_alone, tmp_path, "alone", [STORY, TEXTS[4], STORY])
    assert alone.result.dropped == {"exact duplicate": 1}
    later = deduplicated(run_alone, tmp_path, "later", ["A page.", "A second page.", "A page."], against=(alone,))
    assert later.result.dropped == {"exact duplicate": 1}


def test_a_document_with_items_of_two_tasks_counts_for_the_first_item_in_it(run_alone, tmp_path):
    tasks = {task: " ".join(f"{task}{number}" for number in range(14)) for task in ("first", "then")}
    for task, words in tasks.items():
        (tmp_path / "sets").mkdir(exist_ok=True)
        (tmp_path / "sets" / f"{task}.jsonl").write_text(json.dumps({"text": words}) + "\n")
    downloaded = run_alone(download, DownloadConfig(fetch=files_in(str(tmp_path / "sets"), "*.jsonl")), "sets")
    items = run_alone(own_evaluation_items, OwnItemsConfig(download=downloaded), "own-items")
    texts = ["A clean page.", f"{tasks['first']} and {tasks['then']}"]
    documents = extracted(run_alone, write_corpus(tmp_path / "corpus", texts))
    clean = run_alone(decontaminate, DecontaminateConfig(documents=documents, evaluation_items=items), "decontaminate")
    assert clean.result.dropped == {"overlaps with first": 1}
    assert clean.result.hits_by_task == {"first": 1, "then": 1}


def test_deduplication_does_not_depend_on_the_number_of_tasks(run_alone, tmp_path):
    texts = [*WEB, *TEXTS]
    one = deduplicated(run_alone, tmp_path, "one", texts)
    many = deduplicated(run_alone, tmp_path, "many", texts, keys_per_task=1)
    assert texts_of(one) == texts_of(many)
    assert lines_of(one, one.result.dropped_samples) == lines_of(many, many.result.dropped_samples)
    assert len(list((tmp_path / "outputs/dedup/many/pairs").iterdir())) == 15 * len(texts)


def test_a_source_without_new_documents_is_an_error(run_alone, tmp_path):
    book = deduplicated(run_alone, tmp_path, "book", [STORY])
    with expect_error(UserError):
        deduplicated(run_alone, tmp_path, "web", [STORY], against=(book,))


def test_files_of_one_name_in_two_folders_keep_their_documents_apart(run_alone, tmp_path):
    for folder in ("train", "test"):
        (tmp_path / "hub" / folder).mkdir(parents=True)
        write_corpus(tmp_path / "hub" / folder, [f"{STORY} ({folder})"], name="part-0.jsonl.gz")
    fetch = files_in(str(tmp_path / "hub"), "*/part-0.jsonl.gz")
    downloaded = run_alone(download, DownloadConfig(fetch=fetch), "download")
    documents = run_alone(extract, ExtractConfig(download=downloaded, formats=(JsonLines(),)), "extract")
    ids = [document.id for document in read_documents(map(documents.join, documents.result.shards))]
    assert ids == [f"{'d' * 12}/{folder}/part-0.jsonl.gz#0" for folder in ("test", "train")]


def test_the_name_of_a_users_file_does_not_reach_the_documents(run_alone, tmp_path):
    made = []
    for name in ("notes.jsonl.gz", "other.jsonl.gz"):
        folder = write_corpus(tmp_path / name.split(".")[0], name=name)
        found = files_in(folder, "*.jsonl.gz")
        file = found.files[0].model_copy(update={"name": "documents.jsonl.gz", "path": name})
        fetch = found.model_copy(update={"files": (file,)})
        downloaded = run_alone(download, DownloadConfig(fetch=fetch), f"download-{name}")
        config = ExtractConfig(download=downloaded, formats=(JsonLines(),), origin=name)
        made.append((downloaded, run_alone(extract, config, f"extract-{name}")))
    (download_of_one, one), (download_of_other, other) = made
    assert download_of_one.result == download_of_other.result
    assert one.result == other.result
    for shard in one.result.shards:
        assert Path(one.join(shard)).read_bytes() == Path(other.join(shard)).read_bytes()


def test_a_file_whose_name_holds_two_colons_is_read(run_alone, tmp_path):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/a::b.jsonl").write_text(json.dumps({"text": STORY}) + "\n")
    fetch = files_in(str(tmp_path / "corpus"), "*.jsonl")
    downloaded = run_alone(download, DownloadConfig(fetch=fetch), "download")
    documents = run_alone(extract, ExtractConfig(download=downloaded, formats=(JsonLines(),)), "extract")
    (document,) = read_documents([documents.join(shard) for shard in documents.result.shards])
    assert document.id.endswith("/a::b.jsonl#line 1")
    assert document.text == STORY


def test_two_lines_of_one_id_are_refused(run_alone, tmp_path):
    lines = [{"id": "a", "text": STORY}, {"text": STORY}, {"id": "b", "text": STORY}, {"id": "a", "text": "other"}]
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/notes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    fetch = files_in(str(tmp_path / "corpus"), "*.jsonl")
    downloaded = run_alone(download, DownloadConfig(fetch=fetch), "download")
    config = ExtractConfig(download=downloaded, formats=(JsonLines(unique_ids=True),), origin="my notes.jsonl")
    with expect_error(UnreadableFileError):
        run_alone(extract, config, "extract")
    published = config.model_copy(update={"formats": (JsonLines(),)})
    assert run_alone(extract, published, "extract-published").result.num_documents == 4


def test_unreadable_lines_are_a_warning_with_their_counts(run_alone, tmp_path, caplog):
    (tmp_path / "corpus").mkdir()
    lines = [json.dumps({"text": f"{STORY} {number}"}).encode() for number in range(400)]
    lines += [b'{"text": "na\xefve"}', b"not json", b"[1]"]
    (tmp_path / "corpus/notes.jsonl.gz").write_bytes(gzip.compress(b"\n".join(lines)))
    found = extracted(run_alone, str(tmp_path / "corpus"))
    assert found.result.num_documents == 400
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    check_message(record.getMessage())


def test_damaged_files_cost_no_other_and_too_many_are_an_error(run_alone, tmp_path, caplog):
    for number in range(4):
        write_corpus(tmp_path / "corpus", [f"{STORY} {number}"], name=f"{number}.jsonl.gz")
    path = tmp_path / "corpus/2.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-30])
    with expect_error(UserError):
        extracted(run_alone, str(tmp_path / "corpus"), max_unreadable_share=0.3)
    shutil.rmtree(tmp_path / "outputs")
    limits = {"max_unreadable_share": 0.3, "max_damaged_file_share": 0.3}
    found = extracted(run_alone, str(tmp_path / "corpus"), **limits)
    assert texts_of(found) == [f"{STORY} {number}" for number in (0, 1, 3)]
    assert found.result.dropped == {"damaged file": 1}
    check_message(caplog.messages[-2])


def test_a_damaged_archive_is_counted_and_its_readable_members_stay(run_alone, tmp_path):
    (tmp_path / "corpus").mkdir()
    for number in range(3):
        with zipfile.ZipFile(tmp_path / f"corpus/{number}.zip", "w") as archive:
            archive.writestr(f"{number}.jsonl", json.dumps({"text": f"{STORY} {number}"}))
    with tarfile.open(tmp_path / "corpus/3.tar", "w") as archive:
        for number in range(3, 6):
            line = json.dumps({"text": f"{STORY} {number}"}).encode()
            info = tarfile.TarInfo(f"{number}.jsonl")
            info.size = len(line)
            archive.addfile(info, io.BytesIO(line))
    for name, size in (("1.zip", 60), ("3.tar", 2 * 1_024 + 100)):
        path = tmp_path / "corpus" / name
        path.write_bytes(path.read_bytes()[:size])
    downloaded = run_alone(download, DownloadConfig(fetch=files_in(str(tmp_path / "corpus"), "*")), "download")
    limits = {"max_unreadable_share": 0.5, "max_damaged_file_share": 0.5}
    config = ExtractConfig(download=downloaded, formats=(JsonLines(),), **limits)
    found = run_alone(extract, config, "extract")
    assert texts_of(found) == [f"{STORY} {number}" for number in (0, 2, 3, 4)]
    assert found.result.dropped == {"damaged file": 2}
    samples = lines_of(found, found.result.dropped_samples)
    assert [sample["id"] for sample in samples] == [f"{'d' * 12}/1.zip", f"{'d' * 12}/3.tar"]
    with expect_error(UserError):
        run_alone(extract, config.model_copy(update={"max_damaged_file_share": 0.1}), "strict")


def test_other_records_of_a_web_archive_are_counted_and_no_error(run_alone, tmp_path):
    page = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>" + STORY.encode()
    records = [
        b"WARC/1.0\r\nWARC-Type: %s\r\nContent-Type: application/http\r\nContent-Length: %d\r\n\r\n%s\r\n\r\n"
        % (kind, len(page), page)
        for kind in (b"request", b"request", b"revisit", b"response")
    ]
    (tmp_path / "crawl").mkdir()
    (tmp_path / "crawl/0.warc.gz").write_bytes(b"".join(map(gzip.compress, records)))
    fetch = files_in(str(tmp_path / "crawl"), "*.warc.gz")
    downloaded = run_alone(download, DownloadConfig(fetch=fetch), "download")
    config = ExtractConfig(download=downloaded, formats=(WebArchive(main_content=False),))
    found = run_alone(extract, config, "extract")
    assert texts_of(found) == [STORY]
    assert found.result.dropped == {
        "not a page: another kind of record": 2, "not a page: revisit of an earlier record": 1,
    }  # fmt: skip


def test_a_download_without_a_matching_file_is_an_error(run_alone, corpus):
    downloaded = run_alone(download, DownloadConfig(fetch=files_in(corpus, "*.jsonl.gz")), "download")
    config = ExtractConfig(download=downloaded, formats=(JsonLines(members=("*.json",)),))
    with expect_error(UserError):
        run_alone(extract, config, "extract")


def test_a_few_documents_that_are_not_utf8_are_counted_and_many_are_an_error(run_alone, tmp_path):
    folder = Path(write_corpus(tmp_path / "corpus"))
    path = folder / "stories.jsonl.gz"
    lines = gzip.decompress(path.read_bytes()) + b'{"id": "bad", "text": "na\xefve"}\n'
    path.write_bytes(gzip.compress(lines, mtime=0))
    with expect_error(UserError):
        extracted(run_alone, str(folder))
    shutil.rmtree(tmp_path / "outputs")
    with expect_error(UserError):
        extracted(run_alone, str(folder), max_unreadable_share=0.16, origin="my.jsonl.gz")
    shutil.rmtree(tmp_path / "outputs")
    documents = extracted(run_alone, str(folder), max_unreadable_share=1 / 6)
    assert documents.result.dropped == {"not UTF-8": 1}
    (sample,) = lines_of(documents, documents.result.dropped_samples)
    assert sample["id"] == f"{'d' * 12}/stories.jsonl.gz#line 6"


def test_a_file_that_changed_after_the_plan_is_refused(run_alone, corpus, tmp_path):
    fetch = files_in(corpus, "*.jsonl.gz")
    write_corpus(tmp_path / "corpus", ["something else"])
    with expect_error(ChecksumError):
        run_alone(download, DownloadConfig(fetch=fetch), "download")
    assert not list((tmp_path / "outputs/download").rglob("*.gz"))


def test_changed_content_is_another_identity_and_another_folder_is_not(tmp_path):
    def digest(folder, texts):
        return download(
            "d", DownloadConfig(fetch=files_in(write_corpus(tmp_path / folder, texts), "*.jsonl.gz"))
        ).digest

    assert digest("here", TEXTS) == digest("there", TEXTS) != digest("changed", TEXTS[1:])


@pytest.mark.parametrize("folder", ["missing", "."])
def test_a_folder_without_files_is_refused(tmp_path, folder):
    with expect_error(UserError):
        files_in(str(tmp_path / folder), "*.jsonl.gz")


def test_files_are_found_in_a_folder_of_any_name(tmp_path):
    folder = tmp_path / "h[1]*"
    (folder / "spark.jsonl").mkdir(parents=True)
    (folder / "a.jsonl").write_text("{}\n")
    (folder / ".b.jsonl").write_text("{}\n")
    (folder / ".hidden").mkdir()
    (folder / ".hidden/c.jsonl").write_text("{}\n")
    assert find_files(str(folder), ("*.jsonl",)) == find_files(str(folder), ("**",)) == ["a.jsonl"]


def test_files_that_would_be_missing_silently_are_refused(tmp_path):
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_text("{}\n")
    here = tmp_path / "here"
    (here / "b.jsonl").symlink_to(tmp_path / "elsewhere/a.jsonl")
    assert find_files(str(here), ("*.jsonl",)) == ["a.jsonl", "b.jsonl"]
    for broken, pattern in (("gone.jsonl", "*.jsonl"), ("folder", "**")):
        (here / broken).symlink_to(tmp_path / ("elsewhere" if broken == "folder" else "nowhere"))
        with expect_error(UserError):
            files_in(str(here), pattern)
        (here / broken).unlink()
    os.mkfifo(here / "pipe.jsonl")
    with expect_error(UserError):
        files_in(str(here), "*.jsonl")
    with expect_error(UserError):
        files_in(str(here / "a.jsonl"), "*.jsonl")


def test_the_standard_library_is_downloaded_as_one_archive(run_alone):
    downloaded = run_alone(download, DownloadConfig(fetch=installed_python()), "download")
    (file,) = downloaded.result.files
    assert file.sha256 == hashlib.sha256(Path(downloaded.join(file.path)).read_bytes()).hexdigest()


def test_a_package_that_is_not_the_evaluation_package_is_an_error(run_alone):
    package = run_alone(download, DownloadConfig(fetch=installed_python()), "download")
    with expect_error(ValueError):
        run_alone(evaluation_items, EvaluationItemsConfig(package=package), "items")


def own_items(run_alone, folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    downloaded = run_alone(download, DownloadConfig(fetch=files_in(str(folder), "**/*.json*")), "download-items")
    return run_alone(own_evaluation_items, OwnItemsConfig(download=downloaded), "own-items")


def test_any_json_lines_are_an_evaluation_set(run_alone, corpus, tmp_path):
    files = {"toy.jsonl": json.dumps(ITEM) + "\r\n\n", "more/test.jsonl": '{"text": "none"}\n{"text": ["no"]}'}
    items = own_items(run_alone, tmp_path / "sets", files)
    assert items.result.num_items == {"more-test": 2, "toy": 1}
    assert Path(items.join(items.result.files["toy"])).read_text() == json.dumps(ITEM) + "\n"
    clean = chain(run_alone, corpus, items)
    assert clean.result.dropped == {"overlaps with toy": 1}


@pytest.mark.parametrize(
    "files",
    [
        {"toy.jsonl": "{}\n[1]\n"},
        {"toy.jsonl": "nonsense"},
        {"toy.jsonl": "{}", "more/none.jsonl": "\n\r\n"},
        {"toy.json": "{}"},
        {"a/b.jsonl": "{}", "a-b.jsonl": "{}"},
    ],
    ids=["list", "no JSON", "empty", "other ending", "one name"],
)
def test_a_file_that_is_no_evaluation_set_is_refused(run_alone, tmp_path, files):
    with expect_error(UserError, ValueError):
        own_items(run_alone, tmp_path / "sets", files)


@pytest.fixture
def documents(run_alone, tmp_path):
    texts = [f"{text} {number} wörld 👩‍👩‍👧\n\n  indented{number * 7919}" for number in range(40) for text in TEXTS]
    return extracted(run_alone, write_corpus(tmp_path / "corpus", texts))


def test_a_tokenizer_has_its_specials_first_and_gives_every_text_back(run_alone, documents):
    from tokenizers import Tokenizer

    config = TrainTokenizerConfig(documents={"stories": documents}, vocab_size=400)
    trained = run_alone(train_tokenizer, config, "tokenizer")
    assert (trained.result.bos_token_id, trained.result.eos_token_id, trained.result.vocab_size) == (0, 1, 400)
    data = Path(trained.join(trained.result.tokenizer)).read_bytes()
    assert hashlib.sha256(data).hexdigest() == trained.result.digest
    tokenizer = Tokenizer.from_str(data.decode())
    text = "Unseen: Ελλάδα, 12345 + 6\r\n\ttabs  and   spaces… 🎈"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert [len(piece) for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str("1234567")] == [3, 3, 1]


def test_a_tokenizer_is_the_same_each_time(run_alone, documents):
    config = TrainTokenizerConfig(documents={"stories": documents}, vocab_size=400, bytes_per_source=4_000)
    digests = {run_alone(train_tokenizer, config, f"tokenizer-{number}").result.digest for number in range(3)}
    assert len(digests) == 1


def test_a_vocabulary_larger_than_the_text_allows_is_an_error(run_alone, documents):
    config = TrainTokenizerConfig(documents={"stories": documents}, vocab_size=50_000)
    with expect_error(ValueError):
        run_alone(train_tokenizer, config, "tokenizer")


def test_a_users_tokenizer_is_taken_unchanged(run_alone, documents):
    config = TrainTokenizerConfig(documents={"stories": documents}, vocab_size=400)
    trained = run_alone(train_tokenizer, config, "tokenizer")
    taken = run_alone(input_tokenizer, InputTokenizerConfig(tokenizer=local_tokenizer(trained.path)), "taken")
    assert taken.result == trained.result


def test_a_tokenizer_without_the_named_end_of_text_is_refused(run_alone, documents):
    config = TrainTokenizerConfig(documents={"stories": documents}, vocab_size=400)
    trained = run_alone(train_tokenizer, config, "tokenizer")
    asked = InputTokenizerConfig(tokenizer=local_tokenizer(trained.path), eos_token="<|eot_id|>")
    with expect_error(UserError):
        run_alone(input_tokenizer, asked, "taken")
