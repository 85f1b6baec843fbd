"""Preemption: two saves must fit into a notice, and a save that is too slow is warned about once."""

import pytest

from runtime.tracking.events import EventLog, read_events
from runtime.training.saving import Preemption
from tests.catalogue import check_message, expect_error


@pytest.fixture
def warnings() -> list[str]:
    return []


def noted(tmp_path, warnings: list[str], notice_seconds: float | None, *seconds: float) -> list[dict]:
    """Return the events of saves of these durations."""
    path = str(tmp_path / "events.jsonl")
    with EventLog(path) as events:
        preemption = Preemption(notice_seconds, events, warnings.append)
        for index, each in enumerate(seconds):
            preemption.note_save(100 * index, seconds=each, size_in_bytes=147 * 10**9)
    return read_events(path)


def test_a_save_longer_than_half_of_the_notice_is_warned_about(tmp_path, warnings):
    (event,) = noted(tmp_path, warnings, 600.0, 299.0, 301.0)
    assert (event["event"], event["step"], event["save_seconds"]) == ("slow_save", 100, 301.0)
    assert (event["notice_seconds"], event["needed_seconds"]) == (600.0, 660)
    (warning,) = warnings
    check_message(warning)


def test_saves_that_fit_and_saves_without_a_known_notice_are_silent(tmp_path, warnings):
    assert noted(tmp_path, warnings, 600.0, 1.0, 300.0, 40.0) == []
    assert noted(tmp_path, warnings, None, 4_000.0) == []
    assert warnings == []


def test_a_later_save_is_warned_about_where_it_takes_twice_as_long(tmp_path, warnings):
    events = noted(tmp_path, warnings, 600.0, 400.0, 500.0, 800.0, 801.0, 900.0)
    assert [event["save_seconds"] for event in events] == [400.0, 801.0]


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_notice_without_time_is_an_error(tmp_path, warnings, seconds):
    with expect_error(ValueError):
        noted(tmp_path, warnings, seconds)
