"""`documents`: what a step keeps and drops, found again from its inputs, by few reads of a store of any size."""

import contextlib
import dataclasses
import functools
import html
import io
import json
import os
import uuid
from pathlib import Path
from types import SimpleNamespace

import fsspec
import gcsfs
import numpy as np
import pytest
from rich.console import Console

from marin_dag.cli.main import main
from marin_dag.cli.watched import Watched
from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.ledger.records import Records
from marin_dag.plan.plan import make_plan
from marin_dag.run.driver import Run
from marin_dag.run.live import LineDisplay
from marin_dag.run.local.backend import LocalBackend
from marin_dag.store.prefix import open_store
from pipelines import document_browser, documents_command
from pipelines.document_browser import Query, browse, page_data, sample_data
from pipelines.document_judges import DocumentVerdict, Judge, Judged, open_judged
from pipelines.run_page import RunPage
from pipelines.stored_documents import SAMPLE_DOCUMENTS, Numbered, StoredDocuments
from runtime.report.markup import MOST_CHARACTERS, marked
from runtime.text import documents as text_documents
from runtime.text.array_files import write_array
from runtime.text.documents import Document, read_documents, write_documents
from runtime.text.filter_rules import C4Lines, Length
from steps.decontaminate import DecontaminateConfig, decontaminate
from steps.dedup import DedupConfig, dedup
from steps.documents import DocumentsResult, ShardSize
from steps.filter import FilterConfig, filter_documents
from tests import browser
from tests.browser import NEEDS_CHROMIUM
from tests.catalogue import check_message, expect_error
from tests.steps.text_chain import ITEM, ItemsConfig, items
from tests.steps.text_steps import WrittenConfig, written

LONG = "The toy was wound every morning and walked along the window until the key had turned for the last time"
STORY = f"{LONG}.\nIn the evening the child put it back on the shelf beside the door."
HOSTILE = "<b>Ada</b></script>\u202e walked alone to the wide grey sea and came back before the evening was over."
DIRTY = f"Ünrelated words first. {ITEM}! And a few more words at the very end."
TEXTS = (
    (STORY, "Too short.", HOSTILE),
    (STORY, f"{STORY} And so on.", DIRTY, f"{LONG} again, but\nwithout an end"),
)


@pytest.fixture(scope="module", autouse=True)
def small_row_groups():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_documents, "ROW_GROUP_DOCUMENTS", 2)
        yield


def build(_arguments=None):
    earlier = dedup("earlier", DedupConfig(documents=written("old", WrittenConfig(shards=(("Other.", STORY),)))))
    given = written("written", WrittenConfig(shards=TEXTS))
    kept = filter_documents("filter", FilterConfig(documents=given, rules=(Length(5), C4Lines(), Length(5))))
    single = dedup("dedup", DedupConfig(documents=kept, against=(earlier,)))
    found = items("items", ItemsConfig(question=ITEM))
    return [decontaminate("decontaminate", DecontaminateConfig(documents=single, evaluation_items=found))]


def run_chain(prefix, last="decontaminate"):
    shown = io.StringIO()
    display = LineDisplay(Console(file=shown), Console(file=shown))
    run = Run(Graph([Graph(build()).step(last)]).steps, open_store(prefix), LocalBackend(), display, command="")
    assert run.run() == 0, shown.getvalue()
    return prefix


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    return run_chain(str(tmp_path_factory.mktemp("runs")))


@pytest.fixture
def judged(prefix):
    return lambda name: opened(prefix, name)


def opened(prefix, name):
    return open_judged(open_store(prefix), Graph(build()).step(name))


def command(*words, prefix):
    argv = ["documents", *words, "--prefix", prefix]
    return main(build, name="texts", commands=(documents_command.documents,), argv=argv)


def output(prefix, name):
    store = open_store(prefix)
    record = Records(store).get(Graph(build()).step(name).key)
    return record.result, [store.url(f"{record.output_path}/{shard}") for shard in record.result["shards"]]


