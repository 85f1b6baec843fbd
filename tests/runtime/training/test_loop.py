"""The loop: cutting it anywhere changes nothing, requesting it to stop loses nothing, a bad update saves nothing."""

import functools
import logging
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.data import loader, prefetch
from runtime.data.cache import TokenCache
from runtime.data.growing_cache import GrowingCache, Growth
from runtime.data.loader import Loader
from runtime.data.mixing.loss_drop import LossDrop
from runtime.data.mixture import MixtureSchedule
from runtime.data.prefetch import sleep
from runtime.optim.skip_rule import SkipRule
from runtime.parallel.hosts import StopNotice
from runtime.tracking.events import read_events
from runtime.tracking.metrics import MetricsTable
from runtime.tracking.parts import MEASURED
from runtime.training import checkpoint, meter, run_state, saving
from runtime.training import control as control_module
from runtime.training.checkpoint_reader import CheckpointError
from runtime.training.control import Action, Control, Decision
from runtime.training.figures import NonFiniteError, NoTargetsError, SkippedTooOftenError
from runtime.training.loop import TrainingStopped
from runtime.training.temporary import SupersededError, TemporaryCheckpoints
from runtime.training.train_step import SkipMetrics
from tests.catalogue import check_message, expect_error
from tests.runtime.training import small_run
from tests.runtime.training.small_run import Desk, committed_bytes, first_action, stop_when


class Counted:
    """The train step, and how often it was taken."""

    def __init__(self) -> None:
        self.steps = 0

    def __call__(self, *arguments):
        self.steps += 1
        return small_run.train_step(*arguments)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    small_run.run(folder, lease_epoch=1)
    return folder


def milestone(folder: Path, step: int) -> dict[str, bytes]:
    return {key: value for key, value in committed_bytes(folder).items() if key.startswith(f"{step}/")}


@settings(max_examples=8)
@given(cuts=st.sets(st.integers(1, 11), max_size=3), every=st.integers(1, 13))
def test_a_run_cut_anywhere_equals_the_uncut_one_bitwise(tmp_path_factory, undisturbed, cuts, every):
    folder = tmp_path_factory.mktemp("cut")
    for epoch, until_step in enumerate([*sorted(cuts), 12], start=1):
        small_run.run(folder, until_step, lease_epoch=epoch, checkpoint_every_steps=every)
    assert milestone(folder, 12) == milestone(undisturbed, 12)


def test_moving_until_step_later_trains_only_the_added_steps(tmp_path):
    first, second, third = Counted(), Counted(), Counted()
    small_run.run(tmp_path, 7, lease_epoch=1, step_function=first)
    small_run.run(tmp_path, 12, lease_epoch=2, step_function=second)
    assert (first.steps, second.steps) == (7, 5)
    assert small_run.run(tmp_path, 7, lease_epoch=3, step_function=third) is None
    assert third.steps == 0


def test_milestones_are_published_every_so_many_steps_and_at_the_end(tmp_path, undisturbed):
    small_run.run(tmp_path, lease_epoch=1, publish_every_steps=5)
    assert sorted(small_run.records(tmp_path)) == [5, 10, 12]
    assert milestone(tmp_path, 12) == milestone(undisturbed, 12)


def test_two_temporary_checkpoints_and_one_candidate_are_kept_and_none_after_a_milestone(tmp_path):
    seen = []

    def step_function(*arguments):
        seen.append(
            [found.step for found in TemporaryCheckpoints(str(tmp_path / "work"), 1).all() if found.is_complete]
        )
        return small_run.train_step(*arguments)

    small_run.run(tmp_path, 20, lease_epoch=1, checkpoint_every_steps=2, step_function=step_function)
    # The oldest may yet be certified, and the newest is complete a moment before one is deleted.
    assert max(len(steps) for steps in seen) <= 2 + 1 + 1
    assert TemporaryCheckpoints(str(tmp_path / "work"), 1).all() == []


def test_a_stop_saves_and_the_next_run_resumes_there(tmp_path, undisturbed):
    count = Counted()
    control = Control(stop_when(lambda: count.steps == 6))
    with expect_error(TrainingStopped):
        small_run.run(tmp_path, lease_epoch=1, checkpoint_every_steps=100, control=control, step_function=count)
    rest = Counted()
    small_run.run(tmp_path, lease_epoch=2, step_function=rest)
    assert rest.steps == 6
    assert committed_bytes(tmp_path) == committed_bytes(undisturbed)


