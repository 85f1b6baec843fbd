"""When a run is saved, and what is kept: by steps, by time, and for what later updates have shown of it."""

import shutil
import threading
import time
from pathlib import Path

import pytest

from runtime.tracking.events import read_events
from runtime.training import saving
from runtime.training.checkpoint_files import CheckpointFiles, ChunkedArray
from runtime.training.control import Control, Order, Word
from runtime.training.loop import TrainingStopped
from runtime.training.monitors import Monitors
from runtime.training.saving import Saver
from runtime.training.temporary import Temporary, TemporaryCheckpoints
from runtime.training.update import SkippedTooOftenError
from tests.catalogue import expect_error
from tests.runtime.training import small_run
from tests.runtime.training.small_run import Countdown, asked_when, order_of
from tests.runtime.training.test_loop import RULE, skipping


def steps_of(folder: Path, event: str, attempt: int = 1) -> list[int]:
    events = read_events(str(folder / "events" / f"{attempt}.jsonl"))
    return [found["step"] for found in events if found["event"] == event]


def temporary(folder: Path, lease_epoch: int = 1) -> list[Temporary]:
    return TemporaryCheckpoints(str(folder / "work"), lease_epoch).all()


def test_a_run_is_saved_by_time_too_and_commits_the_same_bytes(tmp_path):
    small_run.run(tmp_path / "by-time", lease_epoch=1, checkpoint_every_steps=100, checkpoint_every_seconds=1e-9)
    small_run.run(tmp_path / "by-steps", lease_epoch=1, checkpoint_every_steps=5)
    assert steps_of(tmp_path / "by-time", "checkpoint") == list(range(1, 12))
    assert steps_of(tmp_path / "by-steps", "checkpoint") == [5, 10]
    assert small_run.committed_bytes(tmp_path / "by-time") == small_run.committed_bytes(tmp_path / "by-steps")


def test_updates_go_on_while_a_checkpoint_is_written_and_the_next_save_waits_for_it(tmp_path, monkeypatch):
    two_updates_later = threading.Event()
    write_chunk = ChunkedArray.write_chunk

    def held(*arguments):
        assert two_updates_later.wait(20), "the loop waits for what is being written"
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


def test_by_steps_nothing_is_saved_again_that_the_clock_had_saved_just_before(tmp_path, monkeypatch):
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


def test_a_save_that_is_under_way_when_training_fails_is_finished_and_a_milestone_published(tmp_path, monkeypatch):
    write = CheckpointFiles.write

    def slow(files, key, *arguments):
        if key.endswith("manifest.json"):
            time.sleep(0.3)
        return write(files, key, *arguments)

    monkeypatch.setattr(CheckpointFiles, "write", slow)
    with expect_error(RuntimeError):
        small_run.run(tmp_path, lease_epoch=1, publish_every_steps=5, step_function=failing(6))
    assert sorted(small_run.records(tmp_path)) == [5]
    assert read_events(str(tmp_path / "events" / "1.jsonl"))[-2:][0]["message"] == "the device is gone"


def test_what_training_failed_of_is_told_and_not_that_the_save_under_way_failed_too(tmp_path, monkeypatch, caplog):
    def full(*arguments):
        time.sleep(0.3)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ChunkedArray, "write_chunk", full)
    with expect_error(RuntimeError):
        small_run.run(tmp_path, lease_epoch=1, step_function=failing(4))
    assert "after RuntimeError, what is done at its end failed too: checkpoint" in caplog.text


def test_a_mark_or_a_deletion_that_fails_is_told_and_ends_no_run(tmp_path, monkeypatch, caplog):
    def full(self, *arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "CERTIFYING_STEPS", 2)
    monkeypatch.setattr(TemporaryCheckpoints, "certify", full)
    monkeypatch.setattr(TemporaryCheckpoints, "prune", full)
    run = small_run.run(tmp_path, lease_epoch=1)
    assert run is not None and run.step == 12 and sorted(small_run.records(tmp_path)) == [12]
    assert "the checkpoint of step 4 could not be marked as certified: [Errno 28]" in caplog.text
    assert "old checkpoints could not be deleted at step 8" in caplog.text
    assert [found.step for found in temporary(tmp_path)] == [4, 8]
    monkeypatch.undo()
    small_run.run(tmp_path, 16, lease_epoch=2)
    assert [found.step for found in temporary(tmp_path)] == [], "the next run deletes them"


def test_the_clock_of_one_host_makes_all_hosts_save_and_none_stop():
    def others(number: int) -> int:
        return max(number, Order(Word.SAVE).number)

    control = Control(agree=others)
    assert order_of(control) == Word.SAVE
    assert order_of(Control(), is_save_due=True) == Word.SAVE
    assert order_of(Control()) == Word.GO_ON and control.reason == ""
    control.request_exit("a signal")
    assert order_of(control, is_save_due=True) == Word.SAVE_AND_EXIT and control.reason == "a signal"


