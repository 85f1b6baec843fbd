"""Temporary checkpoints: a save asks a bucket for few things, however many files the checkpoints there are of."""

import itertools
import math
import types
import urllib.parse
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.training import saving
from runtime.training.temporary import SupersededError, TemporaryCheckpoints, thinned
from tests.gcs_server.control import GcsServerProcess
from tests.runtime.training import small_run

LISTING = "^GET .*/o[?]"
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
    objects[f"{folder}/step-0000000010-epoch-000001/certified.json"] = "{}"
    objects[f"{folder}/step-0000000020-epoch-000001/checkpoint/manifest.json"] = "{}"
    gcs_server.fill(gcs_bucket, objects)
    return f"gs://{gcs_bucket}/{folder}"


def test_before_a_save_the_bucket_is_asked_once_however_many_files_there_are(filled: str, gcs_server: GcsServerProcess):
    temporary = TemporaryCheckpoints(filled, lease_epoch=2)
    temporary.refuse_if_superseded()
    gcs_server.clear_requests()
    temporary.refuse_if_superseded()
    (request,) = gcs_server.requests()
    assert "delimiter=/" in urllib.parse.unquote(request["request"])
    with pytest.raises(SupersededError, match="lease epoch 2 saves here, this one has 1"):
        TemporaryCheckpoints(filled, lease_epoch=1).refuse_if_superseded()


def test_what_is_there_is_found_by_a_request_or_two_for_each_checkpoint(filled: str, gcs_server: GcsServerProcess):
    temporary = TemporaryCheckpoints(filled, lease_epoch=2)
    gcs_server.clear_requests()
    found = temporary.all()
    assert [(each.step, each.lease_epoch, each.is_complete, each.is_certified) for each in found] == [
        (10, 1, True, True),
        (20, 1, True, False),
        (30, 2, False, False),
    ]
    assert len(gcs_server.requests()) == len(gcs_server.requests(LISTING)) == 1 + 2 + 2 + 1


def test_a_new_folder_is_seen_at_once(filled: str, gcs_server: GcsServerProcess, gcs_bucket: str):
    temporary = TemporaryCheckpoints(filled, lease_epoch=2)
    temporary.refuse_if_superseded()
    folder = filled.removeprefix(f"gs://{gcs_bucket}/")
    gcs_server.fill(gcs_bucket, {f"{folder}/step-0000000031-epoch-000003/checkpoint/arrays/w/c.0": ""})
    with pytest.raises(SupersededError, match="lease epoch 3 saves here"):
        temporary.refuse_if_superseded()


def test_a_folder_where_nothing_was_saved_yet_holds_none(gcs_bucket: str, tmp_path):
    for folder in (f"gs://{gcs_bucket}/{uuid.uuid4().hex}", str(tmp_path / "temporary")):
        assert TemporaryCheckpoints(folder, lease_epoch=1).all() == []


@pytest.mark.parametrize(("host", "num_asked"), [(0, 3), (1, 0)])
def test_the_first_host_of_a_gang_looks_for_a_newer_attempt_before_each_save_and_the_others_do_not(
    tmp_path, monkeypatch, host, num_asked
):
    asked = []
    monkeypatch.setattr(saving, "jax", types.SimpleNamespace(process_index=lambda: host))
    monkeypatch.setattr(TemporaryCheckpoints, "refuse_if_superseded", lambda self: asked.append(self.lease_epoch))
    small_run.run(tmp_path, 12, lease_epoch=1, checkpoint_every_steps=4)
    assert asked == [1] * num_asked


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=300).map(lambda gaps: list(itertools.accumulate(gaps))),
    st.integers(1, 400),
)
def test_as_a_run_goes_on_one_can_go_back_by_any_number_of_steps_to_one_that_lies_back_by_less_than_twice_that(
    saved, back
):
    """Steps at which a run saved; each is certified, and the older ones thinned, before the next."""
    kept: list[int] = []
    for step in saved:
        kept = thinned([*kept, step])
    assert kept == sorted(kept) and {saved[0], saved[-1]} <= set(kept) <= set(saved)
    assert thinned(kept) == kept
    assert len(kept) <= 3 + 2 * math.log2(saved[-1])
    usable = [step for step in kept if saved[-1] - step >= back]
    if saved[-1] - saved[0] >= back:
        best_of_all = [step for step in saved if saved[-1] - step >= back][-1]
        assert usable[-1] == best_of_all or saved[-1] - usable[-1] < 2 * back