@pytest.mark.parametrize("is_milestone", [False, True])
def test_a_stop_right_after_a_resume_saves_nothing_twice(tmp_path, undisturbed, is_milestone):
    count = Counted()
    asked = Control(stop_when(lambda: count.steps == 6))
    if is_milestone:
        small_run.run(tmp_path, 6, lease_epoch=1)
    else:
        with pytest.raises(TrainingStopped):
            small_run.run(tmp_path, lease_epoch=1, control=asked, step_function=count)
    with expect_error(TrainingStopped):
        small_run.run(tmp_path, lease_epoch=2, control=Control(stop_when(lambda: True)))
    assert [event["event"] for event in read_events(str(tmp_path / "events/2.jsonl"))] == ["begin", "stop"]
    rest = Counted()
    small_run.run(tmp_path, lease_epoch=3, step_function=rest)
    assert rest.steps == 6
    assert milestone(tmp_path, 12) == milestone(undisturbed, 12)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_saves_and_exits_and_restores_the_handler(tmp_path, number):
    before = signal.getsignal(number)

    def step_function(*arguments):
        os.kill(os.getpid(), number)
        return small_run.train_step(*arguments)

    with expect_error(TrainingStopped):
        small_run.run(tmp_path, lease_epoch=1, step_function=step_function)
    assert signal.getsignal(number) is before
    stop = read_events(str(tmp_path / "events" / "1.jsonl"))[-1]
    assert (stop["event"], stop["step"], stop["reason"]) == ("stop", 1, f"signal {number.name}")


def test_a_thread_logs_that_it_handles_no_signals(tmp_path):
    thread = threading.Thread(target=small_run.run, args=(tmp_path,), kwargs={"lease_epoch": 1})
    thread.start()
    thread.join()
    assert sorted(small_run.records(tmp_path)) == [12]
    assert read_events(str(tmp_path / "events" / "1.jsonl"))[0]["handles_signals"] is False


def test_the_stop_of_another_host_stops_this_one_at_the_same_step():
    control = Control(agree=lambda number: max(number, Decision(Action.SAVE_AND_EXIT).number))
    assert first_action(control) == Action.SAVE_AND_EXIT
    check_message(control.reason)


class Requesting(Counted):
    """Makes requests after a number of steps."""

    def __init__(self, desk: Desk, after: int, *wanted: tuple[Action, int | None]) -> None:
        super().__init__()
        self._desk, self._after, self._wanted = desk, after, wanted

    def __call__(self, *arguments):
        result = super().__call__(*arguments)
        if self.steps == self._after:
            for action, step in self._wanted:
                self._desk.request(action, step)
        return result


def test_a_requested_step_is_published_like_a_planned_one(tmp_path):
    desk = Desk()
    requesting = Requesting(desk, 2, (Action.PUBLISH, 6))
    small_run.run(tmp_path / "asked", lease_epoch=1, control=Control(requests=desk.open), step_function=requesting)
    small_run.run(tmp_path / "regular", lease_epoch=1, publish_every_steps=6)
    assert sorted(small_run.records(tmp_path / "asked")) == [6, 12]
    assert committed_bytes(tmp_path / "asked") == committed_bytes(tmp_path / "regular")
    check_message(desk.replies["0"])
    found = [event for event in read_events(str(tmp_path / "asked/events/1.jsonl")) if event["event"] == "request"]
    assert [(event["step"], event["origin"]) for event in found] == [(2, "anna wants PUBLISH")]


def test_a_requested_save_gets_its_reply_once_it_is_complete(tmp_path):
    desk = Desk()
    requesting = Requesting(desk, 3, (Action.SAVE, None))
    replies: list[tuple[str, bool]] = []
    note = desk.note

    def noted(name: str, text: str) -> None:
        folder = text.rpartition(": ")[2]
        replies.append((text, Path(folder, "manifest.json").exists()))
        note(name, text)

    desk.note = noted  # type: ignore[method-assign]
    control = Control(requests=desk.open)
    small_run.run(tmp_path, lease_epoch=1, checkpoint_every_steps=100, control=control, step_function=requesting)
    ((reply, is_whole),) = replies
    assert is_whole
    check_message(reply)
    saved = [event["step"] for event in read_events(str(tmp_path / "events/1.jsonl")) if event["event"] == "checkpoint"]
    assert saved == [3]


def test_a_request_to_save_a_saved_step_gets_its_path(tmp_path):
    desk = Desk()
    requesting = Requesting(desk, 4, (Action.SAVE, None))
    small_run.run(tmp_path, lease_epoch=1, control=Control(requests=desk.open), step_function=requesting)
    check_message(desk.replies["0"])


