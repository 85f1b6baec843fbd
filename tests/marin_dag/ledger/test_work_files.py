"""Work code: unreadable marks are errors, deleted ones are ignored."""

from pathlib import Path

import pytest

from marin_dag.ledger.work_files import work_codes, write_work_code
from marin_dag.store.local import LocalStore
from marin_dag.store.store import StoreError
from tests.catalogue import expect_error

DIGEST = "ab" * 32


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"code": 1}', b'{"code": {"fingerprint": "f"}}'])
def test_an_unreadable_mark_is_an_error_and_a_deleted_one_is_ignored(tmp_path: Path, data: bytes):
    store = LocalStore(str(tmp_path))
    identity = {"code": {"fingerprint": "f" * 64, "definitions": {"a.b": "c"}, "version": "1"}}
    write_work_code(store, f"work/{DIGEST}", identity, None)
    left = f"code/{'f' * 64}.json"
    assert work_codes(store, DIGEST, [left, "saved", "code/gone.json"]) == [identity]
    store.write(f"work/{DIGEST}/{left}", data)
    with expect_error(StoreError):
        work_codes(store, DIGEST, [left])
