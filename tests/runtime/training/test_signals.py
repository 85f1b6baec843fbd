"""Signals: heard at once, also where the main thread runs no Python."""

import ctypes
import os
import signal
import socket
import threading

import pytest

from runtime.training.signals import handled
from tests.catalogue import expect_error

PATIENCE_SECONDS = 480.0


class Handler:
    """Writes down the signals that it is called with."""

    def __init__(self, received: list[int]) -> None:
        self._received = received

    def __call__(self, number: int, frame: object) -> None:
        self._received.append(number)


class CMutex:
    """A lock of the C library: no signal ends the wait for it, and no Python runs meanwhile."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._memory = ctypes.create_string_buffer(64)
        self._library.pthread_mutex_init(self._memory, None)

    def acquire(self) -> None:
        self._library.pthread_mutex_lock(self._memory)

    def release(self) -> None:
        self._library.pthread_mutex_unlock(self._memory)


def test_a_signal_is_heard_while_the_main_thread_waits_in_c_code():
    mutex, is_held, was_heard = CMutex(), threading.Event(), threading.Event()
    heard_in: list[threading.Thread] = []
    in_time: list[bool] = []

    def hear(number: signal.Signals) -> None:
        assert number == signal.SIGUSR2
        heard_in.append(threading.current_thread())
        was_heard.set()

    def hold() -> None:
        mutex.acquire()
        is_held.set()
        os.kill(os.getpid(), signal.SIGUSR2)
        in_time.append(was_heard.wait(PATIENCE_SECONDS))
        mutex.release()

    holder = threading.Thread(target=hold)
    with handled([signal.SIGUSR2], hear):
        holder.start()
        is_held.wait()
        mutex.acquire()
        holder.join()
    assert in_time == [True]
    assert sorted(thread is threading.main_thread() for thread in heard_in) == [False, True]


def test_other_listeners_keep_their_signals_and_get_their_places_back():
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    received: list[int] = []
    handler_before = signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    woken_before = signal.set_wakeup_fd(writer.fileno())
    ours = signal.getsignal(signal.SIGUSR2)
    try:
        with handled([signal.SIGUSR2], lambda number: None):
            signal.raise_signal(signal.SIGUSR1)
            assert reader.recv(1) == bytes([signal.SIGUSR1])
        assert signal.getsignal(signal.SIGUSR2) is ours
        signal.raise_signal(signal.SIGUSR1)
        assert reader.recv(1) == bytes([signal.SIGUSR1])
        assert received == [signal.SIGUSR1] * 2
    finally:
        assert signal.set_wakeup_fd(woken_before) == writer.fileno()
        signal.signal(signal.SIGUSR1, handler_before)
        reader.close()
        writer.close()


@pytest.mark.parametrize("kept", [(), (Handler,)])
def test_only_handlers_of_kept_classes_run_inside_the_block(kept: tuple[type, ...]):
    received: list[int] = []
    of_the_process = Handler(received)
    before = signal.signal(signal.SIGUSR2, of_the_process)
    heard_here: list[int] = []
    try:
        with handled([signal.SIGUSR2], heard_here.append, kept=kept):
            signal.raise_signal(signal.SIGUSR2)
        assert signal.getsignal(signal.SIGUSR2) is of_the_process
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert set(heard_here) == {signal.SIGUSR2}
    assert received == [signal.SIGUSR2] * len(kept)


def test_a_foreign_handler_is_an_error_and_left_alone(monkeypatch: pytest.MonkeyPatch):
    known = signal.getsignal
    before, threads = known(signal.SIGUSR1), threading.active_count()
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGUSR2 else known(number))
    with (
        expect_error(RuntimeError),
        handled([signal.SIGUSR1, signal.SIGUSR2], lambda number: None),
    ):
        pass
    assert known(signal.SIGUSR1) is before
    assert threading.active_count() == threads


def test_signals_arrive_despite_a_full_or_closed_earlier_descriptor(caplog: pytest.LogCaptureFixture):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    woken_before = signal.set_wakeup_fd(writer)
    again = threading.Semaphore(0)
    try:
        with handled([signal.SIGUSR2], lambda number: again.release()):
            signal.raise_signal(signal.SIGUSR2)
            assert all(again.acquire(timeout=PATIENCE_SECONDS) for _ in range(2))
            assert caplog.messages == []
            os.close(reader)
            signal.raise_signal(signal.SIGUSR2)
            assert all(again.acquire(timeout=PATIENCE_SECONDS) for _ in range(2))
        assert len(caplog.messages) == 1
    finally:
        signal.set_wakeup_fd(woken_before)
        os.close(writer)
