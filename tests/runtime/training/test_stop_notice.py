"""Stop notice: advice, so that a store that fails stops no run."""

import logging
from pathlib import Path

import pytest

from runtime.training.control import Action, Control
from runtime.training.stop_notice import StopNotice
from tests.catalogue import expect_error
from tests.gcs_server.control import GcsServerProcess
from tests.gcs_server.faults import Fault


def test_whoever_looks_finds_it_once_it_is_left_in_a_folder_or_in_a_bucket(tmp_path: Path, gcs_bucket: str):
    for url in (str(tmp_path / "stops" / "a"), f"gs://{gcs_bucket}/stops/a"):
        mine, other = StopNotice(url), StopNotice(url)
        assert not other.is_left()
        mine.leave()
        mine.leave()
        assert other.is_left()


def test_it_is_written_by_one_host_however_many_are_asked(tmp_path: Path):
    path = tmp_path / "stops"
    StopNotice(str(path)).leave()
    path.write_bytes(b"by the first")
    StopNotice(str(path)).leave()
    assert path.read_bytes() == b"by the first"


def test_a_folder_that_cannot_be_written_or_read_is_told_once_and_the_run_is_saved_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "file").touch()
    notice = StopNotice(str(tmp_path / "file" / "stops"))
    with caplog.at_level(logging.WARNING):
        control = Control(notice=notice)
        assert not control.is_stopping() and not control.is_stopping()
        (read,) = caplog.messages
        assert "file/stops cannot be read" in read and "NotADirectoryError" in read and "the run goes on" in read
        caplog.clear()
        control.request_exit("a signal")
        notice.leave()
        assert any("was not left, so hosts that wait for data do not hear" in message for message in caplog.messages)
        assert control.decide(0, until_step=1).action == Action.SAVE_AND_EXIT


def test_a_bucket_that_refuses_is_told_and_what_was_not_left_is_left_by_the_next_try(
    gcs_server: GcsServerProcess, gcs_bucket: str, caplog: pytest.LogCaptureFixture
):
    notice = StopNotice(f"gs://{gcs_bucket}/refused/stops")
    with caplog.at_level(logging.WARNING, logger="runtime"):
        gcs_server.add_fault(Fault("status", where="refused", status=403))
        try:
            assert not notice.is_left()
            notice.leave()
        finally:
            gcs_server.clear_faults()
        told = [record.getMessage() for record in caplog.records if record.name.startswith("runtime")]
        assert len(told) >= 2 and all("the run goes on" in message for message in told)
    notice.leave()
    assert StopNotice(f"gs://{gcs_bucket}/refused/stops").is_left()


def test_a_mistake_that_is_not_the_store_s_is_raised(tmp_path: Path):
    with expect_error(ValueError):
        StopNotice("nowhere://stops").is_left()
