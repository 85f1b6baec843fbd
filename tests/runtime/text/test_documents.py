"""Documents: shards round trip, their bytes depend on the documents alone, and bad shards are refused."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from runtime.text import documents
from runtime.text.documents import Document, DocumentsError, read_batches, read_documents, write_documents
from tests.catalogue import expect_error

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(rows=st.lists(st.builds(Document, TEXT, TEXT, TEXT, TEXT), max_size=20))
def test_documents_round_trip(rows, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("documents") / "a" / "shard.parquet")
    assert write_documents(path, rows) == (len(rows), sum(len(row.text.encode()) for row in rows))
    assert list(read_documents([path, path])) == rows + rows


def test_equal_documents_give_equal_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "ROW_GROUP_BYTES", 100)
    rows = [Document(str(index), "x" * index, "web") for index in range(50)]
    write_documents(str(tmp_path / "list"), rows)
    write_documents(str(tmp_path / "iterator"), iter(rows))
    assert (tmp_path / "list").read_bytes() == (tmp_path / "iterator").read_bytes()
    assert len(list(read_batches(str(tmp_path / "list")))) > 5


def test_a_shard_may_be_in_any_store():
    write_documents("memory://documents/shard.parquet", [Document("1", "a", "web")])
    assert list(read_documents(["memory://documents/shard.parquet"])) == [Document("1", "a", "web", "{}")]


def test_a_shard_that_is_cut_short_is_refused(tmp_path: Path):
    path = tmp_path / "shard.parquet"
    write_documents(str(path), [Document("1", "a" * 1000, "web")])
    path.write_bytes(path.read_bytes()[:-10])
    with expect_error(DocumentsError):
        list(read_documents([str(path)]))


def test_a_table_without_the_columns_is_refused(tmp_path: Path):
    path = str(tmp_path / "shard.parquet")
    pq.write_table(pa.table({"id": ["1"], "content": ["a"]}), path)
    with expect_error(DocumentsError):
        list(read_documents([path]))
    names = ["id", "text", "source", "metadata", "text"]
    pq.write_table(pa.Table.from_arrays([pa.array([name]) for name in names], names=names), path)
    with expect_error(DocumentsError):
        list(read_documents([path]))


def test_a_lone_surrogate_is_refused(tmp_path: Path):
    with expect_error(DocumentsError):
        write_documents(str(tmp_path / "shard.parquet"), [Document("7", "\ud800", "web")])
