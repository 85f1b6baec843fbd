from pathlib import Path

import pytest

from marin_dag.errors import UserError
from pipelines.output import check_writable, write_page
from tests.catalogue import expect_error


@pytest.mark.parametrize("name", ["timeline.gif", "timeline", "no/folder/a.html", "a.svg", "a.htm.gz", "taken.html"])
def test_a_page_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path, name: str):
    (tmp_path / "taken.html").mkdir()
    with expect_error(UserError):
        check_writable(str(tmp_path / name))


def test_a_file_that_exists_may_be_drawn_again(tmp_path: Path):
    (tmp_path / "timeline.html").write_text("old")
    check_writable(str(tmp_path / "timeline.html"))
    assert (tmp_path / "timeline.html").read_text() == "old"


@pytest.mark.parametrize("name", ["a.HTML", "a.htm", "a.Htm"])
def test_an_ending_is_read_whatever_its_case(tmp_path: Path, name: str):
    check_writable(str(tmp_path / name))
    assert not list(tmp_path.iterdir())


def test_a_bucket_is_not_taken_for_a_folder_that_is_missing():
    with expect_error(UserError):
        check_writable("gs://b/x.html")


@pytest.mark.parametrize("folder", ["/proc", "/proc/self"])
def test_a_place_where_permission_bits_lie_is_refused_before_the_work(folder: str):
    with expect_error(UserError):
        check_writable(f"{folder}/x.html")


def test_a_full_disk_is_an_error_with_the_option_and_the_file(tmp_path: Path):
    """`/dev/full` is always full."""
    (tmp_path / "page.html").symlink_to("/dev/full")
    check_writable(str(tmp_path / "page.html"))
    with expect_error(UserError):
        write_page(str(tmp_path / "page.html"), "text")