def check_verdicts(prefix, name):
    found = browse(opened(prefix, name), Query(rows=100)).documents
    result, shards = output(prefix, name)
    assert [(each.document.id, verdict.text) for each, verdict in found if not verdict.reason] == [
        (document.id, document.text) for document in read_documents(shards)
    ]
    counts = {}
    for _, verdict in found:
        if verdict.reason:
            counts[verdict.reason] = counts.get(verdict.reason, 0) + 1
    assert counts == result["dropped"] != {}


STEPS = ("filter", "dedup", "decontaminate")


@pytest.mark.parametrize("name", STEPS)
def test_verdicts_are_those_of_the_step(prefix, name):
    check_verdicts(prefix, name)


def test_verdicts_are_found_in_a_bucket(gcs_bucket, prefix):
    bucket = f"gs://{gcs_bucket}/documents"
    fsspec.filesystem("gs").put(f"{prefix}/", f"{bucket}/", recursive=True)
    for name in STEPS:
        check_verdicts(bucket, name)


def test_pages_of_any_length_hold_every_document_once(judged):
    for rows in (1, 2, 3, 7):
        query, numbers = Query(rows=rows), []
        while True:
            found = browse(judged("filter"), query)
            numbers += [each.number for each, _ in found.documents]
            if found.next is None:
                break
            query = dataclasses.replace(query, first=found.next)
        assert numbers == list(range(7))


def test_a_search_that_pauses_goes_on_where_it_stopped(judged, monkeypatch):
    monkeypatch.setattr(document_browser, "READ_CHARACTERS", 1)
    found = browse(judged("filter"), Query(search="ITEM nowhere"))
    assert (found.documents, found.next) == ([], 2)


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        (Query(search="KEY shelf"), [0, 3, 4]),
        (Query(identifier="1/"), [3, 4, 5, 6]),
        (Query(source="test", search="short"), [1]),
        (Query(source="tes"), []),
        (Query(reason="c4: NO"), [6]),
        (Query(is_dropped=True), [1, 6]),
        (Query(is_dropped=False, first=2), [2, 3, 4, 5]),
    ],
)
def test_a_query_finds_documents_by_words_id_source_and_reason(judged, query, numbers):
    assert [each.number for each, _ in browse(judged("filter"), query).documents] == numbers


def test_a_dropped_document_names_its_rule_and_an_edited_one_what_it_lost(judged):
    found = page_data(judged("filter"), browse(judged("filter"), Query()))["documents"]
    assert (found[1]["rule"], found[1]["detail"]) == ("rules.0 Length", "2, at least 5")
    assert found[6]["rule"] == "rules.1 C4Lines"
    assert found[0]["bytesCut"] == 0 and "".join(text for text, _ in found[0]["text"]) == STORY
    assert "\u202e" not in json.dumps(found, ensure_ascii=False)


def test_a_duplicate_names_what_is_kept_in_its_place(judged):
    dropped = page_data(judged("dedup"), browse(judged("dedup"), Query(is_dropped=True)))["documents"]
    assert [each["reason"] for each in dropped] == ["exact duplicate of another source"] * 2 + [
        "near duplicate of another source"
    ]
    assert {each["cluster"] for each in dropped} == {1}
    assert [each["beside"][0][1][0][0] for each in dropped] == [STORY] * 3


def test_drops_of_an_older_version_have_no_duplicate_beside_them(tmp_path, judged, monkeypatch):
    write_array(f"{tmp_path}/drops/00000.npy", np.array([[0, 1]]))
    judge = judged("dedup").judge
    monkeypatch.setattr(judge, "_folder", str(tmp_path))
    (verdict,) = judge.judge([Numbered(0, Document("a", "text", "s"))])
    assert (verdict.reason, verdict.kept, [*judge.beside(verdict)]) == ("exact duplicate", None, [])