def test_a_request_to_save_before_the_first_step_is_refused(tmp_path):
    desk = Desk()
    desk.request(Action.SAVE)
    small_run.run(tmp_path, lease_epoch=1, control=Control(requests=desk.open))
    assert desk.refused == {"0"}
    check_message(desk.replies["0"])


class Agreement:
    """Agreement of two hosts, here two threads, between two steps."""

    def __init__(self, step: int) -> None:
        self._numbers: list[int] = []
        self._met = threading.Barrier(2, timeout=480)
        self._first_number = 2 * step + 1
        self.is_waited_in = threading.Event()
        """A host has made its decision before that step, and waits for the other's."""

    def __call__(self, number: int) -> int:
        self._numbers.append(number)
        if len(self._numbers) == self._first_number:
            self.is_waited_in.set()
        self._met.wait()
        agreed = max(self._numbers[-2:])
        self._met.wait()
        return agreed


@pytest.mark.parametrize("waiting", [(1,), (0, 1)], ids=["one waits", "both wait"])
@pytest.mark.parametrize("asked", [0, 1])
def test_hosts_that_wait_for_data_learn_of_a_stop_and_all_save_the_same_step(tmp_path, monkeypatch, asked, waiting):
    monkeypatch.setattr(loader, "ROWS_READ_TOGETHER", 1)
    monkeypatch.setattr(prefetch, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(prefetch, "CALL_BACK_SECONDS", 0.02)
    monkeypatch.setattr(control_module, "POLL_SECONDS", 0.02)
    agreement, waits, is_requested = Agreement(3), [threading.Event() for _ in range(2)], threading.Event()

    class Waiting(Loader):
        """The data of step 3 never come."""

        def __init__(self, of: Loader, host: int) -> None:
            self.__dict__.update(vars(of))
            self.host = host

        def batches(self, position, steps, *arguments, **named):
            if steps.start == 3 and self.host in waiting:
                waits[self.host].set()
                sleep(600)
            return super().batches(position, steps, *arguments, **named)

    made = small_run.small_loader
    monkeypatch.setattr(small_run, "small_loader", lambda folder, policy: Waiting(made(folder), int(folder.parts[-2])))

    left = threading.Event()

    class Notice(StopNotice):
        def leave(self) -> None:
            left.set()

        def is_left(self) -> bool:
            return left.is_set()

    def host(number: int) -> TrainingStopped:
        notice = Notice("two threads")
        control = Control(stop_when(lambda: number == asked and is_requested.is_set()), agree=agreement, notice=notice)
        with pytest.raises(TrainingStopped) as stopped:
            small_run.run(tmp_path / str(number), lease_epoch=1, checkpoint_every_steps=100, control=control)
        return stopped.value

    with ThreadPoolExecutor(2) as pool:
        hosts = [pool.submit(host, number) for number in range(2)]
        for number in waiting:
            assert waits[number].wait(120)
        if len(waiting) == 1:  # so late that the other has decided to continue
            assert agreement.is_waited_in.wait(120)
        is_requested.set()
        stopped = [future.result() for future in hosts]
    steps = [TemporaryCheckpoints(str(tmp_path / str(number) / "work"), 2).newest(12).step for number in range(2)]
    assert steps[0] == steps[1] <= 3
    assert stopped[asked].reason == "the driver asked to stop" != stopped[1 - asked].reason
    assert [error.step for error in stopped] == [steps[0]] * 2


def test_a_failed_write_of_the_last_milestone_is_an_error_event(tmp_path, monkeypatch):
    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "_seal", full_disk)
    with expect_error(CheckpointError):
        small_run.run(tmp_path, 3, lease_epoch=1)
    *_, last = read_events(str(tmp_path / "events/1.jsonl"))
    assert last["event"] == "error"
    check_message(last["message"])


def test_a_run_that_waits_for_the_end_of_a_growing_cache_can_be_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(prefetch, "CALL_BACK_SECONDS", 0.1)
    small_run.small_loader(tmp_path / "caches")
    policy = LossDrop(warmup_steps=1, window_updates=8, max_epochs={"web": 2.0})
    waits = threading.Event()

    def watch(known: int) -> Growth:
        if known:
            waits.set()
        return Growth([] if known else [str(tmp_path / "caches/web")], None, is_being_built=True)

    def growing_loader(folder: Path, _: object) -> Loader:
        web = GrowingCache("web", watch, give_up_seconds=900, log=logging.getLogger(__name__))
        caches = {"web": web, "code": TokenCache.open(str(folder / "code"))}
        identities = {name: f"digest of {name}" for name in caches}
        mixture = MixtureSchedule.constant({"web": 2.0, "code": 1.0})
        return Loader(caches, identities, mixture, small_run.SEQUENCE_LENGTH, 0, policy=policy)

    monkeypatch.setattr(small_run, "small_loader", growing_loader)
    with expect_error(TrainingStopped):
        small_run.run(tmp_path, lease_epoch=1, control=Control(stop_when(waits.is_set)))


