"""The loop: cutting it anywhere changes nothing, asking it to stop loses nothing, a bad update saves nothing."""

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
from runtime.optim.skip_rule import SkipRule
from runtime.tracking.events import read_events
from runtime.tracking.metrics import MetricsTable
from runtime.tracking.parts import MEASURED
from runtime.training import checkpoint, meter, run_state, saving
from runtime.training import control as control_module
from runtime.training.checkpoint_reader import CheckpointError
from runtime.training.control import Control, Order, Word
from runtime.training.loop import TrainingStopped
from runtime.training.stop_notice import StopNotice
from runtime.training.temporary import SupersededError, TemporaryCheckpoints
from runtime.training.train_step import SkipMetrics
from runtime.training.update import NonFiniteError, NoTargetsError, SkippedTooOftenError
from tests.catalogue import expect_error
from tests.runtime.training import small_run
from tests.runtime.training.small_run import Desk, asked_when, committed_bytes, order_of


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


def test_two_temporary_checkpoints_and_one_to_certify_are_kept_and_none_behind_a_milestone(tmp_path):
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


def test_a_stop_saves_at_that_step_and_the_next_run_goes_on_from_it(tmp_path, undisturbed):
    count = Counted()
    control = Control(asked_when(lambda: count.steps == 6))
    with expect_error(TrainingStopped):
        small_run.run(tmp_path, lease_epoch=1, checkpoint_every_steps=100, control=control, step_function=count)
    rest = Counted()
    small_run.run(tmp_path, lease_epoch=2, step_function=rest)
    assert rest.steps == 6
    assert committed_bytes(tmp_path) == committed_bytes(undisturbed)


@pytest.mark.parametrize("is_milestone", [False, True])
def test_a_stop_right_after_a_resume_saves_nothing_twice_and_the_next_run_goes_on(tmp_path, undisturbed, is_milestone):
    count = Counted()
    asked = Control(asked_when(lambda: count.steps == 6))
    if is_milestone:
        small_run.run(tmp_path, 6, lease_epoch=1)
    else:
        with pytest.raises(TrainingStopped):
            small_run.run(tmp_path, lease_epoch=1, control=asked, step_function=count)
    with expect_error(TrainingStopped):
        small_run.run(tmp_path, lease_epoch=2, control=Control(asked_when(lambda: True)))
    assert [event["event"] for event in read_events(str(tmp_path / "events/2.jsonl"))] == ["begin", "stop"]
    rest = Counted()
    small_run.run(tmp_path, lease_epoch=3, step_function=rest)
    assert rest.steps == 6
    assert milestone(tmp_path, 12) == milestone(undisturbed, 12)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_saves_and_exits_and_gives_the_handler_back(tmp_path, number):
    before = signal.getsignal(number)

    def step_function(*arguments):
        os.kill(os.getpid(), number)
        return small_run.train_step(*arguments)

    with expect_error(TrainingStopped):
        small_run.run(tmp_path, lease_epoch=1, step_function=step_function)
    assert signal.getsignal(number) is before
    stop = read_events(str(tmp_path / "events" / "1.jsonl"))[-1]
    assert (stop["event"], stop["step"], stop["reason"]) == ("stop", 1, f"signal {number.name}")


def test_a_thread_cannot_hear_signals_and_the_log_says_so(tmp_path):
    thread = threading.Thread(target=small_run.run, args=(tmp_path,), kwargs={"lease_epoch": 1})
    thread.start()
    thread.join()
    assert sorted(small_run.records(tmp_path)) == [12]
    assert read_events(str(tmp_path / "events" / "1.jsonl"))[0]["hears_signals"] is False


def test_a_word_of_another_host_stops_this_one_at_the_same_step():
    control = Control(agree=lambda number: max(number, Order(Word.SAVE_AND_EXIT).number))
    assert order_of(control) == Word.SAVE_AND_EXIT
    assert control.reason == "another host was asked to stop"


class Asking(Counted):
    """Somebody asks when so many updates are made."""

    def __init__(self, desk: Desk, after: int, *wishes: tuple[Word, int | None]) -> None:
        super().__init__()
        self._desk, self._after, self._wishes = desk, after, wishes

    def __call__(self, *arguments):
        result = super().__call__(*arguments)
        if self.steps == self._after:
            for word, step in self._wishes:
                self._desk.ask(word, step)
        return result