def test_a_contaminated_span_is_marked_beside_its_item(judged):
    (found,) = page_data(judged("decontaminate"), browse(judged("decontaminate"), Query(is_dropped=True)))["documents"]
    last = "! And a few more words at the very end."
    assert found["text"] == [["Ünrelated words first. ", ""], [ITEM, "toy, item 0, question"], [last, ""]]
    assert found["beside"][0][0] == "toy, item 0" and ITEM in found["beside"][0][1][0][0]


def test_samples_stand_for_what_an_extraction_dropped(judged):
    found = judged("written")
    samples = [(Numbered(n, Document(f"{n}", "<p>", "")), DocumentVerdict("<p>", "empty", "0 words")) for n in range(3)]
    found = dataclasses.replace(found, samples=samples)
    page = browse(found, Query(is_dropped=True, rows=2))
    assert ([each.number for each, _ in page.documents], page.next) == ([0, 1], 2)
    assert browse(found, Query(is_dropped=True, rows=2, first=2)).documents == samples[2:]
    assert not browse(found, Query(is_dropped=True, reason="full")).documents
    assert len(browse(found, Query()).documents) == 7


def test_overlapping_spans_and_long_texts_are_cut_by_characters():
    assert marked("äöü", [(0, 4, "a"), (2, 6, "b")]) == [("ä", "a"), ("ö", "a; b"), ("ü", "b")]
    cut = marked("x" * (MOST_CHARACTERS + 1), [])
    assert cut[0] == ("x" * MOST_CHARACTERS, "") and len(cut) == 2
    assert marked("", []) == [("", "")]


def test_measures_of_a_sample_drop_what_the_filter_drops(judged):
    found = sample_data(judged("filter"))
    first = [
        next((each["reason"] for each in found["findings"] if not each["values"][index] >= each["limit"]), "")
        for index in range(7)
    ]
    assert first == [verdict.reason for _, verdict in browse(judged("filter"), Query()).documents]
    assert sample_data(judged("dedup")) is None


def test_the_reads_of_a_page_do_not_grow_with_the_source(tmp_path, monkeypatch):
    monkeypatch.setattr(text_documents, "ROW_GROUP_BYTES", 1 << 16)
    texts = [os.urandom(1 << 14).hex() for _ in range(200)]
    size = ShardSize(num_documents=200, num_bytes=200 << 15)
    assert write_documents(
        f"{tmp_path}/a.parquet", (Document(str(index), text, "s") for index, text in enumerate(texts))
    ) == (200, 200 << 15)
    counted, opening = [], fsspec.open

    @contextlib.contextmanager
    def open_counted(path, mode):
        with opening(path, mode) as file:
            read = file.read
            yield SimpleNamespace(
                read=lambda size=-1: counted.append(size) or read(size),
                seek=file.seek, tell=file.tell, closed=False, close=lambda: None, readable=lambda: True,
                seekable=lambda: True, writable=lambda: False, flush=lambda: None,
            )  # fmt: skip

    monkeypatch.setattr(text_documents.fsspec, "open", open_counted)

    @functools.cache
    def source(num_shards):
        result = DocumentsResult(
            shards=("a.parquet",) * num_shards, num_documents=200 * num_shards,
            num_bytes=num_shards * size.num_bytes, shard_sizes=(size,) * num_shards, dropped={},
        )  # fmt: skip
        step = SimpleNamespace(name="s", kind=SimpleNamespace(result_type=DocumentsResult))
        record = SimpleNamespace(output_path="", result=result.model_dump())
        store = SimpleNamespace(url=lambda path: str(tmp_path))
        return Judged(step, StoredDocuments(store, step, record), Judge())

    def bytes_read(num_shards, look):
        found = source(num_shards)
        counted.clear()
        look(found)
        return sum(counted)

    def at_the_end(found):
        browse(found, Query(first=len(found.documents) - 1))

    small = bytes_read(1, lambda found: browse(found, Query(rows=2)))
    assert 0 < small < 200_000
    large = 20_000  # shards of 6.5 MB
    assert bytes_read(large, lambda found: browse(found, Query(rows=2))) == small
    assert bytes_read(large, at_the_end) < 2 * small
    assert bytes_read(large, lambda found: found.documents.sample()) < 20 * small


