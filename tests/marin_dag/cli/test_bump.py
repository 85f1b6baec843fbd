"""bump: the place where a version is written, the edit, and what it makes again."""

import errno
import os
from pathlib import Path

import pytest

from tests.marin_dag.workbench import Workbench


def stale(bench: Workbench) -> set[str]:
    return {name for name, verdict in bench.verdicts().items() if verdict == "stale"}


@pytest.fixture
def made(bench: Workbench) -> Workbench:
    assert bench()[0] == 0
    return bench


def test_without_write_nothing_is_edited(made: Workbench) -> None:
    before = made.file.read_text()
    code, said = made("bump", "count")
    assert code == 0
    assert "count: version '1' -> '2'" in said
    assert '- @step(policy="versioned", version="1")' in said and '+ @step(policy="versioned", version="2")' in said
    assert "makes again: count, first, second, third" in said
    assert made.file.read_text() == before


@pytest.mark.parametrize(
    ("step", "written", "again"),
    [
        ("count", '@step(policy="versioned", version="2")', {"count", "first", "second", "third"}),
        ("first", '        version="8",\n', {"first", "second", "third"}),
        ("second", 'rate=0.25).with_version("8")\n', {"second", "third"}),
        ("third", 'third = second.then("third", until_step=30).with_version("8")\n', {"third"}),
    ],
)
def test_the_edit_makes_again_what_it_says_and_nothing_else(
    made: Workbench, step: str, written: str, again: set[str]
) -> None:
    before = made.file.read_text()
    code, said = made("bump", step, "--write")
    assert code == 0 and "written" in said
    assert written in made.file.read_text()
    changed = [
        pair for pair in zip(before.splitlines(), made.file.read_text().splitlines(), strict=True) if len(set(pair)) > 1
    ]
    assert len(changed) == 1
    assert stale(made) == again


def test_a_step_bumped_once_is_bumped_again_in_the_same_place(made: Workbench) -> None:
    made("bump", "second", "--write")
    made("bump", "second", "--write", "--to", "2026.11")
    made("bump", "second", "--write")
    assert made.file.read_text().count("with_version") == 1
    assert '.with_version("2026.12")' in made.file.read_text()


def test_a_bump_ends_drift(made: Workbench) -> None:
    made.edit("FACTOR = 2", "FACTOR = 3")
    assert made.verdicts()["count"] == "drifted"
    made("bump", "count", "--write")
    assert made.verdicts()["count"] == "stale"
    assert made()[0] == 0
    assert made.verdicts()["count"] == "done"


def test_steps_written_by_one_call_are_named_together(made: Workbench) -> None:
    made.edit("TextConfig(text=name))", 'TextConfig(text=name), policy="versioned", version="a")')
    code, said = made("bump", "text/web", "--to", "b", "--write")
    assert code == 0
    assert "makes again: text/web, text/code, count" in said
    assert 'version="b")' in made.file.read_text()


def test_a_version_that_is_computed_is_left_to_a_person(made: Workbench) -> None:
    made.edit('version="7"', "version=str(3 + 4)")
    code, said = made("bump", "first", "--write")
    assert code == 1
    assert "version '7' is computed there, not written out; change it by hand" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bump", "text/web"], "its policy is tracked: its code is its identity"),
        (["bump", "count", "--to", "1"], "bump count --to 1: that is its version"),
        (["bump", "cuont"], "there is no step 'cuont'. Did you mean 'count'?"),
    ],
)
def test_a_mistake_in_bumping_is_one_message(made: Workbench, arguments: list[str], message: str) -> None:
    code, said = made(*arguments)
    assert (code, message in said) == (1, True), said


def test_a_fork_of_the_command_line_sends_to_the_step_it_inherits_from(made: Workbench) -> None:
    made("fork", "second", "--as", "branch", "--set", "rate=2.0")
    code, said = made("bump", "branch")
    assert (code, "bump second, which it inherits" in said) == (1, True), said


def test_a_disk_that_is_full_takes_nothing_of_the_recipe_away(made: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    before, mode = made.file.read_text(), made.file.stat().st_mode
    write = Path.write_bytes

    def write_half(path: Path, data: bytes) -> int:
        write(path, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", write_half)
        code, said = made("bump", "count", "--write")
    assert code == 1 and "No space left on device" in said
    assert made.file.read_text() == before and [path.name for path in made.file.parent.glob("*.bumped")] == []
    made.file.chmod(0o700)
    assert made("bump", "count", "--write")[0] == 0 and made.file.stat().st_mode & 0o777 == 0o700 != mode & 0o777
