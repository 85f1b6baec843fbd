"""When a run is saved, and what is kept: by steps, by time, and for what later updates have shown of it."""

import shutil
import threading
import time
from pathlib import Path

import pytest

from runtime.tracking.events import read_events
from runtime.training import saving
from runtime.training.checkpoint_files import CheckpointFiles, ChunkedArray
from runtime.training.control import Action, Control, Decision
from runtime.training.figures import SkippedTooOftenError
from runtime.training.loop import TrainingStopped
from runtime.training.monitors import Monitors
from runtime.training.saving import Saver
from runtime.training.temporary import Temporary, TemporaryCheckpoints
from tests.catalogue import check_message, expect_error
from tests.runtime.training import small_run
from tests.runtime.training.small_run import Countdown, first_action, stop_when
from tests.runtime.training.test_loop import RULE, skipping


def steps_of(folder: Path, event: str, attempt: int = 1) -> list[int]:
    events = read_events(str(folder / "events" / f"{attempt}.jsonl"))
    return [found["step"] for found in events if found["event"] == event]


def temporary(folder: Path, lease_epoch: int = 1) -> list[Temporary]:
    return TemporaryCheckpoints(str(folder / "work"), lease_epoch).all()


def test_a_run_saved_by_time_commits_the_same_bytes(tmp_path):
    small_run.run(tmp_path / "by-time", lease_epoch=1, checkpoint_every_steps=100, checkpoint_every_seconds=1e-9)
    small_run.run(tmp_path / "by-steps", lease_epoch=1, checkpoint_every_steps=5)
    assert steps_of(tmp_path / "by-time", "checkpoint") == list(range(1, 12))
    assert steps_of(tmp_path / "by-steps", "checkpoint") == [5, 10]
    assert small_run.committed_bytes(tmp_path / "by-time") == small_run.committed_bytes(tmp_path / "by-steps")


def test_steps_continue_during_a_write_and_the_next_save_waits_for_it(tmp_path, monkeypatch):
    two_updates_later = threading.Event()
    write_chunk = ChunkedArray.write_chunk

    def held(*arguments):
        assert two_updates_later.wait(20), "the loop waits for the write"
        return write_chunk(*arguments)

    def step_function(state, *arguments):
        if int(state.optimizer.count) == 6:
            two_updates_later.set()
        return small_run.train_step(state, *arguments)

    monkeypatch.setattr(ChunkedArray, "write_chunk", held)
    small_run.run(tmp_path, 8, lease_epoch=1, checkpoint_every_steps=4, step_function=step_function)
    events = read_events(str(tmp_path / "events" / "1.jsonl"))
    saves = [found for found in events if found["event"] in ("checkpoint", "milestone")]
    assert [found["step"] for found in saves] == [4, 8]
    assert all(found["waited_seconds"] >= 0 for found in saves)


def test_no_save_by_steps_follows_right_after_one_by_the_clock(tmp_path, monkeypatch):
    clock = {"updates": 0}

    def step_function(state, *arguments):
        clock["updates"] += 1
        return small_run.train_step(state, *arguments)

    monkeypatch.setattr(Saver, "is_due", lambda self: clock["updates"] == 9)
    small_run.run(tmp_path, 25, lease_epoch=1, checkpoint_every_steps=10, step_function=step_function)
    assert steps_of(tmp_path, "checkpoint") == [9, 20]


def failing(at_count: int):
    """The small train step, whose device fails."""

    def step_function(state, *arguments):
        if int(state.optimizer.count) == at_count:
            raise RuntimeError("the device is gone")
        return small_run.train_step(state, *arguments)

    return step_function