@pytest.fixture
def quickly_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "CERTIFYING_STEPS", 3)


@pytest.mark.usefixtures("quickly_certified")
def test_a_checkpoint_that_good_updates_followed_is_certified_and_kept_while_newer_ones_are_in_doubt(tmp_path):
    bad_from_8 = skipping({9, 11, 13, 15, 17, 18, 19})
    with expect_error(SkippedTooOftenError):
        small_run.run(tmp_path, 40, lease_epoch=1, checkpoint_every_steps=2, step_function=bad_from_8, skip_rule=RULE)
    assert steps_of(tmp_path, "certified") == [2, 4]
    kept = temporary(tmp_path)
    assert [found.step for found in kept if found.is_certified] == [2, 4]
    assert [found.step for found in kept if found.is_complete] == [2, 4, 16, 18]
    assert TemporaryCheckpoints(str(tmp_path / "work"), 2).newest(40).step == 18, (
        "a resumed run goes on from the newest"
    )


@pytest.mark.usefixtures("quickly_certified")
def test_of_the_good_ones_one_in_so_many_steps_is_certified_and_none_of_those_ever_goes(tmp_path):
    seen = set()

    def step_function(state, *arguments):
        now = {found.step for found in temporary(tmp_path) if found.is_certified}
        assert seen <= now, "a certified one has gone"
        seen.update(now)
        return small_run.train_step(state, *arguments)

    options = {"checkpoint_every_steps": 2, "certify_every_steps": 7, "step_function": step_function}
    small_run.run(tmp_path, 24, lease_epoch=1, **options)
    small_run.run(tmp_path, 48, lease_epoch=2, **options)
    # Past 2 and 8 further: the first save that lies 7 past the one before; 24 is a milestone and no temporary one.
    assert [found.step for found in temporary(tmp_path)] == [2, 10, 18, 26, 34, 42]
    assert {found.is_certified for found in temporary(tmp_path)} == {True}


@pytest.mark.usefixtures("quickly_certified")
def test_where_the_next_to_be_certified_is_in_doubt_the_one_after_it_takes_its_place(tmp_path):
    bad_at_11 = skipping({11})
    options = {"checkpoint_every_steps": 2, "certify_every_steps": 7, "step_function": bad_at_11, "skip_rule": RULE}
    small_run.run(tmp_path, 24, lease_epoch=1, **options)
    assert steps_of(tmp_path, "certified") == [2, 12, 20]


@pytest.mark.usefixtures("quickly_certified")
def test_what_a_run_was_stopped_at_is_certified_by_the_updates_of_the_next(tmp_path):
    for attempt in (1, 2):
        seen = []

        def step_function(*arguments, seen=seen):
            seen.append(arguments)
            return small_run.train_step(*arguments)

        control = Control(asked_when(lambda seen=seen: len(seen) == 5))
        with pytest.raises(TrainingStopped):
            small_run.run(
                tmp_path, 40, lease_epoch=attempt, checkpoint_every_steps=100, control=control,
                step_function=step_function,
            )  # fmt: skip
    assert [(found.step, found.lease_epoch, found.is_certified) for found in temporary(tmp_path, 2)] == [
        (5, 1, True),
        (10, 2, False),
    ]


@pytest.mark.usefixtures("quickly_certified")
@pytest.mark.parametrize(("doubted", "certified"), [(0, [4, 8]), (5, [8])])
def test_what_was_saved_before_the_milestone_that_a_run_goes_on_from_is_certified_by_what_followed_it(
    tmp_path, monkeypatch, doubted, certified
):
    """Somebody had step 5 published, and the run died behind it."""
    desk, taken = small_run.Desk(), 0

    def dies_at_6(*arguments):
        nonlocal taken
        taken += 1
        if taken == 3:
            desk.ask(Word.PUBLISH, 5)
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
    assert steps_of(tmp_path, "certified", 2) == certified


@pytest.mark.usefixtures("quickly_certified")
def test_a_run_that_begins_before_a_certified_one_certifies_what_it_saves(tmp_path):
    small_run.run(tmp_path, 14, lease_epoch=1, checkpoint_every_steps=2)
    torn = [found for found in temporary(tmp_path) if found.is_certified][-1]
    Path(torn.folder, "checkpoint", "manifest.json").unlink()
    shutil.rmtree(tmp_path / "outputs")
    shutil.rmtree(tmp_path / "records")
    (tmp_path / "records").mkdir()
    small_run.run(tmp_path, 14, lease_epoch=2, checkpoint_every_steps=2)
    assert (torn.step, 2) in [(found.step, found.lease_epoch) for found in temporary(tmp_path) if found.is_certified]