def test_a_first_step_that_is_not_finite_has_no_earlier_milestone(tmp_path):
    def step_function(state, tokens, segment_ids, logged):
        state, metrics = small_run.train_step(state, tokens, segment_ids, logged)
        return state, metrics._replace(loss=jnp.float32(np.nan))

    with expect_error(NonFiniteError):
        small_run.run(tmp_path, lease_epoch=1, checkpoint_every_steps=3, step_function=step_function)


@pytest.mark.parametrize("figure", ["loss", "grad_norm", "param_norm"])
@pytest.mark.parametrize("bad_step", [6, 12])
def test_a_step_that_is_not_finite_stops_the_run_unsaved(tmp_path, figure, bad_step):
    def step_function(state, tokens, segment_ids, logged):
        state, metrics = small_run.train_step(state, tokens, segment_ids, logged)
        if int(state.optimizer.count) == bad_step:
            metrics = metrics._replace(**{figure: jnp.float32(np.nan)})
        return state, metrics

    with expect_error(NonFiniteError):
        small_run.run(tmp_path, lease_epoch=1, checkpoint_every_steps=3, step_function=step_function)
    assert small_run.records(tmp_path) == {}
    newest = TemporaryCheckpoints(str(tmp_path / "work"), 2).newest(12)
    assert newest is not None
    assert newest.step == bad_step - 3
    # The checkpoint before it is written in the background, and may be reported complete only after the error.
    logged = [event for event in read_events(str(tmp_path / "events" / "1.jsonl")) if event["event"] == "error"]
    assert [event["step"] for event in logged] == [bad_step]
    assert sum(logged[0]["data_position"]["consumed"].values()) == 4 * (bad_step - 1)


@pytest.mark.parametrize("asked", ["by the clock", "by a person", "by a stop"])
def test_no_save_follows_a_step_that_is_not_finite(tmp_path, asked):
    desk, bad_step, is_taken = Desk(), 6, threading.Event()

    def step_function(state, tokens, segment_ids, logged):
        state, metrics = small_run.train_step(state, tokens, segment_ids, logged)
        if int(state.optimizer.count) == bad_step:
            metrics = metrics._replace(loss=jnp.float32(np.nan))
            is_taken.set()
            if asked == "by a person":
                desk.request(Action.SAVE)
        return state, metrics

    stops = Control(stop_when(lambda: asked == "by a stop" and is_taken.is_set()), requests=desk.open)
    with expect_error(NonFiniteError):
        small_run.run(
            tmp_path,
            lease_epoch=1,
            checkpoint_every_steps=100,
            checkpoint_every_seconds=1e-9 if asked == "by the clock" else np.inf,
            control=stops,
            step_function=step_function,
        )
    saved = [found.step for found in TemporaryCheckpoints(str(tmp_path / "work"), 2).all()]
    assert bad_step not in saved and (5 in saved) == (asked == "by the clock")


@pytest.mark.parametrize("measured", ["gradient", "parameters"])
def test_a_step_that_is_not_finite_names_the_parts_of_the_model(tmp_path, measured):
    row = MEASURED.index(measured)

    def step_function(state, tokens, segment_ids, logged):
        state, metrics = small_run.train_step(state, tokens, segment_ids, logged)
        norms = np.array(metrics.part_norms)
        if int(state.optimizer.count) == 6:
            norms[row:] = np.nan  # a gradient that is not finite makes updates and parameters so
            metrics = metrics._replace(loss=jnp.float32(np.nan), part_norms=jnp.asarray(norms))
        return state, metrics

    with expect_error(NonFiniteError):
        small_run.run(tmp_path, lease_epoch=1, step_function=step_function)
    (event,) = events_of(tmp_path, "error")
    assert (event["norms_of"], event["not_finite"]) == (measured, "all") and event["data_position"]