def test_a_step_that_is_asked_for_is_published_as_one_that_was_wanted_from_the_start(tmp_path):
    desk = Desk()
    asking = Asking(desk, 2, (Word.PUBLISH, 6))
    small_run.run(tmp_path / "asked", lease_epoch=1, control=Control(requests=desk.open), step_function=asking)
    small_run.run(tmp_path / "regular", lease_epoch=1, publish_every_steps=6)
    assert sorted(small_run.records(tmp_path / "asked")) == [6, 12]
    assert committed_bytes(tmp_path / "asked") == committed_bytes(tmp_path / "regular")
    assert desk.answers == {"0": "it will publish step 6, and is at 2"}
    told = [event for event in read_events(str(tmp_path / "asked/events/1.jsonl")) if event["event"] == "told"]
    assert [(event["step"], event["said"]) for event in told] == [(2, "anna wants PUBLISH")]


def test_a_state_that_is_asked_for_is_saved_at_that_step_and_answered_when_it_is_whole(tmp_path):
    desk = Desk()
    asking = Asking(desk, 3, (Word.SAVE, None))
    answered: list[tuple[str, bool]] = []
    note = desk.note

    def noted(name: str, said: str) -> None:
        folder = said.rpartition(": ")[2]
        answered.append((said, Path(folder, "manifest.json").exists()))
        note(name, said)

    desk.note = noted  # type: ignore[method-assign]
    control = Control(requests=desk.open)
    small_run.run(tmp_path, lease_epoch=1, checkpoint_every_steps=100, control=control, step_function=asking)
    ((said, is_whole),) = answered
    assert said.startswith(f"saved step 3: {tmp_path}") and is_whole
    saved = [event["step"] for event in read_events(str(tmp_path / "events/1.jsonl")) if event["event"] == "checkpoint"]
    assert saved == [3]


def test_who_asks_for_a_state_that_has_just_been_saved_is_told_so(tmp_path):
    desk = Desk()
    asking = Asking(desk, 4, (Word.SAVE, None))
    small_run.run(tmp_path, lease_epoch=1, control=Control(requests=desk.open), step_function=asking)
    assert desk.answers["0"].startswith("step 4 is saved already: ") and "step-0000000004-" in desk.answers["0"]


def test_who_asks_for_a_state_before_the_first_update_is_refused(tmp_path):
    desk = Desk()
    desk.ask(Word.SAVE)
    small_run.run(tmp_path, lease_epoch=1, control=Control(requests=desk.open))
    assert desk.answers == {"0": "it has made nothing since step 0, where it began"} and desk.refused == {"0"}


class Agreement:
    """What two hosts, here two threads, agree on between two updates."""

    def __init__(self, update: int) -> None:
        self._words: list[int] = []
        self._met = threading.Barrier(2, timeout=480)
        self._first_word = 2 * update + 1
        self.is_waited_in = threading.Event()
        """A host has said its word before that update, and waits for the other's."""

    def __call__(self, word: int) -> int:
        self._words.append(word)
        if len(self._words) == self._first_word:
            self.is_waited_in.set()
        self._met.wait()
        agreed = max(self._words[-2:])
        self._met.wait()
        return agreed


