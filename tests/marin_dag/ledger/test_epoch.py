"""Epochs: a sealed epoch commits nothing more."""

from pathlib import Path

from marin_dag.ledger.epoch import Epoch, LeaseLostError, seal
from marin_dag.ledger.records import Records
from marin_dag.store.local import LocalStore
from tests.catalogue import expect_error
from tests.marin_dag.ledger.test_records import DIGEST, a_record


def test_a_holder_whose_epoch_is_sealed_publishes_nothing(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))
    epoch, records = Epoch(store, DIGEST, 1), Records(store)
    epoch.commit(a_record(milestone=1))
    seal(store, DIGEST, 1)
    with expect_error(LeaseLostError):
        epoch.commit(a_record(milestone=2))
    assert records.milestone_steps(DIGEST) == [1]
