from pathlib import Path

import pytest

from marin_dag.errors import UserError
from pipelines.picture_file import refuse_unwritable


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timeline.gif", r"--plot .*timeline\.gif: \.gif is no kind of picture; end it in \.html or \.svg"),
        ("timeline", r"no ending is no kind of picture"),
        ("no/folder/timeline.svg", r"there is no folder .*no/folder; make it"),
        ("taken.svg", r"it cannot be written; name another file"),
    ],
)
def test_a_picture_that_cannot_be_drawn_there_is_refused_before_it_is_worked_out(
    tmp_path: Path, name: str, message: str
):
    (tmp_path / "taken.svg").mkdir()
    with pytest.raises(UserError, match=message):
        refuse_unwritable("--plot", str(tmp_path / name), (".html", ".svg"))


def test_a_file_that_is_there_may_be_drawn_anew(tmp_path: Path):
    (tmp_path / "timeline.svg").write_text("old")
    refuse_unwritable("--plot", str(tmp_path / "timeline.svg"), (".html", ".svg"))
    assert (tmp_path / "timeline.svg").read_text() == "old"
