"""Contestants in turn: prepared ahead, never two at a time, and none left behind."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.in_turn import InTurn
from tests.catalogue import expect_error

ROOT = Path(__file__).resolve().parents[2]
CONTESTANT = """
import json, pathlib, sys, time
sys.path.insert(0, {root!r})
from benchmarks.in_turn import wait_for_turn
log, name = pathlib.Path({log!r}), sys.argv[1]
def say(word):
    with log.open("a") as file:
        file.write(word + " " + name + "\\n")
def measure():
    say("begins")
    if name == "a":  # the next one gets ready without waiting for its end
        while "prepared b" not in log.read_text():
            time.sleep(0.01)
    if name == "bad":
        sys.exit(3)
    say("ends")
    return {{"name": name}}
print("a library is loaded")
say("prepared")
wait_for_turn(measure)
"""


def in_turn_of(folder: Path, *names: str) -> InTurn:
    text = CONTESTANT.format(root=str(ROOT), log=str(folder / "log"))
    return InTurn([(("side", name), [sys.executable, "-c", text, name]) for name in names])


def test_each_has_its_turn_alone_and_the_next_prepare_themselves_meanwhile(tmp_path: Path) -> None:
    names = ["a", "b", "c", "d"]
    with closing(in_turn_of(tmp_path, *names)) as in_turn:
        assert [in_turn.measured("side", name) for name in names] == [{"name": name} for name in names]
    entries = [tuple(line.split()) for line in (tmp_path / "log").read_text().splitlines()]
    turns = [item for item in entries if item[0] != "prepared"]
    assert turns == [(word, name) for name in names for word in ("begins", "ends")]
    assert [word for word, name in entries if name == "d"] == ["prepared", "begins", "ends"]


def test_a_failed_command_is_reported_and_the_others_have_their_turns(tmp_path: Path) -> None:
    with closing(in_turn_of(tmp_path, "bad", "c", "bad", "b")) as in_turn:
        assert in_turn.measured("side", "bad", may_fail=True) == {"failed": "exit code 3; its error is above"}
        assert in_turn.measured("side", "c") == {"name": "c"}
        with expect_error(SystemExit):
            in_turn.measured("side", "bad")


def test_turns_follow_the_given_order_and_a_waiting_command_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    class Watched(subprocess.Popen):
        def __init__(self, *given, **named) -> None:
            super().__init__(*given, **named)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Watched)
    with closing(in_turn_of(tmp_path, "a", "b")) as in_turn, expect_error(ValueError):
        in_turn.measured("side", "b")
    assert [process.returncode for process in started] == [-9, -9]
