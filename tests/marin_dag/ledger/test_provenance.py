"""Provenance: the state of the repository of the code."""

import subprocess
from pathlib import Path

import pytest

from marin_dag.cli.outputs import dirty_note
from marin_dag.ledger.provenance import Provenance, git_state


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / "recipes").mkdir(parents=True)
    (folder / ".gitignore").write_text("ignored\n")
    (folder / "tracked.py").write_text("a = 1\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "first")
    return folder


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True).stdout


def test_changes_and_untracked_files_are_what_differs_from_the_commit(repository: Path):
    recipes = repository / "recipes"
    assert git_state(recipes) | {"git_commit": ""} == {"git_commit": "", "is_dirty": False, "dirty_diff": None}
    (repository / "ignored").write_text("whatever")
    assert git_state(recipes) | {"git_commit": ""} == {"git_commit": "", "is_dirty": False, "dirty_diff": None}
    seen = []
    for name, text in (("tracked.py", "a = 2\n"), ("tracked.py", "a = 3\n"), ("recipes/mine.py", ""), ("above.py", "")):
        (repository / name).write_text(text)
        state = git_state(recipes)
        assert state == git_state(repository) and state["is_dirty"]
        seen.append(state["dirty_diff"])
    assert len({*seen, None}) == 5


@pytest.mark.parametrize(
    ("is_dirty", "digest", "text"),
    [
        (False, None, ""),
        (None, None, ""),
        (True, "ab" * 32, ", with changes (sha256 abababababababab)"),
        (True, None, ", with changes (sha256 unknown)"),
    ],
)
def test_a_record_is_shown_with_no_digest_of_nothing(is_dirty: bool | None, digest: str | None, text: str):
    made = Provenance(git_commit="c", is_dirty=is_dirty, dirty_diff=digest, argv=(), host="", environment="")
    assert dirty_note(made) == text


def test_git_state_writes_nothing_into_the_repository(repository: Path):
    (repository / "tracked.py").touch()  # `git status` would note that it is as it was
    before = (repository / ".git/index").stat().st_mtime_ns
    assert git_state(repository)["is_dirty"] is False
    assert (repository / ".git/index").stat().st_mtime_ns == before
