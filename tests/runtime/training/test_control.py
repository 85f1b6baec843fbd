"""Control: every wish becomes one word that all hosts act on at once, and no wish is lost or stays for ever."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from runtime.training import control as control_module
from runtime.training.control import Action, Control, Decision
from runtime.training.stop_notice import StopNotice
from tests.runtime.training.small_run import Desk, first_action, stop_when

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 480.0


def test_a_host_that_waits_in_the_agreement_hears_a_signal_and_so_does_the_one_that_waits_for_data(tmp_path: Path):
    """Two JAX processes: host 0 is in the collective when SIGTERM comes, host 1 waits for its batch."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    with socket.socket() as holder:  # of a port that nobody else gets meanwhile
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        coordinator, notice = f"127.0.0.1:{holder.getsockname()[1]}", str(tmp_path / "stops" / "attempt")
        command = [sys.executable, "-m", "tests.runtime.training.two_hosts", coordinator, notice]
        hosts = [
            subprocess.Popen([*command, str(index)], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
            for index in range(2)
        ]
        try:
            assert hosts[0].stdout is not None
            said_by_first = []
            while said_by_first[-2:] != ["updated\n", "says 0\n"]:
                said_by_first.append(hosts[0].stdout.readline())
                assert said_by_first[-1], "it ended"
            hosts[0].send_signal(signal.SIGTERM)  # its word for this update has been said, and was to go on
            said = [host.communicate(timeout=PATIENCE_SECONDS)[0].splitlines() for host in hosts]
        finally:
            for host in hosts:
                host.kill()
                host.communicate()
    assert said[0] == ["hears SAVE_AND_EXIT signal SIGTERM"]
    assert said[1][-3:] == [
        "updated",
        f"says {Action.SAVE_AND_EXIT:d}",
        "hears SAVE_AND_EXIT another host was asked to stop",
    ]
    assert [host.returncode for host in hosts] == [0, 0]


def test_a_host_that_finds_the_notice_says_so_itself_for_who_left_it_may_have_said_its_word_before(tmp_path: Path):
    StopNotice(str(tmp_path / "notice")).leave()
    words: list[int] = []

    def agree(word: int) -> int:
        words.append(word)
        return word

    control = Control(agree=agree, notice=StopNotice(str(tmp_path / "notice")))
    assert control.is_stopping()
    assert first_action(control) == Action.SAVE_AND_EXIT
    assert words == [Decision(Action.SAVE_AND_EXIT).number]
    assert control.reason == "another host was asked to stop"


def test_a_save_that_is_due_is_made_once_and_a_wish_to_stop_is_heard_above_it():
    is_asked = False
    control = Control(stop_when(lambda: is_asked))
    assert [first_action(control, is_save_due=is_due) for is_due in (True, False)] == [Action.SAVE, Action.CONTINUE]
    is_asked = True
    assert first_action(control, is_save_due=True) == Action.SAVE_AND_EXIT
    assert first_action(control) == Action.SAVE_AND_EXIT, "it stays so"
    assert control.reason == "the driver asked to stop"


def test_who_asked_first_is_the_reason():
    control = Control(agree=lambda number: Decision(Action.SAVE_AND_EXIT).number)
    control.request_exit("a signal")
    control.request_exit("another signal")
    assert first_action(control) == Action.SAVE_AND_EXIT
    assert control.reason == "a signal"


def test_what_is_asked_becomes_one_order_after_another_and_each_is_given_once():
    desk = Desk()
    control = Control(requests=desk.open)
    saves = [desk.request(Action.SAVE) for _ in range(2)]
    desk.request(Action.PUBLISH, 7)
    next_ones = [desk.request(Action.PUBLISH) for _ in range(2)]
    orders = [control.decide(3 + number, until_step=9) for number in range(4)]
    words = [(order.action, order.step) for order in orders]
    assert words == [(Action.PUBLISH, 7), (Action.PUBLISH, 5), (Action.SAVE, 0), (Action.CONTINUE, 0)]
    orders[2].reply("saved")
    assert desk.replies == dict.fromkeys(saves, "saved"), "all that wanted it"
    orders[1].reply("published")
    assert [desk.replies[each] for each in next_ones] == ["published"] * 2, "one milestone for both"
    assert desk.refused == set()


@pytest.mark.parametrize(
    ("step", "said"),
    [(3, "it is past step 3, at 3"), (10, "this run stops at 9; one that goes on to 10 publishes it")],
)
def test_who_wants_a_step_that_the_run_does_not_come_by_is_told_so_at_once(step, said):
    desk = Desk()
    request = desk.request(Action.PUBLISH, step)
    assert Control(requests=desk.open).decide(3, until_step=9) == Decision(Action.CONTINUE)
    assert desk.replies == {request: said} and desk.refused == {request}


def test_what_is_asked_of_this_host_waits_while_another_wants_more():
    desk, others = Desk(), [Decision(Action.PUBLISH, 8).number, Decision(Action.CONTINUE).number]
    desk.request(Action.PUBLISH, 5)
    desk.request(Action.SAVE)
    control = Control(requests=desk.open, agree=lambda number: max(number, others.pop(0) if others else 0))
    orders = [control.decide(2, until_step=9) for _ in range(4)]
    words = [(order.action, order.step) for order in orders]
    assert words == [(Action.PUBLISH, 8), (Action.PUBLISH, 5), (Action.SAVE, 0), (Action.CONTINUE, 0)]
    assert [len(order.requests) for order in orders] == [0, 1, 1, 0]


def test_a_wish_to_stop_goes_before_all_that_is_asked():
    desk = Desk()
    desk.request(Action.PUBLISH, 2**40)
    control = Control(lambda: "anna told it to stop", requests=desk.open)
    assert control.decide(3, until_step=2**41) == Decision(Action.SAVE_AND_EXIT)
    assert control.reason == "anna told it to stop"


class Shelf(StopNotice):
    """A notice that tells the test when it is left, and can fail."""

    def __init__(self) -> None:
        self.times = threading.Semaphore(0)

    def leave(self) -> None:
        self.times.release()

    def is_left(self) -> bool:
        return False


@pytest.fixture
def quickly_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "POLL_SECONDS", 0.01)


@pytest.mark.usefixtures("quickly_polled")
def test_a_driver_that_cannot_be_asked_is_told_and_asked_again(caplog: pytest.LogCaptureFixture):
    shelf, questions = Shelf(), iter([ConnectionError("no route"), "", "asked"])

    def stop_reason() -> str:
        answer = next(questions)
        if isinstance(answer, Exception):
            raise answer
        return answer

    control = Control(stop_reason, notice=shelf)
    with caplog.at_level(logging.WARNING), control.listening():
        assert shelf.times.acquire(timeout=PATIENCE_SECONDS)
    assert caplog.messages == ["the driver cannot be asked whether to stop (ConnectionError: no route)"]
    assert control.is_stopping()


@pytest.mark.usefixtures("quickly_polled")
def test_the_notice_is_not_left_once_all_have_agreed():
    shelf, rounds = Shelf(), threading.Semaphore(0)
    control = Control(agree=lambda number: Decision(Action.SAVE_AND_EXIT).number, notice=shelf)
    assert first_action(control) == Action.SAVE_AND_EXIT
    tell = control._tell_others

    def counted() -> None:
        tell()
        rounds.release()

    control._tell_others = counted  # type: ignore[method-assign]
    with control.listening():
        for _ in range(3):
            assert rounds.acquire(timeout=PATIENCE_SECONDS)
    assert not shelf.times.acquire(blocking=False)