def test_norms_by_part_are_logged_at_their_distance_and_at_the_end_and_none_twice(tmp_path):
    def one_attempt(folder, until_step, lease_epoch=1):
        return small_run.run(folder, until_step, lease_epoch=lease_epoch, norms_every_steps=4, publish_every_steps=3)

    run = one_attempt(tmp_path / "whole", 10)
    logged = {event["step"]: event for event in events_of(tmp_path / "whole", "norms")}
    assert list(logged) == [4, 8, 10]
    for step, event in logged.items():
        expected = run.metrics[step - 1]
        norms = [event[measured].pop("w") for measured in MEASURED]
        assert norms == pytest.approx([expected.grad_norm, expected.update_norm, expected.param_norm], rel=1e-3)
        assert not any(event[measured] for measured in MEASURED)
    one_attempt(tmp_path / "cut", 4)
    one_attempt(tmp_path / "cut", 10, lease_epoch=2)
    assert [[event["step"] for event in events_of(tmp_path / "cut", "norms", attempt)] for attempt in (1, 2)] == [
        [4],
        [8, 10],
    ]
    small_run.run(tmp_path / "silent", 10, lease_epoch=1, publish_every_steps=3)
    assert events_of(tmp_path / "silent", "norms") == []
    assert small_run.committed_bytes(tmp_path / "silent") == small_run.committed_bytes(tmp_path / "whole")


def test_a_batch_without_targets_stops_a_run_without_a_skip_rule_unsaved(tmp_path):
    def step_function(state, tokens, segment_ids, logged):
        state, metrics = small_run.train_step(state, tokens, segment_ids, logged)
        if int(state.optimizer.count) == 6:
            metrics = metrics._replace(num_targets=jnp.int32(0), loss=jnp.float32(0), grad_norm=jnp.float32(0))
        return state, metrics

    with expect_error(NoTargetsError):
        small_run.run(tmp_path, lease_epoch=1, checkpoint_every_steps=3, step_function=step_function)
    newest = TemporaryCheckpoints(str(tmp_path / "work"), 2).newest(12)
    assert newest is not None and newest.step == 3
    assert "error" in [event["event"] for event in read_events(str(tmp_path / "events" / "1.jsonl"))]


def events_of(folder, event, attempt=1):
    return [found for found in read_events(str(folder / "events" / f"{attempt}.jsonl")) if found["event"] == event]


def skipping(bad_steps: set[int]):
    """Return the small training step, which reports some updates as skipped, with a NaN loss."""
    consecutive = 0

    def step_function(state, tokens, segment_ids, logged):
        nonlocal consecutive
        after, metrics = small_run.train_step(state, tokens, segment_ids, logged)
        is_bad = int(after.optimizer.count) in bad_steps
        consecutive = consecutive + 1 if is_bad else 0
        limits = jnp.float32(2.5), jnp.float32(np.inf)
        skip = SkipMetrics(jnp.array(is_bad), *limits, jnp.int32(consecutive))
        return after, metrics._replace(loss=jnp.float32(np.nan) if is_bad else metrics.loss, skip=skip)

    return step_function


RULE = SkipRule(window_steps=4, sigma=6.0, warmup_steps=2, max_consecutive=3)


def test_skipped_steps_are_counted_and_logged_and_the_run_continues(tmp_path):
    run = small_run.run(tmp_path, lease_epoch=1, step_function=skipping({3, 4, 9}), skip_rule=RULE)
    assert run.metrics.skipped_steps == [3, 4, 9]
    assert np.isfinite(run.metrics.mean_loss_of_last(20, after_step=0))
    logged = [event for event in read_events(str(tmp_path / "events" / "1.jsonl")) if event["event"] == "skipped"]
    assert [(event["step"], event["consecutive"]) for event in logged] == [(3, 1), (4, 2), (9, 1)]
    assert (logged[0]["loss"], logged[0]["loss_limit"], logged[0]["grad_norm_limit"]) == ("nan", 2.5, "inf")


def test_a_skipped_step_names_the_parts_of_the_model_and_enters_no_median(tmp_path):
    bad = {20, 21, 25}

    def step_function(state, tokens, segment_ids, logged):
        state, metrics = skips(state, tokens, segment_ids, logged)
        step = int(state.optimizer.count)
        factor = {20: 1e4, 21: 2e4, 25: np.nan}.get(step, 1 + step / 100)
        return state, metrics._replace(part_norms=jnp.array([[factor], [0.1], [5.0]], jnp.float32))

    skips = skipping(bad)
    small_run.run(tmp_path, 30, lease_epoch=1, step_function=step_function, skip_rule=RULE)
    first, second, worst = events_of(tmp_path, "skipped")
    for event, norm in ((first, 1e4), (second, 2e4)):
        assert (event["norms_of"], event["median_updates"]) == ("gradient", 19)
        assert event["parts"] == [{"part": "w", "factor": pytest.approx(norm / 1.1, rel=1e-3), "norm": norm}]
    assert worst["not_finite"] == "all" and "parts" not in worst


