"""What a run tells of how far it is."""

from types import SimpleNamespace

import pytest

from runtime.tracking.events import EventLog, read_events
from runtime.training import meter as meter_module
from runtime.training.meter import Meter


def test_before_the_first_update_has_ended_there_is_no_loss_to_tell(tmp_path):
    told = []
    path = str(tmp_path / "events.jsonl")
    with EventLog(path) as events:
        meter = Meter(until_step=9, tokens_per_step=4, events=events, on_progress=lambda *figures: told.append(figures))
        meter.tick(SimpleNamespace(step=3, consumed_tokens=12), None, now=True)
        meter.tick(SimpleNamespace(step=4, consumed_tokens=16), 2.5, now=True)
    assert [(step, loss) for step, _, loss in told] == [(3, None), (4, 2.5)]
    assert [event["loss"] for event in read_events(path)] == [None, 2.5]


def test_time_in_which_no_update_is_taken_does_not_count_against_the_speed(tmp_path, monkeypatch):
    clock, told = SimpleNamespace(now=0.0), []
    monkeypatch.setattr(meter_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with EventLog(str(tmp_path / "events.jsonl")) as events:
        meter = Meter(
            until_step=9, tokens_per_step=10, events=events, on_progress=lambda *figures: told.append(figures)
        )
        meter.tick(SimpleNamespace(step=1, consumed_tokens=10), None, now=True)
        clock.now = 2.0
        with meter.left_out():
            clock.now = 7.0
        clock.now = 8.0
        meter.tick(SimpleNamespace(step=4, consumed_tokens=40), 2.5, now=True)
    assert told[-1][1] == pytest.approx(3 * 10 / 3.0)
