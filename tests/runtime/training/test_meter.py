"""Meter: reports of progress, speed and data stalls."""

from types import SimpleNamespace

import pytest

from runtime.tracking.events import EventLog, read_events
from runtime.training import meter as meter_module
from runtime.training.meter import Meter
from runtime.training.observer import Observer


class Recorder(Observer):
    def __init__(self, reports: list) -> None:
        self._reports = reports

    def on_progress(self, *figures) -> None:
        self._reports.append(figures)


def test_before_the_first_update_has_ended_there_is_no_loss_to_tell(tmp_path):
    reports = []
    path = str(tmp_path / "events.jsonl")
    with EventLog(path) as events:
        meter = Meter(until_step=9, tokens_per_step=4, events=events, observer=Recorder(reports))
        meter.tick(3, 12, None, now=True)
        meter.tick(4, 16, 2.5, now=True)
    assert [(step, loss) for step, _, loss in reports] == [(3, None), (4, 2.5)]
    assert [event["loss"] for event in read_events(path)] == [None, 2.5]


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(meter_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_time_in_which_no_update_is_taken_does_not_count_against_the_speed(tmp_path, clock):
    reports = []
    with EventLog(str(tmp_path / "events.jsonl")) as events:
        meter = Meter(until_step=9, tokens_per_step=10, events=events, observer=Recorder(reports))
        meter.tick(1, 10, None, now=True)
        clock.now = 2.0
        with meter.paused():
            clock.now = 7.0
        clock.now = 8.0
        meter.tick(4, 40, 2.5, now=True)
    assert reports[-1][1] == pytest.approx(3 * 10 / 3.0)


def test_the_speed_is_that_of_the_last_seconds_and_not_of_the_last_updates(tmp_path, clock):
    """Ten updates at a time, a second apart: as they end behind a save, or come from a loop that ran ahead."""
    reports = []
    path = str(tmp_path / "events.jsonl")
    with EventLog(path) as events:
        meter = Meter(until_step=999, tokens_per_step=10, events=events, observer=Recorder(reports))
        for second in range(40):
            for update in range(10):
                clock.now = second + 0.06 * update
                meter.tick(10 * second + update, 0, None)
    settled = [tokens_per_second for step, tokens_per_second, _ in reports if step > 100]
    assert len(settled) > 20
    assert settled == pytest.approx([100.0] * len(settled), rel=0.1)
    assert [event["tokens_per_second"] for event in read_events(path)][1:] == pytest.approx([100.0, 100.0], rel=0.1)


@pytest.mark.parametrize(
    ("moments", "expected"),
    [
        ((20.0, 40.0, 41.0, 42.0), [(2, 0.5), (3, 10.0), (4, 10.0), (4, 10.0)]),
        ((20.0, 20.1), [(2, 100.0)]),  # of an attempt that resumed two updates before its end
    ],
)
def test_the_updates_that_wait_for_compilers_count_for_no_later_speed(tmp_path, clock, moments, expected):
    reports = []
    with EventLog(str(tmp_path / "events.jsonl")) as events:
        meter = Meter(until_step=99, tokens_per_step=10, events=events, observer=Recorder(reports))
        for step, moment in enumerate(moments, start=1):
            clock.now = moment
            meter.tick(step, 0, None)
        meter.tick(step, 0, None, now=True)
    assert [(step, speed) for step, speed, _ in reports] == [(step, pytest.approx(speed)) for step, speed in expected]


def test_the_speed_does_not_jump_where_the_device_is_waited_for(tmp_path, clock):
    """The loop is two updates ahead of its device, which takes 12 s for each; every sixth is saved, and waited for."""
    reports = []
    with EventLog(str(tmp_path / "events.jsonl")) as events:
        meter = Meter(until_step=99, tokens_per_step=24, events=events, observer=Recorder(reports))
        for step in range(1, 40):
            ended = step if step % 6 == 0 else max(step - 2, step // 6 * 6)
            clock.now = 12.0 * ended
            meter.tick(ended, 24 * ended, 2.5)
    speeds = [tokens_per_second for step, tokens_per_second, _ in reports if step > 1]
    assert len(speeds) > 20 and speeds == pytest.approx([2.0] * len(speeds))