def test_a_pending_milestone_is_finished_when_training_fails(tmp_path, monkeypatch):
    write = CheckpointFiles.write

    def slow(files, key, *arguments):
        if key.endswith("manifest.json"):
            time.sleep(0.3)
        return write(files, key, *arguments)

    monkeypatch.setattr(CheckpointFiles, "write", slow)
    with expect_error(RuntimeError):
        small_run.run(tmp_path, lease_epoch=1, publish_every_steps=5, step_function=failing(6))
    assert sorted(small_run.records(tmp_path)) == [5]
    assert [event["event"] for event in read_events(str(tmp_path / "events" / "1.jsonl"))].count("error") == 1


def test_the_error_of_the_training_is_raised_and_not_that_of_the_pending_save(tmp_path, monkeypatch, caplog):
    def full(*arguments):
        time.sleep(0.3)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ChunkedArray, "write_chunk", full)
    with expect_error(RuntimeError):
        small_run.run(tmp_path, lease_epoch=1, step_function=failing(4))
    (message,) = caplog.messages
    check_message(message)


def test_a_failed_mark_or_deletion_is_logged_and_ends_no_run(tmp_path, monkeypatch, caplog):
    def full(self, *arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "GOOD_STEPS", 2)
    monkeypatch.setattr(TemporaryCheckpoints, "mark_good", full)
    monkeypatch.setattr(TemporaryCheckpoints, "prune", full)
    run = small_run.run(tmp_path, lease_epoch=1)
    assert run is not None and run.step == 12 and sorted(small_run.records(tmp_path)) == [12]
    for message in sorted(set(caplog.messages)):
        check_message(message)
    assert [found.step for found in temporary(tmp_path)] == [4, 8]
    monkeypatch.undo()
    small_run.run(tmp_path, 16, lease_epoch=2)
    assert [found.step for found in temporary(tmp_path)] == [], "the next run deletes them"


def test_the_clock_of_one_host_makes_all_hosts_save():
    def others(number: int) -> int:
        return max(number, Decision(Action.SAVE).number)

    control = Control(agree=others)
    assert first_action(control) == Action.SAVE
    assert first_action(Control(), is_save_due=True) == Action.SAVE
    assert first_action(Control()) == Action.CONTINUE and control.reason == ""
    control.request_exit("a signal")
    assert first_action(control, is_save_due=True) == Action.SAVE_AND_EXIT and control.reason == "a signal"


@pytest.fixture
def quickly_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "GOOD_STEPS", 3)


@pytest.mark.usefixtures("quickly_good")
def test_a_good_checkpoint_is_kept_while_newer_ones_are_in_doubt(tmp_path):
    bad_from_8 = skipping({9, 11, 13, 15, 17, 18, 19})
    with expect_error(SkippedTooOftenError):
        small_run.run(tmp_path, 40, lease_epoch=1, checkpoint_every_steps=2, step_function=bad_from_8, skip_rule=RULE)
    assert steps_of(tmp_path, "good_checkpoint") == [2, 4]
    kept = temporary(tmp_path)
    assert [found.step for found in kept if found.is_good] == [2, 4]
    assert [found.step for found in kept if found.is_complete] == [2, 4, 16, 18]
    assert TemporaryCheckpoints(str(tmp_path / "work"), 2).newest(40).step == 18, "a resumed run starts at the newest"


@pytest.mark.usefixtures("quickly_good")
def test_good_checkpoints_keep_their_distance_and_are_never_deleted(tmp_path):
    seen = set()

    def step_function(state, *arguments):
        now = {found.step for found in temporary(tmp_path) if found.is_good}
        assert seen <= now, "a good checkpoint is deleted"
        seen.update(now)
        return small_run.train_step(state, *arguments)

    options = {"checkpoint_every_steps": 2, "keep_good_every_steps": 7, "step_function": step_function}
    small_run.run(tmp_path, 24, lease_epoch=1, **options)
    small_run.run(tmp_path, 48, lease_epoch=2, **options)
    # Past 2 and 8 further: the first save that lies 7 past the one before; 24 is a milestone and no temporary one.
    assert [found.step for found in temporary(tmp_path)] == [2, 10, 18, 26, 34, 42]
    assert {found.is_good for found in temporary(tmp_path)} == {True}


