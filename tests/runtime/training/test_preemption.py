"""Whether a save fits into a scheduler's notice, as arithmetic: two must, and one that does not is told once."""

import pytest

from runtime.tracking.events import EventLog, read_events
from runtime.training.preemption import Preemption
from tests.catalogue import expect_error


@pytest.fixture
def said() -> list[str]:
    return []


def noted(tmp_path, said: list[str], notice_seconds: float | None, *seconds: float) -> list[dict]:
    """The events of saves that took so long."""
    path = str(tmp_path / "events.jsonl")
    with EventLog(path) as events:
        preemption = Preemption(notice_seconds, events, said.append)
        for index, each in enumerate(seconds):
            preemption.note_save(100 * index, seconds=each, size_in_bytes=147 * 10**9)
    return read_events(path)


def test_a_save_that_is_longer_than_half_of_the_notice_is_told_with_both_and_what_to_ask_for(tmp_path, said):
    (event,) = noted(tmp_path, said, 600.0, 299.0, 301.0)
    assert (event["event"], event["step"], event["save_seconds"]) == ("slow_save", 100, 301.0)
    assert (event["notice_seconds"], event["needed_seconds"]) == (600.0, 660)
    assert said == [
        "step 100: saving 147 GB took 301 s, and the notice before a kill is 600 s: a stop may have to wait for one "
        "save and make another, which may not fit, and what is younger than the last save is then lost. Have the "
        "scheduler give 660 s (Slurm: --signal=B:USR2@660) and say --notice 660, or make saving faster: more hosts, "
        "faster storage"
    ]


def test_saves_that_fit_and_those_of_a_run_that_knows_of_no_notice_are_not_told(tmp_path, said):
    assert noted(tmp_path, said, 600.0, 1.0, 300.0, 40.0) == []
    assert noted(tmp_path, said, None, 4_000.0) == []
    assert said == []


def test_the_next_slow_save_is_told_where_it_takes_twice_as_long(tmp_path, said):
    events = noted(tmp_path, said, 600.0, 400.0, 500.0, 800.0, 801.0, 900.0)
    assert [event["save_seconds"] for event in events] == [400.0, 801.0]


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_notice_of_no_time_is_refused(tmp_path, said, seconds):
    with expect_error(ValueError):
        noted(tmp_path, said, seconds)
