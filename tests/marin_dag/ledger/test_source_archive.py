"""Source archive: damaged files are errors with their fix."""

import gzip
from pathlib import Path

import pytest

from marin_dag.ledger.source_archive import SOURCES, SourceArchive
from marin_dag.store.local import LocalStore
from marin_dag.store.store import StoreError
from tests.catalogue import expect_error

KEPT = gzip.compress(b'{"a.b": "def b(): ..."}', mtime=0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        KEPT[:10],
        KEPT[:20],
        KEPT[:10] + bytes([KEPT[10] ^ 255]) + KEPT[11:],
        gzip.compress(b"{"),
        gzip.compress(b"[]"),
    ],
    ids=["empty", "a header alone", "cut", "a byte changed", "no JSON", "a list"],
)
def test_a_damaged_archive_is_an_error(tmp_path: Path, data: bytes):
    store = LocalStore(str(tmp_path))
    store.write(f"{SOURCES}/f.json.gz", KEPT)
    assert SourceArchive(store).find("f") == {"a.b": "def b(): ..."}
    store.write(f"{SOURCES}/f.json.gz", data)
    with expect_error(StoreError):
        SourceArchive(store).find("f")