def test_a_source_of_a_hundred_gigabytes_opens_in_cloud_storage_by_few_bytes(tmp_path, gcs_bucket, monkeypatch):
    monkeypatch.setattr(text_documents, "ROW_GROUP_BYTES", 1 << 18)
    prefix, num_documents, num_shards = f"gs://{gcs_bucket}/{uuid.uuid4().hex}", 256, 20_000
    texts = (os.urandom(1 << 14).hex() for _ in range(num_documents))
    file = tmp_path / "a.parquet"
    _, num_bytes = write_documents(str(file), (Document(f"{n}", text, "s") for n, text in enumerate(texts)))
    open_store(prefix).write("a.parquet", file.read_bytes())
    size = ShardSize(num_documents=num_documents, num_bytes=num_bytes)
    assert num_shards * num_bytes > 1e11
    result = DocumentsResult(
        shards=("a.parquet",) * num_shards, num_documents=num_shards * num_documents,
        num_bytes=num_shards * num_bytes, shard_sizes=(size,) * num_shards, dropped={},
    )  # fmt: skip
    step = SimpleNamespace(name="s", kind=SimpleNamespace(result_type=DocumentsResult))
    record, store = SimpleNamespace(output_path="", result=result.model_dump()), SimpleNamespace(url=lambda _: prefix)
    fetched, fetch = [], gcsfs.GCSFileSystem._cat_file_sequential

    async def counted(*words, **options):
        data = await fetch(*words, **options)
        fetched.append(len(data))
        return data

    monkeypatch.setattr(gcsfs.GCSFileSystem, "_cat_file_sequential", counted)
    source = Judged(step, StoredDocuments(store, step, record), Judge())

    def bytes_of(look) -> int:
        fetched.clear()
        look()
        return sum(fetched)

    assert 0 < bytes_of(lambda: browse(source, Query(rows=2))) < 5e5
    assert bytes_of(lambda: browse(source, Query(first=len(source.documents) - 1))) < 5e5
    assert bytes_of(lambda: source.documents.sample()) < 8 * 5e5


def test_a_sample_of_a_large_source_is_spread_over_it(tmp_path, judged, monkeypatch):
    monkeypatch.setattr("pipelines.stored_documents.SAMPLE_DOCUMENTS", 4)
    monkeypatch.setattr("pipelines.stored_documents.SAMPLE_PLACES", 4)
    assert SAMPLE_DOCUMENTS > 4
    assert [each.number for each in judged("filter").documents.sample()] == [0, 1, 3, 5]


@pytest.mark.parametrize(
    "words",
    [
        ["filter", "--rows", "3"],
        ["dedup", "--dropped"],
        ["decontaminate", "--reason", "toy"],
        ["written", "--search", "short"],
        ["filter", "--set", "filter.rules.0.min_words=30"],
        ["items"],
        ["filter", "--after", "7"],
        ["dedup", "--set", "filter.rules.0.min_words=30"],
    ],
    ids=["page", "duplicates", "contaminated", "source", "threshold", "no-documents", "past-the-end", "not-done"],
)
def test_the_command_prints_documents_with_reasons(prefix, capsys, monkeypatch, words):
    monkeypatch.setattr("marin_dag.cli.session.program_words", lambda: ["python", "texts.py"])
    before = sorted(os.walk(prefix))
    code = command(*words, prefix=prefix)
    printed = capsys.readouterr()
    assert code == int(bool(printed.err))
    check_message((printed.out + printed.err).replace(prefix, "<prefix>"))
    assert sorted(os.walk(prefix)) == before, "reading changes nothing"