def test_saves_that_follow_each_other_quickly_are_certified_too(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "CERTIFYING_STEPS", 9)
    small_run.run(tmp_path, 30, lease_epoch=1, checkpoint_every_steps=2)
    certified = steps_of(tmp_path, "certified")
    assert certified[0] == 2 and len(certified) > 1, "the oldest waits while newer ones come and go, then the next"


@pytest.mark.usefixtures("quickly_certified")
def test_a_checkpoint_that_takes_long_to_write_is_certified_once_it_is_there(tmp_path, monkeypatch):
    six_updates_later = threading.Event()
    write_chunk = ChunkedArray.write_chunk

    def held(*arguments):
        assert six_updates_later.wait(20), "the loop waits for what is being written"
        return write_chunk(*arguments)

    def step_function(state, *arguments):
        if int(state.optimizer.count) == 16:
            six_updates_later.set()
        return small_run.train_step(state, *arguments)

    monkeypatch.setattr(ChunkedArray, "write_chunk", held)
    small_run.run(tmp_path, 40, lease_epoch=1, checkpoint_every_steps=10, step_function=step_function)
    assert steps_of(tmp_path, "certified")[0] == 10


@pytest.mark.usefixtures("quickly_certified")
def test_a_milestone_on_the_way_and_the_end_of_the_phase_leave_certified_ones_and_nothing_else(tmp_path):
    seen = {}

    def step_function(state, *arguments):
        seen[int(state.optimizer.count)] = [found.step for found in temporary(tmp_path) if found.is_certified]
        return small_run.train_step(state, *arguments)

    small_run.run(
        tmp_path, 14, lease_epoch=1, checkpoint_every_steps=2, publish_every_steps=7, step_function=step_function
    )
    assert sorted(small_run.records(tmp_path)) == [7, 14]
    assert seen[8][-1] == 4
    assert [(found.step, found.is_certified) for found in temporary(tmp_path)] == [(n, True) for n in (2, 4, 6, 10)]
    small_run.run(tmp_path, 21, lease_epoch=2, checkpoint_every_steps=2, certify_every_steps=7)
    of_both = [(found.step, found.lease_epoch) for found in temporary(tmp_path) if found.is_certified]
    assert of_both == [(2, 1), (4, 1), (6, 1), (10, 1), (18, 2)], "one trajectory, however often it goes on"
    assert of_both == [(found.step, found.lease_epoch) for found in temporary(tmp_path)]


@pytest.mark.usefixtures("quickly_certified")
def test_milestones_are_described_for_any_zarr_reader_and_temporary_checkpoints_are_not(tmp_path):
    small_run.run(tmp_path, 7, lease_epoch=1, checkpoint_every_steps=2)
    chunks, descriptions = (
        {path.parent for path in tmp_path.rglob(name)} for name in ("arrays/*/c*", "arrays/*/zarr.json")
    )
    undescribed = {folder for folder in chunks if folder.is_relative_to(tmp_path / "work")}
    assert all(found.is_complete for found in temporary(tmp_path)) and undescribed
    assert descriptions == chunks - undescribed != set()


def test_milestones_that_follow_each_other_quickly_keep_none_from_being_certified(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "CERTIFYING_STEPS", 7)
    small_run.run(tmp_path, 20, lease_epoch=1, checkpoint_every_steps=2, publish_every_steps=3)
    certified = steps_of(tmp_path, "certified")
    assert certified[0] == 2 and len(certified) > 1
    assert {found.is_certified for found in temporary(tmp_path)} == {True}
    assert temporary(tmp_path)[-1].step == certified[-1]


@pytest.mark.usefixtures("quickly_certified")
def test_a_run_that_goes_on_from_the_certified_one_commits_what_one_that_published_there_did(tmp_path):
    small_run.run(tmp_path / "rolled-back", 14, lease_epoch=1, checkpoint_every_steps=2)
    before = temporary(tmp_path / "rolled-back")
    kept = before[-1]
    forbidden = Countdown(0, lambda: pytest.fail("an update was made")).watch(small_run.train_step)
    small_run.run(tmp_path / "rolled-back", kept.step, lease_epoch=2, step_function=forbidden)
    small_run.run(tmp_path / "undisturbed", 14, lease_epoch=1, publish_every_steps=kept.step)
    assert sorted(small_run.records(tmp_path / "rolled-back")) == [10, 14]
    committed = [small_run.committed_bytes(tmp_path / name) for name in ("rolled-back", "undisturbed")]
    assert committed[0] == committed[1]
    assert temporary(tmp_path / "rolled-back") == before, "it stays, also beside the milestone made of it"
