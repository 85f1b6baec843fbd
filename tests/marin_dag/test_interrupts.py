"""Interrupts: what is listened to can be put back."""

import signal

import pytest

from marin_dag.errors import UserError
from marin_dag.interrupts import SIGNALS, heard


def test_a_run_does_not_begin_where_it_could_not_put_a_handler_back(monkeypatch: pytest.MonkeyPatch):
    known = signal.getsignal
    before = [known(number) for number in SIGNALS]
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGTERM else known(number))
    with (
        pytest.raises(UserError, match=r"^SIGTERM: what handles it .* was there before Python, .* start the run from"),
        heard(lambda number, frame: None),
    ):
        pass
    assert [known(number) for number in SIGNALS] == before
