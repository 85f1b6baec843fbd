"""Temporary checkpoints: a save asks a bucket for few things, however many files the checkpoints there are of."""

import types
import urllib.parse
import uuid
from pathlib import Path

import jax.numpy as jnp
import pytest

from runtime.training import checkpoint, saving
from runtime.training.control import Control
from runtime.training.loop import TrainingStopped
from runtime.training.temporary import SupersededError, TemporaryCheckpoints
from tests.catalogue import expect_error
from tests.gcs_server.control import GcsServerProcess
from tests.gcs_server.faults import Fault
from tests.runtime.training import small_run

FETCHING = "alt=media"
CHUNKS_OF_EACH = 1_500
"""More than a page of a listing."""


@pytest.fixture
def filled(gcs_server: GcsServerProcess, gcs_bucket: str) -> str:
    """A work folder with a complete checkpoint, a certified one and one that is half-written, of very many files."""
    folder = uuid.uuid4().hex
    objects = {}
    for name in ("step-0000000010-epoch-000001", "step-0000000020-epoch-000001", "step-0000000030-epoch-000002"):
        objects |= {f"{folder}/{name}/checkpoint/arrays/w/c.{chunk}": "" for chunk in range(CHUNKS_OF_EACH)}
    objects[f"{folder}/step-0000000010-epoch-000001/checkpoint/manifest.json"] = "{}"
    objects[f"{folder}/step-0000000010-epoch-000001/good.json"] = "{}"
    objects[f"{folder}/step-0000000020-epoch-000001/checkpoint/manifest.json"] = "{}"
    gcs_server.fill(gcs_bucket, objects)
    return f"gs://{gcs_bucket}/{folder}"


def test_a_save_lists_the_bucket_once_for_any_number_of_files(filled: str, gcs_server: GcsServerProcess):
    temporary = TemporaryCheckpoints(filled, lease_epoch=2)
    temporary.check_not_superseded()
    gcs_server.clear_requests()
    temporary.check_not_superseded()
    (request,) = gcs_server.requests()
    assert "delimiter=/" in urllib.parse.unquote(request["request"])
    with expect_error(SupersededError):
        TemporaryCheckpoints(filled, lease_epoch=1).check_not_superseded()


def test_a_listing_takes_two_requests_for_each_checkpoint_at_most(filled: str, gcs_server: GcsServerProcess):
    temporary = TemporaryCheckpoints(filled, lease_epoch=2)
    gcs_server.clear_requests()
    found = temporary.all()
    assert [(each.step, each.lease_epoch, each.is_complete, each.is_good) for each in found] == [
        (10, 1, True, True),
        (20, 1, True, False),
        (30, 2, False, False),
    ]
    assert len(gcs_server.requests()) == 1 + 2 + 2 + 1 and not gcs_server.requests(FETCHING)


def test_a_bucket_that_refuses_is_an_error_and_not_an_empty_one(filled: str, gcs_server: GcsServerProcess):
    """Else a run whose credentials have expired would start again, and delete the good checkpoints."""
    temporary = TemporaryCheckpoints(filled, lease_epoch=2)
    gcs_server.add_fault(Fault("status", where="manifest|good", status=403))
    try:
        with expect_error(OSError):
            temporary.newest(30)
    finally:
        gcs_server.clear_faults()


def test_a_new_folder_is_seen_at_once(filled: str, gcs_server: GcsServerProcess, gcs_bucket: str):
    temporary = TemporaryCheckpoints(filled, lease_epoch=2)
    temporary.check_not_superseded()
    folder = filled.removeprefix(f"gs://{gcs_bucket}/")
    gcs_server.fill(gcs_bucket, {f"{folder}/step-0000000031-epoch-000003/checkpoint/arrays/w/c.0": ""})
    with expect_error(SupersededError):
        temporary.check_not_superseded()


def test_a_missing_folder_has_no_checkpoints(gcs_bucket: str, tmp_path):
    for folder in (f"gs://{gcs_bucket}/{uuid.uuid4().hex}", str(tmp_path / "temporary")):
        assert TemporaryCheckpoints(folder, lease_epoch=1).all() == []