@pytest.mark.parametrize("waiting", [(1,), (0, 1)], ids=["one waits", "both wait"])
@pytest.mark.parametrize("asked", [0, 1])
def test_a_host_that_waits_for_data_hears_that_another_is_to_stop_and_all_save_the_same_step(
    tmp_path, monkeypatch, asked, waiting
):
    monkeypatch.setattr(loader, "ROWS_READ_TOGETHER", 1)
    monkeypatch.setattr(prefetch, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(prefetch, "CALL_BACK_SECONDS", 0.02)
    monkeypatch.setattr(control_module, "POLL_SECONDS", 0.02)
    agreement, waits, is_asked = Agreement(3), [threading.Event() for _ in range(2)], threading.Event()

    class Waiting(Loader):
        """The data of update 3 are never there."""

        def __init__(self, of: Loader, host: int) -> None:
            self.__dict__.update(vars(of))
            self.host = host

        def batches(self, position, steps, *arguments, activity=None, **named):
            if steps.start == 3 and self.host in waiting:
                waits[self.host].set()
                activity.sleep(600)
            return super().batches(position, steps, *arguments, activity=activity, **named)

    made = small_run.small_loader
    monkeypatch.setattr(small_run, "small_loader", lambda folder, policy: Waiting(made(folder), int(folder.parts[-2])))

    def host(number: int) -> str:
        notice = StopNotice(str(tmp_path / "stops" / "attempt"))
        control = Control(asked_when(lambda: number == asked and is_asked.is_set()), agree=agreement, notice=notice)
        with pytest.raises(TrainingStopped) as stopped:
            small_run.run(tmp_path / str(number), lease_epoch=1, checkpoint_every_steps=100, control=control)
        return str(stopped.value)

    with ThreadPoolExecutor(2) as pool:
        hosts = [pool.submit(host, number) for number in range(2)]
        for number in waiting:
            assert waits[number].wait(120)
        if len(waiting) == 1:  # so late that the other has said already that it goes on
            assert agreement.is_waited_in.wait(120)
        is_asked.set()
        said = [future.result() for future in hosts]
    steps = [TemporaryCheckpoints(str(tmp_path / str(number) / "work"), 2).newest(12).step for number in range(2)]
    assert steps[0] == steps[1] <= 3
    assert f"stopped at step {steps[0]} (the driver asked to stop)" in said[asked]
    assert f"stopped at step {steps[0]} (another host was asked to stop)" in said[1 - asked]


def test_a_last_milestone_that_cannot_be_written_is_told_as_every_other_error_of_the_run(tmp_path, monkeypatch):
    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "_seal", full_disk)
    with expect_error(CheckpointError):
        small_run.run(tmp_path, 3, lease_epoch=1)
    *_, last = read_events(str(tmp_path / "events/1.jsonl"))
    assert last["event"] == "error" and "was not written" in last["message"]


@pytest.mark.parametrize("is_replayed", [False, True])
def test_a_run_that_waits_for_the_end_of_a_cache_of_limited_epochs_hears_that_it_is_to_stop(
    tmp_path, monkeypatch, is_replayed
):
    """A replay asks no limits, and so waits for no end."""
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
        drawn = (lambda step: {"digest of web": 3, "digest of code": 1}) if is_replayed else None
        return Loader(caches, identities, mixture, small_run.SEQUENCE_LENGTH, 0, policy=policy, replay=drawn)

    monkeypatch.setattr(small_run, "small_loader", growing_loader)
    if is_replayed:
        small_run.run(tmp_path, 4, lease_epoch=1)
        assert not waits.is_set() and [*small_run.records(tmp_path)] == [4]
        return
    with expect_error(TrainingStopped):
        small_run.run(tmp_path, lease_epoch=1, control=Control(asked_when(waits.is_set)))


def test_a_first_update_that_is_not_finite_sends_nobody_to_an_earlier_milestone(tmp_path):
    def step_function(state, tokens, segment_ids, told):
        state, metrics = small_run.train_step(state, tokens, segment_ids, told)
        return state, metrics._replace(loss=jnp.float32(np.nan))

    with expect_error(NonFiniteError):
        small_run.run(tmp_path, lease_epoch=1, checkpoint_every_steps=3, step_function=step_function)


@pytest.mark.parametrize("figure", ["loss", "grad_norm", "param_norm"])
@pytest.mark.parametrize("bad_step", [6, 12])
def test_an_update_that_is_not_finite_stops_the_run_and_nothing_of_it_is_saved(tmp_path, figure, bad_step):
    def step_function(state, tokens, segment_ids, told):
        state, metrics = small_run.train_step(state, tokens, segment_ids, told)
        if int(state.optimizer.count) == bad_step:
            metrics = metrics._replace(**{figure: jnp.float32(np.nan)})
        return state, metrics

    with expect_error(NonFiniteError):
        small_run.run(tmp_path, lease_epoch=1, checkpoint_every_steps=3, step_function=step_function)
    assert small_run.records(tmp_path) == {}
    newest = TemporaryCheckpoints(str(tmp_path / "work"), 2).newest(12)
    assert newest is not None
    assert newest.step == bad_step - 3
    # The checkpoint before it is written in the background, and may be said to be complete only after the error.
    told = [event for event in read_events(str(tmp_path / "events" / "1.jsonl")) if event["event"] == "error"]
    assert [f"step {bad_step}:" in event["message"] for event in told] == [True]
    assert sum(told[0]["data_position"]["consumed"].values()) == 4 * (bad_step - 1)
    assert (
        told[0]["step"] == bad_step and "go around them: `certified` with the name of the phase" in told[0]["message"]
    )


