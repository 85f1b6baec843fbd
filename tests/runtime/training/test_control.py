"""Control: every request becomes one decision that all hosts carry out at once, and none is lost or repeated."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from runtime.parallel.hosts import StopNotice
from runtime.training import control as control_module
from runtime.training.control import Action, Control, Decision
from tests.catalogue import check_message
from tests.runtime.training.small_run import Desk, first_action, stop_when

ROOT = Path(__file__).parents[3]
PATIENCE_SECONDS = 480.0


def test_a_signal_stops_hosts_that_wait_in_the_agreement_or_for_data():
    """Two JAX processes: host 0 is in the collective when SIGTERM comes, host 1 waits for its batch."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    with socket.socket() as holder:  # reserves the port
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{holder.getsockname()[1]}"
        command = [sys.executable, "-m", "tests.runtime.training.two_hosts", coordinator]
        hosts = [
            subprocess.Popen([*command, str(index)], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
            for index in range(2)
        ]
        try:
            assert hosts[0].stdout is not None
            first_lines = []
            while first_lines[-2:] != ["updated\n", "says 0\n"]:
                first_lines.append(hosts[0].stdout.readline())
                assert first_lines[-1], "it ended"
            hosts[0].send_signal(signal.SIGTERM)  # it has decided to continue at this step
            lines = [host.communicate(timeout=PATIENCE_SECONDS)[0].splitlines() for host in hosts]
        finally:
            for host in hosts:
                host.kill()
                host.communicate()
    assert lines[0] == ["hears SAVE_AND_EXIT signal SIGTERM"]
    *_, updated, decided, reason = lines[1]
    assert (updated, decided) == ("updated", f"says {Action.SAVE_AND_EXIT:d}")
    assert reason.startswith("hears SAVE_AND_EXIT ")
    assert [host.returncode for host in hosts] == [0, 0]


def test_a_host_that_finds_the_notice_decides_to_stop_itself():
    shelf = Shelf()
    shelf.is_left = lambda: True  # type: ignore[method-assign]
    numbers: list[int] = []

    def agree(number: int) -> int:
        numbers.append(number)
        return number

    control = Control(agree=agree, notice=shelf)
    assert control.is_stopping()
    assert first_action(control) == Action.SAVE_AND_EXIT
    assert numbers == [Decision(Action.SAVE_AND_EXIT).number]
    check_message(control.reason)


def test_a_stop_precedes_a_save_that_is_due():
    is_stopped = False
    control = Control(stop_when(lambda: is_stopped))
    assert [first_action(control, is_save_due=is_due) for is_due in (True, False)] == [Action.SAVE, Action.CONTINUE]
    is_stopped = True
    assert first_action(control, is_save_due=True) == Action.SAVE_AND_EXIT
    assert first_action(control) == Action.SAVE_AND_EXIT, "a stop is final"
    assert control.reason == "the driver asked to stop"


def test_the_first_request_to_stop_is_the_reason():
    control = Control(agree=lambda number: Decision(Action.SAVE_AND_EXIT).number)
    control.request_exit("a signal")
    control.request_exit("another signal")
    assert first_action(control) == Action.SAVE_AND_EXIT
    assert control.reason == "a signal"


def test_requests_are_carried_out_one_after_another_and_each_once():
    desk = Desk()
    control = Control(requests=desk.open)
    saves = [desk.request(Action.SAVE) for _ in range(2)]
    desk.request(Action.PUBLISH, 7)
    next_ones = [desk.request(Action.PUBLISH) for _ in range(2)]
    decisions = [control.decide(3 + number, until_step=9) for number in range(4)]
    found = [(each.action, each.step) for each in decisions]
    assert found == [(Action.PUBLISH, 7), (Action.PUBLISH, 5), (Action.SAVE, 0), (Action.CONTINUE, 0)]
    decisions[2].reply("saved")
    assert desk.replies == dict.fromkeys(saves, "saved"), "all requests get the reply"
    decisions[1].reply("published")
    assert [desk.replies[each] for each in next_ones] == ["published"] * 2, "one milestone for both"
    assert desk.refused == set()


@pytest.mark.parametrize("step", [3, 10])
def test_a_request_for_a_step_outside_of_the_run_is_refused_at_once(step):
    desk = Desk()
    request = desk.request(Action.PUBLISH, step)
    assert Control(requests=desk.open).decide(3, until_step=9) == Decision(Action.CONTINUE)
    assert desk.refused == {request}
    check_message(desk.replies[request])


def test_a_request_to_this_host_waits_for_a_larger_decision_of_another():
    desk, others = Desk(), [Decision(Action.PUBLISH, 8).number, Decision(Action.CONTINUE).number]
    desk.request(Action.PUBLISH, 5)
    desk.request(Action.SAVE)
    control = Control(requests=desk.open, agree=lambda number: max(number, others.pop(0) if others else 0))
    decisions = [control.decide(2, until_step=9) for _ in range(4)]
    found = [(each.action, each.step) for each in decisions]
    assert found == [(Action.PUBLISH, 8), (Action.PUBLISH, 5), (Action.SAVE, 0), (Action.CONTINUE, 0)]
    assert [len(each.requests) for each in decisions] == [0, 1, 1, 0]


def test_a_stop_precedes_all_requests():
    desk = Desk()
    desk.request(Action.PUBLISH, 2**40)
    control = Control(lambda: "anna stops it", requests=desk.open)
    assert control.decide(3, until_step=2**41) == Decision(Action.SAVE_AND_EXIT)
    assert control.reason == "anna stops it"


class Shelf(StopNotice):
    """A notice that counts how often it is left."""

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
def test_a_failing_driver_is_logged_and_polled_again(caplog: pytest.LogCaptureFixture):
    shelf, questions = Shelf(), iter([ConnectionError("no route"), "", "asked"])

    def stop_reason() -> str:
        answer = next(questions)
        if isinstance(answer, Exception):
            raise answer
        return answer

    control = Control(stop_reason, notice=shelf)
    with caplog.at_level(logging.WARNING), control.listening():
        assert shelf.times.acquire(timeout=PATIENCE_SECONDS)
    [message] = caplog.messages
    check_message(message)
    assert control.is_stopping()


@pytest.mark.usefixtures("quickly_polled")
def test_the_notice_is_not_left_once_all_have_agreed():
    shelf, rounds = Shelf(), threading.Semaphore(0)
    control = Control(agree=lambda number: Decision(Action.SAVE_AND_EXIT).number, notice=shelf)
    assert first_action(control) == Action.SAVE_AND_EXIT
    leave = control._leave_notice

    def counted() -> None:
        leave()
        rounds.release()

    control._leave_notice = counted  # type: ignore[method-assign]
    with control.listening():
        for _ in range(3):
            assert rounds.acquire(timeout=PATIENCE_SECONDS)
    assert not shelf.times.acquire(blocking=False)
