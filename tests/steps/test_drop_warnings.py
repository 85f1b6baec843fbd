"""Drop warnings: a step that drops much says so with its output, by rule and with samples; others say nothing."""

import json

import pytest

from marin_dag.graph.inputs import Input
from runtime.text.documents import Document, write_documents
from runtime.text.filter_rules import Length, Rule, SingleCharacter
from steps.decontaminate import DecontaminateConfig, decontaminate
from steps.dedup import DedupConfig, dedup
from steps.documents import WARNING_SAMPLES, DocumentsResult
from steps.download import DownloadedFile, DownloadResult
from steps.evaluation_items import OwnItemsConfig, own_evaluation_items
from steps.filter import FilterConfig, filter_documents
from tests.catalogue import check_message

LONG = "A long document about the river, the sea and whoever lives beside them, with many more words than most."
SHORT = ["too short", "shorter", "also short", "and this one"]


def given(tmp_path, texts):
    folder = tmp_path / "given"
    rows = [Document(f"toys/{number}", text, "toys") for number, text in enumerate(texts)]
    num_documents, num_bytes = write_documents(str(folder / "0.parquet"), rows)
    result = DocumentsResult(shards=("0.parquet",), num_documents=num_documents, num_bytes=num_bytes, dropped={})
    return Input(name="toys", digest="e" * 64, path=str(folder), result=result)


def warnings_of(kind, config, tmp_path, context_of):
    context = context_of("toys/step", str(tmp_path / "output"))
    kind.function(config, context)
    return context.output_warnings


RULES: tuple[Rule, ...] = (SingleCharacter(), Length(min_words=5))


def test_a_filter_that_drops_most_documents_names_the_rule_and_shows_samples(tmp_path, context_of):
    config = FilterConfig(documents=given(tmp_path, [LONG, *SHORT, "-" * 20]), rules=RULES)
    ((text, samples, file),) = warnings_of(filter_documents, config, tmp_path, context_of)
    check_message(text)
    assert samples == tuple(f"toys/{row + 1} ({len(SHORT[row].split())}, at least 5): {SHORT[row]}" for row in range(3))
    assert len(samples) == WARNING_SAMPLES
    lines = (tmp_path / "output" / file).read_text().splitlines()
    assert {json.loads(line)["id"] for line in lines} == {f"toys/{number}" for number in range(1, 6)}


@pytest.mark.parametrize(("texts", "limit", "warns"), [
    ([LONG, "-" * len(LONG)], 0.5, False),  # a half is not more than a half
    ([LONG, *SHORT[:2]], 0.5, False),  # most documents, and a seventh of the bytes
    ([LONG, *SHORT], 0.5, True),  # four of five documents, and a quarter of the bytes
    ([LONG, *SHORT], 0.7, False),
    ([LONG, LONG, "x" * 3_000], 0.5, True),  # a third of the documents, and most of the bytes
    ([LONG], 0.01, False),
])  # fmt: skip
def test_a_warning_needs_a_larger_share_than_the_limit(tmp_path, context_of, texts, limit, warns):
    config = FilterConfig(documents=given(tmp_path, texts), rules=RULES, warn_above_share=limit)
    assert bool(warnings_of(filter_documents, config, tmp_path, context_of)) == warns


def test_the_limit_is_no_part_of_the_identity(tmp_path):
    one, other = (
        filter_documents("filter", FilterConfig(documents=given(tmp_path, [LONG]), rules=RULES, warn_above_share=limit))
        for limit in (0.1, 0.9)
    )
    assert one.digest == other.digest


def test_duplicates_and_contamination_warn_too(tmp_path, context_of):
    copies = given(tmp_path, [LONG, LONG, LONG])
    ((_, samples, _),) = warnings_of(dedup, DedupConfig(documents=copies), tmp_path, context_of)
    assert samples[0].startswith("toys/1 (of toys/0): ")
    items = own_items(tmp_path, [{"question": LONG}], context_of)[1]
    quoted = DecontaminateConfig(documents=given(tmp_path, [LONG, LONG, "clean"]), evaluation_items=items)
    ((_, samples, _),) = warnings_of(decontaminate, quoted, tmp_path / "clean", context_of)
    assert len(samples) == 2


def own_items(tmp_path, rows, context_of):
    folder = tmp_path / "items"
    folder.mkdir(exist_ok=True)
    (folder / "toy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = DownloadedFile(path="toy.jsonl", name="toy.jsonl", sha256="0" * 64, size_in_bytes=1)
    downloaded = Input(name="files", digest="d" * 64, path=str(folder), result=DownloadResult(files=(file,)))
    context = context_of("items", str(tmp_path / "items-output"))
    result = own_evaluation_items.function(OwnItemsConfig(download=downloaded), context)
    return context, Input(name="items", digest="f" * 64, path=context.output_path, result=result)


def test_items_that_are_not_searched_are_counted(tmp_path, context_of):
    rows = [{"question": LONG}, {"question": "Is it open?", "answer": "yes"}, {"question": "Why?", "label": 1}]
    context, items = own_items(tmp_path, rows, context_of)
    assert items.result.num_not_searched == {"toy": 2}
    ((text, _, _),) = context.output_warnings
    check_message(text)
    context, items = own_items(tmp_path, rows[:1], context_of)
    assert (items.result.num_not_searched, context.output_warnings) == ({}, [])