def test_too_many_consecutive_skipped_steps_stop_the_run(tmp_path):
    with expect_error(SkippedTooOftenError):
        small_run.run(tmp_path, lease_epoch=1, step_function=skipping({2, 6, 7, 8}), skip_rule=RULE)
    assert small_run.records(tmp_path) == {}
    assert TemporaryCheckpoints(str(tmp_path / "work"), 2).newest(12).step == 4


def test_a_rule_without_a_history_is_refused(tmp_path):
    with expect_error(ValueError):
        small_run.run(tmp_path, lease_epoch=1, skip_rule=RULE, history_steps=0)


def test_a_torn_temporary_checkpoint_is_an_error_and_never_a_fresh_start(tmp_path):
    with pytest.raises(TrainingStopped):
        stopping = Counted()
        small_run.run(
            tmp_path, lease_epoch=1, control=Control(stop_when(lambda: stopping.steps == 6)), step_function=stopping
        )
    newest = TemporaryCheckpoints(str(tmp_path / "work"), 2).newest(12)
    (Path(newest.folder) / "checkpoint/arrays/params.w/c.0.0").write_bytes(b"")
    with expect_error(CheckpointError):
        small_run.run(tmp_path, lease_epoch=2)
    # The cure that a phase names:
    (Path(newest.folder) / "checkpoint/manifest.json").unlink()
    rest = Counted()
    small_run.run(tmp_path, lease_epoch=3, step_function=rest)
    assert rest.steps == 8


def test_a_torn_metrics_table_is_refused(tmp_path):
    with pytest.raises(TrainingStopped):
        small_run.run(tmp_path, lease_epoch=1, control=Control(stop_when(lambda: True)))
    table = Path(TemporaryCheckpoints(str(tmp_path / "work"), 1).newest(12).folder) / "metrics.parquet/000000.parquet"
    table.write_bytes(table.read_bytes()[:-1])
    with expect_error(CheckpointError):
        small_run.run(tmp_path, lease_epoch=2)


def test_an_attempt_that_lost_its_lease_finds_the_newer_one_and_stops(tmp_path):
    def overtaken(*arguments):
        if not overtaken.done:
            overtaken.done = True
            with pytest.raises(TrainingStopped):
                small_run.run(tmp_path, lease_epoch=2, control=Control(stop_when(lambda: True)))
        return small_run.train_step(*arguments)

    overtaken.done = False
    with expect_error(SupersededError):
        small_run.run(tmp_path, lease_epoch=1, step_function=overtaken)
    assert [found.lease_epoch for found in TemporaryCheckpoints(str(tmp_path / "work"), 2).all()] == [2]


def first_step(folder: Path, *, average_decays: dict[str, float], until_step: int = 6) -> str:
    small_run.run(folder, until_step, lease_epoch=1, average_decays=average_decays)
    return str(small_run.records(folder)[until_step])


def words(tree: object) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def test_an_average_enters_as_a_copy_of_the_weights(tmp_path):
    folder = first_step(tmp_path, average_decays={})
    run = run_state.continued(folder, "everything", small_run.state_like, seed=0, averages=("averaged",))
    assert words(run.state.averages) == words(run.state.params)
    assert (run.step, run.averages) == (6, ("averaged",))


def test_an_average_continues_or_leaves(tmp_path):
    folder = first_step(tmp_path, average_decays=small_run.AVERAGED)
    on = run_state.continued(folder, "everything", small_run.state_like, seed=0, averages=("averaged",))
    assert words(on.state.averages) != words(on.state.params)
    left = run_state.continued(folder, "everything", small_run.state_like, seed=0)
    assert left.averages == ()
    assert words(left.state.params) == words(on.state.params)


def test_without_an_average_before_and_after_nothing_changes(tmp_path):
    folder = first_step(tmp_path, average_decays={})
    run = run_state.continued(folder, "everything", small_run.state_like, seed=0)
    assert run.averages == ()
    assert words(run.state) == words(run_state.resumed(folder, small_run.state_like).state)


def test_each_of_several_averages_continues_starts_or_leaves_by_its_name(tmp_path):
    folder = first_step(tmp_path, average_decays={"averaged": 0.75, "slow": 0.9})
    before = run_state.resumed(folder, small_run.state_like, averages=("averaged", "slow")).state
    assert words(before.averages["slow"]) != words(before.averages["averaged"])
    run = run_state.continued(folder, "everything", small_run.state_like, seed=0, averages=("slow", "new"))
    assert run.averages == ("new", "slow")
    assert words(run.state.averages["slow"]) == words(before.averages["slow"])
    assert words(run.state.averages["new"]) == words(before.params)
    restarted = run_state.continued(folder, "weights", small_run.state_like, seed=0, averages=("slow",))
    assert words(restarted.state.averages["slow"]) == words(before.params)


