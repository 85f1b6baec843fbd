"""Stop notice: advice, so that a store that fails stops no run."""

import logging
from pathlib import Path

import pytest

from runtime.training.control import Action, Control
from runtime.training.stop_notice import StopNotice
from tests.catalogue import expect_error
from tests.gcs_server.control import GcsServerProcess
from tests.gcs_server.faults import Fault


def test_other_hosts_find_the_notice_in_a_folder_or_a_bucket(tmp_path: Path, gcs_bucket: str):
    for url in (str(tmp_path / "stops" / "a"), f"gs://{gcs_bucket}/stops/a"):
        mine, other = StopNotice(url), StopNotice(url)
        assert not other.is_left()
        mine.leave()
        mine.leave()
        assert other.is_left()


def test_one_host_writes_the_notice(tmp_path: Path):
    path = tmp_path / "stops"
    StopNotice(str(path)).leave()
    path.write_bytes(b"by the first")
    StopNotice(str(path)).leave()
    assert path.read_bytes() == b"by the first"


def test_a_broken_folder_is_logged_once_and_stops_no_save(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "file").touch()
    notice = StopNotice(str(tmp_path / "file" / "stops"))
    with caplog.at_level(logging.WARNING):
        control = Control(notice=notice)
        assert not control.is_stopping() and not control.is_stopping()
        assert len(caplog.messages) == 1
        caplog.clear()
        control.request_exit("a signal")
        notice.leave()
        assert len(caplog.messages) == 1
        assert control.decide(0, until_step=1).action == Action.SAVE_AND_EXIT


def test_a_refusing_bucket_is_logged_and_the_next_try_writes_the_notice(
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
        assert len([record for record in caplog.records if record.name.startswith("runtime")]) >= 2
    notice.leave()
    assert StopNotice(f"gs://{gcs_bucket}/refused/stops").is_left()


def test_errors_other_than_the_store_s_are_raised(tmp_path: Path):
    with expect_error(ValueError):
        StopNotice("nowhere://stops").is_left()