@pytest.mark.parametrize("asked", ["by the clock", "by a person", "by a stop"])
def test_right_behind_an_update_that_is_not_finite_nothing_is_saved_whoever_asks(tmp_path, asked):
    desk, bad_step, is_taken = Desk(), 6, threading.Event()

    def step_function(state, tokens, segment_ids, told):
        state, metrics = small_run.train_step(state, tokens, segment_ids, told)
        if int(state.optimizer.count) == bad_step:
            metrics = metrics._replace(loss=jnp.float32(np.nan))
            is_taken.set()
            if asked == "by a person":
                desk.ask(Word.SAVE)
        return state, metrics

    stops = Control(asked_when(lambda: asked == "by a stop" and is_taken.is_set()), requests=desk.open)
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
def test_an_update_that_is_not_finite_says_in_which_parts_of_the_model(tmp_path, measured):
    row = MEASURED.index(measured)

    def step_function(state, tokens, segment_ids, told):
        state, metrics = small_run.train_step(state, tokens, segment_ids, told)
        norms = np.array(metrics.part_norms)
        if int(state.optimizer.count) == 6:
            norms[row:] = np.nan  # a gradient that is not finite makes updates and parameters so
            metrics = metrics._replace(loss=jnp.float32(np.nan), part_norms=jnp.asarray(norms))
        return state, metrics

    with expect_error(NonFiniteError):
        small_run.run(tmp_path, lease_epoch=1, step_function=step_function)
    (event,) = events_of(tmp_path, "error")
    assert (event["norms_of"], event["not_finite"]) == (measured, "all") and event["data_position"]


def test_norms_by_part_are_told_every_so_many_steps_and_at_the_last_and_a_resumed_run_tells_none_twice(tmp_path):
    def one_attempt(folder, until_step, lease_epoch=1):
        return small_run.run(folder, until_step, lease_epoch=lease_epoch, norms_every_steps=4, publish_every_steps=3)

    run = one_attempt(tmp_path / "whole", 10)
    told = {event["step"]: event for event in events_of(tmp_path / "whole", "norms")}
    assert list(told) == [4, 8, 10]
    for step, event in told.items():
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


def test_a_batch_without_any_target_stops_a_run_without_a_skip_rule_and_nothing_of_it_is_saved(tmp_path):
    def step_function(state, tokens, segment_ids, told):
        state, metrics = small_run.train_step(state, tokens, segment_ids, told)
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
    """The small train step, which says of some updates that they were left out, and that their loss was NaN."""
    consecutive = 0

    def step_function(state, tokens, segment_ids, told):
        nonlocal consecutive
        after, metrics = small_run.train_step(state, tokens, segment_ids, told)
        is_bad = int(after.optimizer.count) in bad_steps
        consecutive = consecutive + 1 if is_bad else 0
        limits = jnp.float32(2.5), jnp.float32(np.inf)
        skip = SkipMetrics(jnp.array(is_bad), *limits, jnp.int32(consecutive))
        return after, metrics._replace(loss=jnp.float32(np.nan) if is_bad else metrics.loss, skip=skip)

    return step_function


RULE = SkipRule(window_steps=4, sigma=6.0, warmup_steps=2, max_consecutive=3)