def test_two_averages_stopped_and_resumed_end_with_the_bytes_of_a_run_that_was_not(tmp_path):
    decays, count = {"slow": 0.9, "averaged": 0.75}, Counted()
    with pytest.raises(TrainingStopped):
        stop = Control(stop_when(lambda: count.steps == 6))
        small_run.run(tmp_path / "a", lease_epoch=1, control=stop, step_function=count, average_decays=decays)
    small_run.run(tmp_path / "a", lease_epoch=2, average_decays=decays)
    small_run.run(tmp_path / "b", lease_epoch=1, average_decays=decays)
    assert committed_bytes(tmp_path / "a") == committed_bytes(tmp_path / "b")


def test_weights_and_optimizer_are_restored_and_the_data_restart(tmp_path):
    folder = first_step(tmp_path, average_decays=small_run.AVERAGED)
    whole = run_state.continued(folder, "everything", small_run.state_like, seed=0, averages=("averaged",))
    run = run_state.continued(folder, "weights_and_optimizer", small_run.state_like, seed=0, averages=("averaged",))
    assert words(
        (run.state.params, run.state.optimizer.mu, run.state.optimizer.nu, run.state.optimizer.count)
    ) == words((whole.state.params, whole.state.optimizer.mu, whole.state.optimizer.nu, whole.state.optimizer.count))
    assert words(run.state.averages) == words(run.state.params)
    assert (run.step, run.consumed_tokens) == (whole.step, whole.consumed_tokens) == (6, 6 * 4 * 8)
    assert (run.data_position.consumed, whole.data_position.consumed) == (
        {},
        {"digest of web": 16, "digest of code": 8},
    )


def test_the_optimizer_alone_restarts(tmp_path):
    folder = first_step(tmp_path, average_decays=small_run.AVERAGED)
    whole = run_state.continued(folder, "everything", small_run.state_like, seed=0, averages=("averaged",))
    run = run_state.continued(folder, "everything_but_optimizer", small_run.state_like, seed=0, averages=("averaged",))
    assert (
        not np.any(run.state.optimizer.mu["w"])
        and not np.any(run.state.optimizer.nu["w"])
        and int(run.state.optimizer.count) == 0
    )
    assert (
        np.any(whole.state.optimizer.mu["w"])
        and np.any(whole.state.optimizer.nu["w"])
        and int(whole.state.optimizer.count) == 6
    )
    assert words((run.state.params, run.state.averages, run.state.key)) == words(
        (whole.state.params, whole.state.averages, whole.state.key)
    )
    assert run[1:3] == whole[1:3] and run.data_position.to_json() == whole.data_position.to_json()
    assert len(run.metrics) == 6


def test_weights_alone_are_restored_and_the_optimizer_restarts(tmp_path):
    folder = first_step(tmp_path, average_decays=small_run.AVERAGED)
    run = run_state.continued(folder, "weights", small_run.state_like, seed=0)
    whole = run_state.continued(folder, "everything", small_run.state_like, seed=0, averages=("averaged",))
    assert words(run.state.params) == words(whole.state.params)
    assert words(run.state.optimizer) == words(small_run.initial().optimizer)
    assert len(run.metrics) == 6


@pytest.mark.parametrize(
    ("restore", "read"),
    [
        ("everything", {"params", "optimizer", "key", "averages"}),
        ("everything_but_optimizer", {"params", "key", "averages"}),
        ("weights_and_optimizer", {"params", "optimizer"}),
        ("weights", {"params"}),
    ],
)
def test_a_phase_begins_without_reading_what_it_makes_or_making_what_it_reads(tmp_path, monkeypatch, restore, read):
    folder, found = first_step(tmp_path, average_decays=small_run.AVERAGED), []
    load = checkpoint.load

    def noted(path, like, **options):
        # Two copies of a state at once are more than the devices of a large run have room for.
        asked = {field for field, tree in like.items() if jax.tree.leaves(tree)}
        found.append((asked, sum(array.nbytes for array in jax.live_arrays())))
        return load(path, like, **options)

    monkeypatch.setattr(checkpoint, "load", noted)
    before = sum(array.nbytes for array in jax.live_arrays())
    run_state.continued(folder, restore, small_run.state_like, seed=0, averages=("averaged",))
    assert found == [(read, before)]


