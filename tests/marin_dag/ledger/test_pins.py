"""Pins: an unreadable one still keeps its output."""

from pathlib import Path

from marin_dag.ledger.pins import Pins
from marin_dag.store.prefix import open_store
from marin_dag.store.store import StoreError
from tests.catalogue import expect_error


def test_an_unreadable_pin_keeps_its_output_and_is_named_with_its_fix(tmp_path: Path) -> None:
    store, key = open_store(str(tmp_path)), "ab" * 32
    store.create(f"pins/{key}.json", b"{}")
    assert Pins(store).pinned() == {key}
    with expect_error(StoreError):
        Pins(store).all()
