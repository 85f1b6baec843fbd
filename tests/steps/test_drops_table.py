"""Drops table: ids and texts of documents are shown literally, whatever Markdown or HTML is in them."""

import pytest
from markdown_it import MarkdownIt

from marin_dag.graph.inputs import Input
from runtime.text.drops import DropLedger
from steps.documents import DocumentsResult
from steps.drops_table import DropsTableConfig, drops_table

STRANGE = (
    "https://toys.example/a_b_c/*/[d](e)",
    "toys/a`b.txt#1",
    "`toys`",
    "``",
    "a``b`c\\",
    "<script>alert(1)</script>",
    "&lt;b&gt; ~~gone~~ **loud** | cell",
    "# no heading",
    "two\nlines",
)


def page_of(run_alone, tmp_path, text):
    """Return the tokens of a page whose only sample has this text as id, detail and excerpt."""
    ledger = DropLedger(samples_per_reason=3)
    ledger.drop("too short", document_id=text, detail=text, text=text)
    ledger.write(str(tmp_path / "dropped.jsonl"))
    result = DocumentsResult(
        shards=(), num_documents=1, num_bytes=1, dropped={"too short": 1}, dropped_samples="dropped.jsonl"
    )
    stage = Input(None, name="filter", digest="f" * 64, path=str(tmp_path), result=result)
    page = run_alone(drops_table, DropsTableConfig(stages=(stage,), names=("filter",)), "drops")
    with open(page.join(page.result.table)) as file:
        return MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(file.read())


@pytest.mark.parametrize("text", STRANGE)
def test_a_sample_is_shown_literally(run_alone, tmp_path, text):
    tokens = page_of(run_alone, tmp_path, text)
    shown = next(token for token in reversed(tokens) if token.type == "inline").children
    line = " ".join(text.split())
    assert [token.type for token in shown] == ["code_inline", "text"]
    assert shown[0].content == line
    assert shown[1].content == f", {line}: {line}"
    assert sum(token.type == "list_item_open" for token in tokens) == 1