def test_a_resumed_state_must_have_the_average_that_it_was_saved_with(tmp_path):
    folder = first_step(tmp_path, average_decays={})
    with expect_error(CheckpointError):
        run_state.resumed(folder, small_run.state_like, averages=("averaged",))


def metrics_of(folder: Path) -> MetricsTable:
    return MetricsTable.from_parquet(*checkpoint.read_beside(f"{folder}/checkpoint", "metrics.parquet"))


def test_metrics_have_a_row_for_each_step_with_exact_tokens(undisturbed):
    table = metrics_of(small_run.records(undisturbed)[12])
    assert [table[row].step for row in range(12)] == list(range(1, 13))
    assert [table[row].consumed_tokens for row in range(12)] == [32 * step for step in range(1, 13)]
    assert [table[row].learning_rate for row in range(12)] == [0.1 / (1 + step) for step in range(12)]


def test_tokens_are_counted_exactly_where_neither_32_bits_nor_a_float_would(tmp_path, monkeypatch):
    begin, far = run_state.from_scratch, 2**53 + 1
    monkeypatch.setattr(run_state, "from_scratch", lambda state: begin(state)._replace(consumed_tokens=far))
    small_run.run(tmp_path, 6, lease_epoch=1)
    reached = small_run.run(tmp_path, 12, lease_epoch=2)  # goes on from what was written
    assert reached is not None and reached.consumed_tokens == far + 32 * 12
    folder = small_run.records(tmp_path)[12]
    assert checkpoint.read_metadata(f"{folder}/checkpoint")["consumed_tokens"] == far + 32 * 12
    table = metrics_of(folder)
    assert [table[row].consumed_tokens for row in range(12)] == [far + 32 * step for step in range(1, 13)]


def test_the_event_log_is_complete_and_not_committed(undisturbed):
    events = read_events(str(undisturbed / "events" / "1.jsonl"))
    assert [event["event"] for event in events] == ["begin", "checkpoint", "checkpoint", "milestone", "progress", "end"]
    assert [event["step"] for event in events] == [0, 4, 8, 12, 12, 12]
    metrics = metrics_of(small_run.records(undisturbed)[12])
    assert events[4]["loss"] == metrics[11].loss
    assert all({"time", "elapsed_seconds", "consumed_tokens"} <= set(event) for event in events)
    assert not any(str(undisturbed).encode() in content for content in committed_bytes(undisturbed).values())


@pytest.mark.parametrize(
    "plan", [{"checkpoint_every_steps": 3}, {"checkpoint_every_steps": 99, "checkpoint_every_seconds": 0.0}], ids=str
)
def test_the_reported_speed_excludes_the_time_of_saves(tmp_path, monkeypatch, plan):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(meter, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def slowly(function):
        @functools.wraps(function)
        def slow(*arguments, **keywords):
            clock.now += 1000
            return function(*arguments, **keywords)

        return slow

    def update(*arguments):
        clock.now += 1
        return small_run.train_step(*arguments)

    for name in ("begin", "end"):
        monkeypatch.setattr(saving.Saver, name, slowly(getattr(saving.Saver, name)))
    small_run.run(tmp_path, lease_epoch=1, step_function=update, **plan)
    events = [event for event in read_events(str(tmp_path / "events/1.jsonl")) if event["event"] == "progress"]
    logged = [event["tokens_per_second"] for event in events]
    assert clock.now > 3000
    # Of an update a second, the figures of two of which are not there yet.
    expected = small_run.GLOBAL_BATCH_SIZE * small_run.SEQUENCE_LENGTH
    assert logged == pytest.approx([expected] * len(logged), rel=0.2) and logged


def test_a_run_with_nothing_to_train_is_an_error(tmp_path):
    small_run.run(tmp_path, 6, lease_epoch=1)
    (tmp_path / "records" / "6.json").rename(tmp_path / "records" / "4.json")
    with expect_error(ValueError):
        small_run.run(tmp_path, 5, lease_epoch=2)


def test_a_run_that_ends_at_a_temporary_checkpoint_publishes_it_without_training(tmp_path):
    count, rest = Counted(), Counted()
    with pytest.raises(TrainingStopped):
        small_run.run(
            tmp_path / "a", lease_epoch=1, control=Control(stop_when(lambda: count.steps == 6)), step_function=count
        )
    small_run.run(tmp_path / "a", 6, lease_epoch=2, step_function=rest)
    small_run.run(tmp_path / "b", 6, lease_epoch=1)
    assert rest.steps == 0
    assert committed_bytes(tmp_path / "a") == committed_bytes(tmp_path / "b")
