"""Interrupts: handlers are restored after a run."""

import signal

import pytest

from marin_dag.run.interrupts import SIGNALS, DriverHandler, signals_handled


def test_a_signal_handler_set_before_python_is_not_restored(monkeypatch: pytest.MonkeyPatch):
    known = signal.signal
    before = [signal.getsignal(number) for number in SIGNALS]
    monkeypatch.setattr(signal, "signal", lambda number, to: (known(number, to), None)[number == signal.SIGTERM])
    with signals_handled(lambda number, frame: None):
        pass
    monkeypatch.undo()
    assert isinstance(signal.signal(signal.SIGTERM, before[1]), DriverHandler)
    assert [signal.getsignal(number) for number in SIGNALS] == before
