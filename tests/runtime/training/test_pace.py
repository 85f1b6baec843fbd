"""Pace: one alarm for a lasting slowdown, and none for a passing one."""

import itertools
from collections.abc import Iterable

import numpy as np
import pytest

from runtime.tracking.events import read_events
from runtime.training import meter as pace
from runtime.training.meter import WINDOW_STEPS, Pace
from tests.runtime.training import small_run


def alarms(monkeypatch: pytest.MonkeyPatch, seconds: Iterable[float], *, is_shared: bool = False) -> list[int]:
    """Return the steps with an alarm, for steps of these durations."""
    moments = itertools.accumulate(seconds, initial=0.0)
    monkeypatch.setattr(pace.time, "monotonic", lambda: next(moments))
    watch = Pace(is_shared=is_shared)
    watch.end_step(0)
    return [alarm.step for step, _ in enumerate(seconds, start=1) for alarm in watch.end_step(step)]


def lengths(*parts: tuple[int, float], noise: float = 0.02) -> list[float]:
    """Return durations in seconds: so many steps of each mean."""
    rng = np.random.default_rng(0)
    return [float(mean * (1 + noise * abs(rng.standard_t(3)))) for number, mean in parts for _ in range(number)]


def test_one_slow_node_is_one_alarm_after_three_windows(monkeypatch):
    """BLOOM-176B: 149 to 140 TFLOPs."""
    assert alarms(monkeypatch, lengths((1_000, 1.40), (2_000, 1.49))) == [1_000 + 3 * WINDOW_STEPS]


def test_a_second_slowdown_is_a_second_alarm(monkeypatch):
    seconds = lengths((500, 1.0), (400, 1.1), (300, 1.0), (400, 1.1))
    assert alarms(monkeypatch, seconds) == [800, 1_500]


@pytest.mark.parametrize(
    "seconds",
    [
        lengths((5_000, 1.0), noise=0.05),
        lengths((500, 1.0), (140, 2.0), (500, 1.0)),
        lengths((100, 3.0), (2_000, 1.0), (2_000, 1.03)),
        [9.0 if update % 20 == 0 else 1.0 for update in range(2_000)],
    ],
    ids=["noise", "minutes", "a slow beginning and 3 %", "one in twenty"],
)
def test_a_passing_slowdown_is_silent(monkeypatch, seconds):
    assert alarms(monkeypatch, seconds) == []


def test_shared_cores_are_silent(monkeypatch):
    assert alarms(monkeypatch, lengths((500, 1.0), (900, 2.0)), is_shared=True) == []


def test_interrupted_steps_are_not_compared(monkeypatch):
    moments = itertools.count(0.0, 1.0)
    monkeypatch.setattr(pace.time, "monotonic", lambda: next(moments))
    watch = Pace(is_shared=False)
    for step in range(2 * WINDOW_STEPS):
        watch.end_step(step)
    for step in range(10 * WINDOW_STEPS):
        next(moments)  # every step takes two seconds, one of them for a checkpoint
        watch.interrupt()
        assert watch.end_step(step) == []


def test_a_slow_run_commits_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(pace, "WINDOW_STEPS", 2)
    monkeypatch.setattr("runtime.training.loop.jax.default_backend", lambda: "tpu")
    now = [0.0]
    monkeypatch.setattr(pace.time, "monotonic", lambda: now[0])
    made = itertools.count(1)

    def slow_from_the_fifth_on(*arguments):
        now[0] += 1.0 if next(made) < 5 else 2.0
        return small_run.train_step(*arguments)

    monkeypatch.setattr("runtime.training.loop.STALL_SECONDS", 60.0)
    small_run.run(tmp_path / "slow", lease_epoch=1, checkpoint_every_steps=100, step_function=slow_from_the_fifth_on)
    (alarm,) = [event for event in read_events(str(tmp_path / "slow/events/1.jsonl")) if event["event"] == "alarm"]
    assert (alarm["monitor"], alarm["step"]) == ("pace", 9)
    monkeypatch.undo()
    small_run.run(tmp_path / "plain", lease_epoch=1, checkpoint_every_steps=100)
    assert small_run.committed_bytes(tmp_path / "slow") == small_run.committed_bytes(tmp_path / "plain")
