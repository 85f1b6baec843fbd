"""bump: the line where a version is declared, and what to write there."""

import pytest

from tests.catalogue import check_message
from tests.marin_dag.workbench import Workbench


def without_command(printed: str) -> str:
    """Return the output without its last line, which names the program that runs the tests."""
    return printed.rpartition("then see what would run:")[0]


def stale(bench: Workbench) -> set[str]:
    return {name for name, verdict in bench.verdicts().items() if verdict == "stale"}


@pytest.fixture
def made(bench: Workbench) -> Workbench:
    assert bench()[0] == 0
    return bench


@pytest.mark.parametrize(
    ("step", "old", "new", "again"),
    [
        ("count", 'version="1"', 'version="2"', {"count", "first", "second", "third"}),
        ("first", 'version="7"', 'version="8"', {"first", "second", "third"}),
        ("second", "rate=0.25)", 'rate=0.25).with_version("8")', {"second", "third"}),
        ("third", "until_step=30)", 'until_step=30).with_version("8")', {"third"}),
    ],
)
def test_the_edit_makes_the_step_and_its_readers_again(
    made: Workbench, step: str, old: str, new: str, again: set[str]
) -> None:
    before = made.file.read_text()
    code, printed = made("bump", step)
    assert code == 0 and made.file.read_text() == before
    check_message(without_command(printed))
    made.edit(old, new)
    assert stale(made) == again


def test_a_step_bumped_once_is_bumped_again_in_the_same_place(made: Workbench) -> None:
    made.edit("rate=0.25)", 'rate=0.25).with_version("2026.11")')
    _, printed = made("bump", "second")
    check_message(without_command(printed))


def test_a_bump_ends_drift(made: Workbench) -> None:
    made.edit("FACTOR = 2", "FACTOR = 3")
    assert made.verdicts()["count"] == "drifted"
    made.edit('version="1"', 'version="2"')
    assert made.verdicts()["count"] == "stale"
    assert made()[0] == 0
    assert made.verdicts()["count"] == "done"


@pytest.mark.parametrize(
    "arguments",
    [["bump", "text/web"], ["bump", "cuont"]],
)
def test_a_mistake_in_bumping_is_one_message(made: Workbench, arguments: list[str]) -> None:
    code, printed = made(*arguments)
    assert code == 1
    check_message(printed)


def test_a_fork_of_the_command_line_names_the_step_whose_version_it_inherits(made: Workbench) -> None:
    made("fork", "second", "--as", "branch", "--set", "rate=2.0")
    code, printed = made("bump", "branch")
    assert code == 1
    check_message(printed)