def test_updates_that_the_skip_rule_left_out_are_counted_and_told_and_the_run_goes_on(tmp_path):
    run = small_run.run(tmp_path, lease_epoch=1, step_function=skipping({3, 4, 9}), skip_rule=RULE)
    assert run.metrics.skipped_steps == [3, 4, 9]
    assert np.isfinite(run.metrics.mean_loss_of_last(20))
    told = [event for event in read_events(str(tmp_path / "events" / "1.jsonl")) if event["event"] == "skipped"]
    assert [(event["step"], event["consecutive"]) for event in told] == [(3, 1), (4, 2), (9, 1)]
    assert (told[0]["loss"], told[0]["loss_limit"], told[0]["grad_norm_limit"]) == ("nan", 2.5, "inf")


def test_a_skipped_update_says_where_in_the_model_and_is_no_part_of_the_median(tmp_path):
    bad = {20, 21, 25}

    def step_function(state, tokens, segment_ids, told):
        state, metrics = skips(state, tokens, segment_ids, told)
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


def test_too_many_updates_left_out_in_a_row_stop_the_run(tmp_path):
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
            tmp_path, lease_epoch=1, control=Control(asked_when(lambda: stopping.steps == 6)), step_function=stopping
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
        small_run.run(tmp_path, lease_epoch=1, control=Control(asked_when(lambda: True)))
    table = Path(TemporaryCheckpoints(str(tmp_path / "work"), 1).newest(12).folder) / "metrics.parquet"
    table.write_bytes(table.read_bytes()[:-1])
    with expect_error(CheckpointError):
        small_run.run(tmp_path, lease_epoch=2)


def test_an_attempt_that_lost_its_lease_finds_the_newer_one_and_stops(tmp_path):
    def overtaken(*arguments):
        if not overtaken.done:
            overtaken.done = True
            with pytest.raises(TrainingStopped):
                small_run.run(tmp_path, lease_epoch=2, control=Control(asked_when(lambda: True)))
        return small_run.train_step(*arguments)

    overtaken.done = False
    with expect_error(SupersededError):
        small_run.run(tmp_path, lease_epoch=1, step_function=overtaken)
    assert [found.lease_epoch for found in TemporaryCheckpoints(str(tmp_path / "work"), 2).all()] == [2]


def begun(folder: Path, *, average_decays: dict[str, float], until_step: int = 6) -> str:
    small_run.run(folder, until_step, lease_epoch=1, average_decays=average_decays)
    return str(small_run.records(folder)[until_step])


def words(tree: object) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def test_an_average_enters_as_a_copy_of_the_weights(tmp_path):
    folder = begun(tmp_path, average_decays={})
    run = run_state.continued(folder, "everything", small_run.state_like, seed=0, averages=("averaged",))
    assert words(run.state.averages) == words(run.state.params)
    assert (run.step, run.averages) == (6, ("averaged",))


def test_an_average_goes_on_or_leaves(tmp_path):
    folder = begun(tmp_path, average_decays=small_run.AVERAGED)
    on = run_state.continued(folder, "everything", small_run.state_like, seed=0, averages=("averaged",))
    assert words(on.state.averages) != words(on.state.params)
    left = run_state.continued(folder, "everything", small_run.state_like, seed=0)
    assert left.averages == ()
    assert words(left.state.params) == words(on.state.params)


def test_without_an_average_before_and_after_nothing_changes(tmp_path):
    folder = begun(tmp_path, average_decays={})
    run = run_state.continued(folder, "everything", small_run.state_like, seed=0)
    assert run.averages == ()
    assert words(run.state) == words(run_state.resumed(folder, small_run.state_like).state)


def test_of_several_averages_each_goes_on_begins_or_leaves_by_its_name(tmp_path):
    folder = begun(tmp_path, average_decays={"averaged": 0.75, "slow": 0.9})
    before = run_state.resumed(folder, small_run.state_like, averages=("averaged", "slow")).state
    assert words(before.averages["slow"]) != words(before.averages["averaged"])
    run = run_state.continued(folder, "everything", small_run.state_like, seed=0, averages=("slow", "new"))
    assert run.averages == ("new", "slow")
    assert words(run.state.averages["slow"]) == words(before.averages["slow"])
    assert words(run.state.averages["new"]) == words(before.params)
    anew = run_state.continued(folder, "weights", small_run.state_like, seed=0, averages=("slow",))
    assert words(anew.state.averages["slow"]) == words(before.params)