@pytest.mark.parametrize(("host", "num_asked"), [(0, 3), (1, 0)])
def test_the_first_host_of_a_gang_looks_for_a_newer_attempt_before_each_save_and_the_others_do_not(
    tmp_path, monkeypatch, host, num_asked
):
    asked = []
    monkeypatch.setattr(saving, "jax", types.SimpleNamespace(process_index=lambda: host))
    monkeypatch.setattr(TemporaryCheckpoints, "check_not_superseded", lambda self: asked.append(self.lease_epoch))
    small_run.run(tmp_path, 12, lease_epoch=1, checkpoint_every_steps=4)
    assert asked == [1] * num_asked


def test_an_attempt_lists_once_as_it_begins(tmp_path, monkeypatch):
    small_run.run(tmp_path, 6, lease_epoch=1)
    looked, look = [], TemporaryCheckpoints.all
    monkeypatch.setattr(TemporaryCheckpoints, "all", lambda self: looked.append(self.lease_epoch) or look(self))
    with pytest.raises(TrainingStopped):
        small_run.run(tmp_path, 12, lease_epoch=2, control=Control(lambda: "at once"))
    assert looked == [2]


def test_pruning_deletes_no_good_checkpoint(tmp_path):
    temporary = TemporaryCheckpoints(str(tmp_path), lease_epoch=1)
    for step in range(1, 9):
        checkpoint.save(f"{temporary.folder_of(step)}/checkpoint", {"w": jnp.zeros(2)}, {"step": step}).wait()
        if step % 3 == 1:
            assert temporary.mark_good(step, good_steps=50)
    later = TemporaryCheckpoints(str(tmp_path), lease_epoch=2)
    assert [found.step for found in later.prune(8)] == [2, 3, 5, 6]
    assert [found.step for found in later.prune(9, keep=0)] == [8]
    assert [(found.step, found.is_good) for found in later.all()] == [(1, True), (4, True), (7, True)]


def test_a_known_mark_is_not_read_again(filled: str, gcs_server: GcsServerProcess):
    temporary = TemporaryCheckpoints(filled, lease_epoch=2)
    first = temporary.all()
    gcs_server.clear_requests()
    assert temporary.all() == first
    assert len(gcs_server.requests()) == 1 + 1 + 2 + 1


def test_a_mark_without_a_checkpoint_is_ignored(tmp_path):
    temporary = TemporaryCheckpoints(str(tmp_path), lease_epoch=1)
    for step in (1, 2):
        checkpoint.save(f"{temporary.folder_of(step)}/checkpoint", {"w": jnp.zeros(2)}, {"step": step}).wait()
    assert temporary.mark_good(2, good_steps=50)
    Path(temporary.folder_of(2), "checkpoint", "manifest.json").unlink()  # as the error of a torn one says
    for looking in (temporary, TemporaryCheckpoints(str(tmp_path), lease_epoch=2)):
        assert looking.newest(9).step == 1
    temporary.prune(9, keep=1)
    assert [(found.step, found.is_complete) for found in temporary.all()] == [(1, True)]


def test_an_attempt_that_lost_its_lease_marks_nothing(tmp_path):
    zombie, successor = (TemporaryCheckpoints(str(tmp_path), lease_epoch=epoch) for epoch in (1, 2))
    for temporary, step in ((zombie, 1), (successor, 2)):
        checkpoint.save(f"{temporary.folder_of(step)}/checkpoint", {"w": jnp.zeros(2)}, {"step": step}).wait()
    with expect_error(SupersededError):
        zombie.mark_good(1, good_steps=50)


def test_a_checkpoint_marked_after_the_listing_stays(tmp_path, monkeypatch):
    first, second = (TemporaryCheckpoints(str(tmp_path), lease_epoch=epoch) for epoch in (1, 2))
    for step in (1, 2, 3):
        checkpoint.save(f"{first.folder_of(step)}/checkpoint", {"w": jnp.zeros(2)}, {"step": step}).wait()
    listed = second.all()
    first.mark_good(1, good_steps=50)
    monkeypatch.setattr(second, "all", lambda: listed)
    assert second.prune(9, keep=1) == [listed[1]]
    assert [(found.step, found.is_good) for found in first.all()] == [(1, True), (3, False)]