@pytest.mark.usefixtures("quickly_good")
def test_the_next_candidate_replaces_one_in_doubt(tmp_path):
    bad_at_11 = skipping({11})
    options = {"checkpoint_every_steps": 2, "keep_good_every_steps": 7, "step_function": bad_at_11, "skip_rule": RULE}
    small_run.run(tmp_path, 24, lease_epoch=1, **options)
    assert steps_of(tmp_path, "good_checkpoint") == [2, 12, 20]


@pytest.mark.usefixtures("quickly_good")
def test_a_stopped_run_s_checkpoint_becomes_good_by_the_steps_of_the_next(tmp_path):
    for attempt in (1, 2):
        seen = []

        def step_function(*arguments, seen=seen):
            seen.append(arguments)
            return small_run.train_step(*arguments)

        control = Control(stop_when(lambda seen=seen: len(seen) == 5))
        with pytest.raises(TrainingStopped):
            small_run.run(
                tmp_path, 40, lease_epoch=attempt, checkpoint_every_steps=100, control=control,
                step_function=step_function,
            )  # fmt: skip
    assert [(found.step, found.lease_epoch, found.is_good) for found in temporary(tmp_path, 2)] == [
        (5, 1, True),
        (10, 2, False),
    ]


@pytest.mark.usefixtures("quickly_good")
@pytest.mark.parametrize(("doubted", "good"), [(0, [4, 8]), (5, [8])])
def test_checkpoints_before_the_resumed_milestone_become_good_by_the_steps_after_it(
    tmp_path, monkeypatch, doubted, good
):
    """Step 5 was published on request, and the run died after it."""
    desk, taken = small_run.Desk(), 0

    def dies_at_6(*arguments):
        nonlocal taken
        taken += 1
        if taken == 3:
            desk.request(Action.PUBLISH, 5)
        if taken == 6:
            raise ConnectionResetError
        return small_run.train_step(*arguments)

    with pytest.raises(ConnectionResetError):
        small_run.run(tmp_path, lease_epoch=1, control=Control(requests=desk.open), step_function=dies_at_6)
    assert sorted(small_run.records(tmp_path)) == [5]
    watching = Monitors()
    watching.last_doubted_step = doubted
    monkeypatch.setattr(Monitors, "resumed", lambda *table, **options: watching)
    small_run.run(tmp_path, lease_epoch=2)
    assert steps_of(tmp_path, "good_checkpoint", 2) == good


@pytest.mark.usefixtures("quickly_good")
def test_a_run_that_starts_before_a_good_checkpoint_marks_its_own(tmp_path):
    small_run.run(tmp_path, 14, lease_epoch=1, checkpoint_every_steps=2)
    torn = [found for found in temporary(tmp_path) if found.is_good][-1]
    Path(torn.folder, "checkpoint", "manifest.json").unlink()
    shutil.rmtree(tmp_path / "outputs")
    shutil.rmtree(tmp_path / "records")
    (tmp_path / "records").mkdir()
    small_run.run(tmp_path, 14, lease_epoch=2, checkpoint_every_steps=2)
    assert (torn.step, 2) in [(found.step, found.lease_epoch) for found in temporary(tmp_path) if found.is_good]


def test_frequent_saves_become_good_too(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "GOOD_STEPS", 9)
    small_run.run(tmp_path, 30, lease_epoch=1, checkpoint_every_steps=2)
    good = steps_of(tmp_path, "good_checkpoint")
    assert good[0] == 2 and len(good) > 1, "the oldest candidate is kept, then the next"