def test_two_averages_stopped_and_resumed_end_with_the_bytes_of_a_run_that_was_not(tmp_path):
    decays, count = {"slow": 0.9, "averaged": 0.75}, Counted()
    with pytest.raises(TrainingStopped):
        stop = Control(asked_when(lambda: count.steps == 6))
        small_run.run(tmp_path / "a", lease_epoch=1, control=stop, step_function=count, average_decays=decays)
    small_run.run(tmp_path / "a", lease_epoch=2, average_decays=decays)
    small_run.run(tmp_path / "b", lease_epoch=1, average_decays=decays)
    assert committed_bytes(tmp_path / "a") == committed_bytes(tmp_path / "b")


def test_weights_and_optimizer_are_taken_and_the_data_begin_anew(tmp_path):
    folder = begun(tmp_path, average_decays=small_run.AVERAGED)
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


def test_the_optimizer_alone_begins_anew_and_all_else_goes_on(tmp_path):
    folder = begun(tmp_path, average_decays=small_run.AVERAGED)
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


def test_weights_alone_are_taken_and_the_optimizer_begins_anew(tmp_path):
    folder = begun(tmp_path, average_decays=small_run.AVERAGED)
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
    folder, found = begun(tmp_path, average_decays=small_run.AVERAGED), []
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
    folder = begun(tmp_path, average_decays={})
    with expect_error(CheckpointError):
        run_state.resumed(folder, small_run.state_like, averages=("averaged",))


def test_metrics_have_a_row_for_each_update_with_exact_tokens(undisturbed):
    table = MetricsTable.from_parquet((small_run.records(undisturbed)[12] / "metrics.parquet").read_bytes())
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
    table = MetricsTable.from_parquet((folder / "metrics.parquet").read_bytes())
    assert [table[row].consumed_tokens for row in range(12)] == [far + 32 * step for step in range(1, 13)]


def test_the_event_log_tells_what_happened_and_nothing_of_it_is_committed(undisturbed):
    events = read_events(str(undisturbed / "events" / "1.jsonl"))
    assert [event["event"] for event in events] == ["begin", "checkpoint", "checkpoint", "milestone", "progress", "end"]
    assert [event["step"] for event in events] == [0, 4, 8, 12, 12, 12]
    metrics = MetricsTable.from_parquet((small_run.records(undisturbed)[12] / "metrics.parquet").read_bytes())
    assert events[4]["loss"] == metrics[11].loss
    assert all({"time", "elapsed_seconds", "consumed_tokens"} <= set(event) for event in events)
    assert not any(str(undisturbed).encode() in content for content in committed_bytes(undisturbed).values())


@pytest.mark.parametrize(
    "plan", [{"checkpoint_every_steps": 3}, {"checkpoint_every_steps": 99, "checkpoint_every_seconds": 0.0}], ids=str
)
def test_what_saving_takes_does_not_count_against_the_speed_that_is_told(tmp_path, monkeypatch, plan):
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
    told = [event["tokens_per_second"] for event in events]
    assert clock.now > 3000
    # Of an update a second, the figures of two of which are not there yet.
    expected = small_run.GLOBAL_BATCH_SIZE * small_run.SEQUENCE_LENGTH
    assert told == pytest.approx([expected] * len(told), rel=0.2) and told


def test_a_run_with_nothing_to_train_says_so(tmp_path):
    small_run.run(tmp_path, 6, lease_epoch=1)
    (tmp_path / "records" / "6.json").rename(tmp_path / "records" / "4.json")
    with expect_error(ValueError):
        small_run.run(tmp_path, 5, lease_epoch=2)


def test_a_run_that_is_to_end_where_a_temporary_checkpoint_lies_publishes_it_and_trains_nothing(tmp_path):
    count, rest = Counted(), Counted()
    with pytest.raises(TrainingStopped):
        small_run.run(
            tmp_path / "a", lease_epoch=1, control=Control(asked_when(lambda: count.steps == 6)), step_function=count
        )
    small_run.run(tmp_path / "a", 6, lease_epoch=2, step_function=rest)
    small_run.run(tmp_path / "b", 6, lease_epoch=1)
    assert rest.steps == 0
    assert committed_bytes(tmp_path / "a") == committed_bytes(tmp_path / "b")
