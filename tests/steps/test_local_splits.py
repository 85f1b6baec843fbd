"""A plan refuses own sources of which a split would be empty, and warns of few held-out documents."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_dag.graph.graph import Graph
from marin_dag.plan.config_checks import RefusedStepsError
from marin_dag.plan.plan import make_plan
from marin_dag.store.prefix import open_store
from pipelines import recipe
from pipelines.lint import lint
from pipelines.source import WEB_RULES
from runtime.data.splits import FEW_DOCUMENTS, is_validation, small_split
from runtime.text.extraction.formats import HtmlPages, JsonLines, ParquetTable
from runtime.text.filter_rules import C4Lines
from steps.fetch import Url
from tests.catalogue import check_message, expect_error

TEXTS = [f"A text about the number {number}." for number in range(40)]


@pytest.fixture
def planned(tmp_path):
    """Return a function that plans token caches of the texts, and returns the graph."""

    def plan(texts, share, *, fetch=None, format_=None, rules=(), **changes):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        path.mkdir()
        if isinstance(format_, ParquetTable):
            pq.write_table(pa.table({"text": texts}), path / "notes.parquet")
        else:
            name = "notes.html" if isinstance(format_, HtmlPages) else "notes.jsonl"
            (path / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        documents = {"notes": recipe.documents("notes", fetch or f"{path}/notes.*", format_, rules=rules)}
        tokenizer = recipe.tokenizer(documents, vocab_size=300)
        (cache,) = recipe.token_caches(documents, tokenizer, validation_share=share).values()
        graph = Graph([cache])
        make_plan(graph, open_store(f"{path}/prefix"))
        return graph

    return plan


@pytest.mark.parametrize("format_", [None, ParquetTable()], ids=["lines", "table"])
@pytest.mark.parametrize(("share", "num_texts"), [(1e-9, 40), (1 - 1e-9, 40), (0.5, 1)])
def test_an_own_source_with_an_empty_split_is_refused_by_the_plan(planned, format_, share, num_texts):
    with expect_error(RefusedStepsError):
        planned(TEXTS[:num_texts], share, format_=format_)


def test_the_share_of_the_message_makes_a_plan_without_a_warning(planned):
    (warning,) = lint(planned(TEXTS, 0.1))["tokenize/notes"]
    check_message(f"{warning.text}; instead: {warning.options('tokenize/notes')}")
    assert lint(planned(TEXTS, float(warning.cure["validation_share"]))) == {}


def test_a_run_warns_of_few_held_out_documents_before_it_starts_a_step(planned, tmp_path, monkeypatch, capsys):
    graph = planned(TEXTS, 0.1)
    monkeypatch.setattr("marin_dag.cli.run._run_and_copy", lambda session, plan: 0)
    assert recipe.main(lambda _: graph.targets, name="toy", argv=["--prefix", str(tmp_path / "runs")]) == 0
    check_message(capsys.readouterr().err)


@pytest.mark.parametrize(
    "source",
    [
        {"fetch": Url(url="https://texts.example/notes.jsonl", sha256="0" * 64, file_name="notes.jsonl")},
        {"format_": HtmlPages()},
        {"rules": (*WEB_RULES, C4Lines())},
    ],
    ids=["remote", "pages", "edited"],
)
def test_a_source_whose_texts_no_plan_knows_is_left_to_its_step(planned, source):
    assert lint(planned(TEXTS, 1e-9, **source)) == {}


@pytest.mark.parametrize(
    ("texts", "format_"),
    [(TEXTS, ParquetTable(text_field="absent")), (TEXTS, JsonLines(text_field="absent")), ([""], None)],
)
def test_a_file_without_texts_is_left_to_its_step(planned, texts, format_):
    assert lint(planned(texts, 1e-9, format_=format_)) == {}


@given(st.lists(st.binary(max_size=3), max_size=80), st.sampled_from([1e-9, 0.01, 0.2, 0.5, 0.9, 1 - 1e-9]))
def test_a_split_is_small_if_a_count_says_so_and_the_better_share_splits_the_texts(texts, share):
    held_out = sum(is_validation(text, share) for text in texts)
    small = small_split(texts, share)
    if held_out >= FEW_DOCUMENTS and held_out < len(texts):
        assert small is None
        return
    assert small is not None and small[:2] == (len(texts), held_out)
    assert (small.empty is None) == (0 < held_out < len(texts))
    if small.better_share is not None:
        better = sum(is_validation(text, small.better_share) for text in texts)
        assert min(FEW_DOCUMENTS, max(1, len(texts) // 5)) <= better < len(texts)


def test_the_check_reads_no_more_documents_than_it_takes():
    def texts():
        for text in TEXTS[:39]:
            yield text.encode()
        raise AssertionError("read too many")

    assert small_split(texts(), 0.9) is None