@pytest.mark.usefixtures("quickly_good")
def test_a_slow_checkpoint_becomes_good_once_it_is_complete(tmp_path, monkeypatch):
    six_updates_later = threading.Event()
    write_chunk = ChunkedArray.write_chunk

    def held(*arguments):
        assert six_updates_later.wait(20), "the loop waits for the write"
        return write_chunk(*arguments)

    def step_function(state, *arguments):
        if int(state.optimizer.count) == 16:
            six_updates_later.set()
        return small_run.train_step(state, *arguments)

    monkeypatch.setattr(ChunkedArray, "write_chunk", held)
    small_run.run(tmp_path, 40, lease_epoch=1, checkpoint_every_steps=10, step_function=step_function)
    assert steps_of(tmp_path, "good_checkpoint")[0] == 10


@pytest.mark.usefixtures("quickly_good")
def test_milestones_and_the_end_of_the_phase_leave_only_good_checkpoints(tmp_path):
    seen = {}

    def step_function(state, *arguments):
        seen[int(state.optimizer.count)] = [found.step for found in temporary(tmp_path) if found.is_good]
        return small_run.train_step(state, *arguments)

    small_run.run(
        tmp_path, 14, lease_epoch=1, checkpoint_every_steps=2, publish_every_steps=7, step_function=step_function
    )
    assert sorted(small_run.records(tmp_path)) == [7, 14]
    assert seen[8][-1] == 4
    assert [(found.step, found.is_good) for found in temporary(tmp_path)] == [(n, True) for n in (2, 4, 6, 10)]
    small_run.run(tmp_path, 21, lease_epoch=2, checkpoint_every_steps=2, keep_good_every_steps=7)
    of_both = [(found.step, found.lease_epoch) for found in temporary(tmp_path) if found.is_good]
    assert of_both == [(2, 1), (4, 1), (6, 1), (10, 1), (18, 2)], "one run in several attempts"
    assert of_both == [(found.step, found.lease_epoch) for found in temporary(tmp_path)]


@pytest.mark.usefixtures("quickly_good")
def test_milestones_have_zarr_descriptions_and_temporary_checkpoints_have_none(tmp_path):
    small_run.run(tmp_path, 7, lease_epoch=1, checkpoint_every_steps=2)
    chunks, descriptions = (
        {path.parent for path in tmp_path.rglob(name)} for name in ("arrays/*/c*", "arrays/*/zarr.json")
    )
    undescribed = {folder for folder in chunks if folder.is_relative_to(tmp_path / "work")}
    assert all(found.is_complete for found in temporary(tmp_path)) and undescribed
    assert descriptions == chunks - undescribed != set()


def test_frequent_milestones_do_not_prevent_good_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "GOOD_STEPS", 7)
    small_run.run(tmp_path, 20, lease_epoch=1, checkpoint_every_steps=2, publish_every_steps=3)
    good = steps_of(tmp_path, "good_checkpoint")
    assert good[0] == 2 and len(good) > 1
    assert {found.is_good for found in temporary(tmp_path)} == {True}
    assert temporary(tmp_path)[-1].step == good[-1]


@pytest.mark.usefixtures("quickly_good")
def test_a_run_from_a_good_checkpoint_commits_the_bytes_of_one_published_there(tmp_path):
    small_run.run(tmp_path / "rolled-back", 14, lease_epoch=1, checkpoint_every_steps=2)
    before = temporary(tmp_path / "rolled-back")
    kept = before[-1]
    forbidden = Countdown(0, lambda: pytest.fail("a step was taken")).watch(small_run.train_step)
    small_run.run(tmp_path / "rolled-back", kept.step, lease_epoch=2, step_function=forbidden)
    small_run.run(tmp_path / "undisturbed", 14, lease_epoch=1, publish_every_steps=kept.step)
    assert sorted(small_run.records(tmp_path / "rolled-back")) == [10, 14]
    committed = [small_run.committed_bytes(tmp_path / name) for name in ("rolled-back", "undisturbed")]
    assert committed[0] == committed[1]
    assert temporary(tmp_path / "rolled-back") == before, "the good checkpoint stays beside its milestone"