def test_json_and_page_hold_the_same_documents(prefix, capsys, tmp_path):
    assert command("filter", "--dropped", "--json", prefix=prefix) == 0
    found = json.loads(capsys.readouterr().out)["documents"]
    assert command("filter", "--page", str(tmp_path / "page.html"), prefix=prefix) == 0
    page = (tmp_path / "page.html").read_text()
    data = json.loads(page.partition('type="application/json">')[2].partition("</script>")[0])
    assert data["lists"]["dropped"]["documents"] == found and len(found) == 2
    assert len(data["lists"]["kept"]["documents"]) == 5 and "default-src 'none'" in html.unescape(page)
    capsys.readouterr()
    changed = ["filter", "--set", "filter.rules.0.min_words=30", "--page", str(tmp_path / "page.html")]
    assert command(*changed, prefix=prefix) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("drawn: "), "the page has what the lines have, and nothing is judged for both"


def test_a_damaged_shard_is_an_error_that_names_it(tmp_path):
    prefix = run_chain(str(tmp_path / "runs"), "written")
    _, shards = output(prefix, "written")
    write_documents(shards[1], [])
    with expect_error(UserError):
        browse(opened(prefix, "filter"), Query())
    Path(shards[0]).write_bytes(b"no Parquet")
    with expect_error(UserError):
        browse(opened(prefix, "filter"), Query())


@pytest.mark.slow
@NEEDS_CHROMIUM
def test_the_page_of_a_run_browses_documents(prefix, width=390):
    graph, store = Graph(build()), open_store(prefix)
    content = RunPage(SimpleNamespace(store=store, pipeline="texts"), graph)
    with browser.run_page(Watched("texts", make_plan(graph, store), store), content, width=width) as shown:
        shown.locator("select[name=step]").select_option("filter")
        shown.locator("#sample").wait_for(timeout=60_000)
        assert shown.locator("#list-kept article").count() == 5
        assert "rules.0 Length" in shown.locator("#list-dropped article").first.inner_text()
        assert "<b>Ada</b></script>" in shown.locator("#list-kept").inner_text() and not shown.locator("pre b").count()
        assert "drop 2 (28.6 %); with its own limits 2" in shown.locator("#outcome").inner_text()
        shown.locator("#limit-value").fill("30")
        shown.locator("#limit-value").press("Enter")
        assert "drop 3" in shown.locator("#outcome").inner_text()
        assert shown.locator("#border article").count() >= 4
        shown.locator("input[name=search]").fill("too short")
        shown.locator("#documents-form button").click()
        shown.locator("#list-kept", has_text="None.").wait_for(timeout=60_000)
        shown.locator("#list-dropped article").wait_for(timeout=60_000)
        shown.locator("input[name=search]").fill("")
        shown.locator("select[name=step]").select_option("dedup")
        shown.locator("#list-dropped .cluster article").nth(1).wait_for(timeout=60_000)
        shown.locator("#list-dropped summary").first.click()
        assert "kept instead: 0/1 of test" in shown.locator("#list-dropped summary").first.inner_text()
        shown.locator("select[name=step]").select_option("decontaminate")
        assert shown.locator("mark").inner_text(timeout=60_000) == ITEM
        assert shown.evaluate("document.documentElement.scrollWidth") <= width


def test_documents_of_several_shards_are_judged_together(judged):
    step = judged("dedup")
    sample = step.documents.sample()
    assert len({step.documents.shard_of(each.number) for each in sample}) > 1
    one_by_one = [verdict for each in sample for verdict in step.judge.judge([each])]
    assert step.judge.judge(sample) == one_by_one
    assert len({verdict.reason for verdict in one_by_one}) > 1


def test_a_query_of_the_page_that_makes_no_sense_is_refused(prefix):
    content = RunPage(SimpleNamespace(store=open_store(prefix), pipeline="texts"), Graph(build()))
    for query in ({}, {"step": "items"}, {"step": "filter", "part": "all"}, {"step": "../x", "part": "kept"},
                  {"step": "filter", "part": "kept", "first": "-1"}, {"step": "filter", "part": "kept", "first": "9"},
                  {"step": "filter", "part": "kept", "first": "9" * 5_000}):  # fmt: skip
        with expect_error(UserError):
            content.data(query)
    assert len(content.data({"step": "decontaminate", "part": "kept", "first": "0"})["documents"]) == 1
