"""Profiles: the requested steps are traced, and the run neither fails nor differs."""

import gzip
import json
import shutil
import sys
import tempfile
import threading
from pathlib import Path

import jax
import pytest

from runtime.tracking.events import read_events
from runtime.training import profiling
from runtime.training.control import Action, Control
from runtime.training.loop import TrainingStopped
from tests.catalogue import check_message
from tests.runtime.training import small_run
from tests.runtime.training.small_run import Desk, committed_bytes


class Requesting:
    """The train step of the small run, with requests for profiles after some steps."""

    def __init__(self, desk: Desk, *after: int) -> None:
        self._desk, self._after = desk, after
        self.steps = 0

    def __call__(self, *arguments):
        result = small_run.train_step(*arguments)
        self.steps += 1
        if self.steps in self._after:
            self._desk.request(Action.PROFILE)
        return result


def traced(folder: Path) -> list[int]:
    """Return the steps of a trace."""
    trace = json.loads(gzip.decompress((folder / "host-0.trace.json.gz").read_bytes()))
    of_steps = [event for event in trace["traceEvents"] if event.get("name") == "step"]
    return sorted(int(event["args"]["step_num"]) for event in of_steps)


def test_the_next_five_steps_are_traced_and_the_run_is_the_same(tmp_path):
    desk = Desk()
    control, requesting = Control(requests=desk.open), Requesting(desk, 2)
    small_run.run(tmp_path / "profiled", lease_epoch=1, control=control, step_function=requesting)
    small_run.run(tmp_path / "plain", lease_epoch=1)
    folder = tmp_path / "profiled/profiles/plugins/profile/steps-3-7"
    check_message(desk.replies["0"])
    assert sorted(path.name for path in folder.iterdir()) == ["host-0.trace.json.gz", "host-0.xplane.pb"]
    assert traced(folder) == [3, 4, 5, 6, 7]
    assert committed_bytes(tmp_path / "profiled") == committed_bytes(tmp_path / "plain")
    (event,) = [
        event for event in read_events(str(tmp_path / "profiled/events/1.jsonl")) if event["event"] == "profile"
    ]
    assert (event["first_step"], event["step"]) == (3, 7) and all(map(Path.exists, map(Path, event["paths"])))


def test_a_profile_calls_no_audit_hook_in_the_name_of_another_thread(tmp_path):
    """Steps run under an audit hook. One that switches threads there crashes the process."""
    desk, events, is_listening = Desk(), [], True
    desk.request(Action.PROFILE)
    sys.addaudithook(lambda event, _: events.append(event) if is_listening and event == "sys.setprofile" else None)
    small_run.run(tmp_path, lease_epoch=1, control=Control(requests=desk.open))
    is_listening = False
    assert traced(tmp_path / "profiles/plugins/profile/steps-1-5") == [1, 2, 3, 4, 5]
    assert not events


def test_a_second_request_meanwhile_is_refused_and_one_near_the_end_gets_the_remaining_steps(tmp_path):
    desk = Desk()
    control, requesting = Control(requests=desk.open), Requesting(desk, 2, 4, 9)
    small_run.run(tmp_path, lease_epoch=1, control=control, step_function=requesting)
    assert desk.refused == {"1"}
    check_message(desk.replies["1"])
    assert traced(tmp_path / "profiles/plugins/profile/steps-10-12") == [10, 11, 12]


def test_a_stopped_run_leaves_no_trace_and_the_next_one_can_be_profiled(tmp_path):
    desk = Desk()
    requesting = Requesting(desk, 2)
    control = Control(lambda: "the driver" if requesting.steps == 4 else "", requests=desk.open)
    with pytest.raises(TrainingStopped):
        small_run.run(tmp_path, lease_epoch=1, control=control, step_function=requesting)
    assert not desk.replies and not (tmp_path / "profiles").exists()

    desk.requests.clear()
    desk.request(Action.PROFILE)
    small_run.run(tmp_path, lease_epoch=2, control=Control(requests=desk.open))
    assert traced(tmp_path / "profiles/plugins/profile/steps-5-9") == [5, 6, 7, 8, 9]


def test_the_run_continues_without_a_trace_that_cannot_be_written(tmp_path):
    desk = Desk()
    desk.request(Action.PROFILE)
    (tmp_path / "profiles").write_text("a file where the folder would be")
    small_run.run(tmp_path, lease_epoch=1, control=Control(requests=desk.open))
    assert desk.refused == {"0"} and sorted(small_run.records(tmp_path)) == [12]


def test_a_request_beside_another_profiler_is_refused(tmp_path):
    desk = Desk()
    desk.request(Action.PROFILE)
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    jax.profiler.start_trace(str(tmp_path / "theirs"), profiler_options=options)
    try:
        small_run.run(tmp_path, lease_epoch=1, control=Control(requests=desk.open))
    finally:
        jax.profiler.stop_trace()
    assert desk.refused == {"0"}
    assert list((tmp_path / "theirs").rglob("*.xplane.pb"))


def test_the_run_continues_where_there_is_no_space_for_a_trace(tmp_path, monkeypatch):
    desk = Desk()
    desk.request(Action.PROFILE)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "no such folder"))
    small_run.run(tmp_path, lease_epoch=1, control=Control(requests=desk.open))
    assert desk.refused == {"0"} and sorted(small_run.records(tmp_path)) == [12]


def test_a_run_stops_where_its_trace_cannot_be_ended(tmp_path, monkeypatch):
    """JAX writes a trace as it ends it, which is an error on a full disk."""
    desk = Desk()
    requesting, stop = Requesting(desk, 2), jax.profiler.stop_trace

    def full_disk():
        stop()
        raise RuntimeError("No space left on device")

    monkeypatch.setattr(jax.profiler, "stop_trace", full_disk)
    control = Control(lambda: "the driver" if requesting.steps == 4 else "", requests=desk.open)
    with pytest.raises(TrainingStopped):
        small_run.run(tmp_path, lease_epoch=1, control=control, step_function=requesting)
    assert not desk.replies

    desk.requests.clear()
    desk.request(Action.PROFILE)
    small_run.run(tmp_path, lease_epoch=2, control=Control(requests=desk.open))
    assert desk.refused == {"0"}
    assert sorted(small_run.records(tmp_path)) == [12]


def test_a_bucket_that_does_not_answer_delays_no_step(tmp_path, monkeypatch):
    desk = Desk()
    desk.request(Action.PROFILE)
    is_trained = threading.Event()

    class Slow:
        def makedirs(self, path, exist_ok):
            assert is_trained.wait(60)
            Path(path).mkdir(parents=True, exist_ok=exist_ok)

        def put_file(self, source, target):
            shutil.copy(source, target)

    local = profiling.fsspec.core.url_to_fs
    slow = lambda path, **options: (Slow(), path) if "/profiles/" in path else local(path, **options)  # noqa: E731
    monkeypatch.setattr(profiling.fsspec.core, "url_to_fs", slow)
    requesting = Requesting(desk)

    def step(*arguments):
        if requesting.steps == 11:
            is_trained.set()
        return requesting(*arguments)

    small_run.run(
        tmp_path, lease_epoch=1, checkpoint_every_steps=100, control=Control(requests=desk.open), step_function=step
    )
    assert desk.replies and not desk.refused
    assert traced(tmp_path / "profiles/plugins/profile/steps-1-5") == [1, 2, 3, 4, 5]
