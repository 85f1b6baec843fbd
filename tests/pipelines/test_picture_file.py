from pathlib import Path

import pytest

from marin_dag.errors import UserError
from pipelines.picture_file import DRAWING, PAGE, check_writable, kind_of, write_picture
from tests.catalogue import expect_error


@pytest.mark.parametrize("name", ["timeline.gif", "timeline", "no/folder/timeline.svg", "timeline.htm.gz", "taken.svg"])
def test_a_picture_that_cannot_be_drawn_there_is_refused_before_it_is_worked_out(tmp_path: Path, name: str):
    (tmp_path / "taken.svg").mkdir()
    with expect_error(UserError):
        check_writable("--plot", str(tmp_path / name), (PAGE, DRAWING))


def test_a_file_that_is_there_may_be_drawn_anew(tmp_path: Path):
    (tmp_path / "timeline.svg").write_text("old")
    check_writable("--plot", str(tmp_path / "timeline.svg"), (PAGE, DRAWING))
    assert (tmp_path / "timeline.svg").read_text() == "old"


@pytest.mark.parametrize(("name", "kind"), [("a.HTML", PAGE), ("a.htm", PAGE), ("a.Htm", PAGE), ("a.SVG", DRAWING)])
def test_an_ending_is_read_whatever_its_case(tmp_path: Path, name: str, kind: str):
    check_writable("--plot", str(tmp_path / name), (kind,))
    assert kind_of(name) == kind and not list(tmp_path.iterdir())


def test_a_bucket_is_not_taken_for_a_folder_that_is_missing():
    with expect_error(UserError):
        check_writable("--page", "gs://b/x.html", (PAGE,))


@pytest.mark.parametrize("folder", ["/proc", "/proc/self"])
def test_a_place_where_permission_bits_lie_is_refused_before_it_is_worked_out(folder: str):
    with expect_error(UserError):
        check_writable("--page", f"{folder}/x.html", (PAGE,))


def test_a_disk_that_fills_up_is_told_of_with_the_option_and_the_file(tmp_path: Path):
    """`/dev/full` is always full."""
    (tmp_path / "page.html").symlink_to("/dev/full")
    check_writable("--page", str(tmp_path / "page.html"), (PAGE,))
    with expect_error(UserError):
        write_picture("--page", str(tmp_path / "page.html"), "text")
