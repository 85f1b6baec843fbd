"""Summary cache: it costs or saves time, and no digest depends on what it holds."""

import pickle
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from marin_dag.code import summary_cache
from marin_dag.code.closure import Closure, Closures
from marin_dag.code.references import Aspect
from marin_dag.code.sources import Place, Sources
from tests.marin_dag.edit_corpus import FOLDER, STEP, read_case

CASES = [read_case(path) for path in sorted(FOLDER.glob("*.edit"))]
DAMAGES = 40
NUM_CASES_OF_CACHE = 150


def write_project(files: dict[str, str], root: Path) -> None:
    for path in root.rglob("*.py"):
        path.unlink()
    for name, text in {"project/__init__.py": "", "project/step.py": STEP, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def closure(root: Path) -> Closure:
    """Return the closure of the project's step as a new process would read it, and keep what it learned."""
    sources = Sources((root,), frozenset({"project"}))
    found = Closures(sources).closure([Place("project.step", "run", Aspect.VALUE)])
    sources.save()
    return found


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MARIN_DAG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "code"


@pytest.fixture
def root(tmp_path: Path, cache: Path) -> Path:
    write_project(CASES[0].before, tmp_path / "root")
    return tmp_path / "root"


def only_file(cache: Path) -> Path:
    (file,) = cache.glob("*.summaries")
    return file


def test_no_digest_depends_on_the_cache(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Projects of the corpus stand at one place in turn, so that the cache always holds another content of it."""
    draws = random.Random(0)
    projects = [files for case in draws.sample(CASES, NUM_CASES_OF_CACHE) for files in (case.before, case.after)]
    draws.shuffle(projects)
    for number, files in enumerate(projects):
        write_project(files, root)
        monkeypatch.setenv("MARIN_DAG_CACHE", str(tmp_path / f"empty{number}"))
        uncached = closure(root)
        monkeypatch.setenv("MARIN_DAG_CACHE", str(tmp_path / "cache"))
        assert closure(root) == uncached
        assert closure(root) == uncached


def count_parses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    parsed: list[str] = []
    summarize = summary_cache.summarize

    def counted(name: str, path: Path, source: bytes) -> Any:
        parsed.append(name)
        return summarize(name, path, source)

    monkeypatch.setattr(summary_cache, "summarize", counted)
    return parsed


def test_only_a_file_that_changed_is_parsed_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = count_parses(monkeypatch)
    before = closure(root)
    assert {"project.step", "project.work"} <= set(parsed)
    parsed.clear()
    assert closure(root) == before
    assert parsed == []
    with (root / "project/work.py").open("a") as file:
        file.write("\n\n\ndef unrelated():\n    return 1\n")
    assert closure(root) == before
    assert parsed == ["project.work"]


def test_a_damaged_file_costs_time_and_nothing_else(root: Path, cache: Path) -> None:
    expected = closure(root)
    whole = only_file(cache).read_bytes()
    draws = random.Random(0)
    damaged = [whole[: draws.randrange(len(whole))] for _ in range(DAMAGES)]
    for _ in range(DAMAGES):
        position = draws.randrange(len(whole))
        damaged.append(whole[:position] + bytes([whole[position] ^ 1 << draws.randrange(8)]) + whole[position + 1 :])
    for content in [b"", b"\0" * len(whole), whole + b"\0", *damaged]:
        only_file(cache).write_bytes(content)
        assert closure(root) == expected
        assert only_file(cache).read_bytes() == whole


def test_a_file_of_other_code_is_not_read(root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = closure(root)
    here = only_file(cache)
    parsed = count_parses(monkeypatch)
    monkeypatch.setattr(summary_cache, "_version", lambda: "another")
    assert closure(root) == expected
    assert "project.work" in parsed
    assert len(list(cache.iterdir())) == 2
    parsed.clear()
    (other,) = {*cache.iterdir()} - {here}
    here.replace(other)
    assert closure(root) == expected
    assert "project.work" in parsed


class Marker:
    """A value whose reading would create a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self._file,)


def test_a_file_of_the_cache_runs_no_code(root: Path, cache: Path, tmp_path: Path) -> None:
    expected = closure(root)
    body = pickle.dumps({"project.work work.py": ("digest", Marker(tmp_path / "was_run"))})
    only_file(cache).write_bytes(summary_cache._checksum(body) + body)
    assert closure(root) == expected
    assert not (tmp_path / "was_run").exists()


@pytest.mark.parametrize("obstacle", ["a file", "a folder without permissions", "a folder at the file's place"])
def test_a_folder_that_cannot_be_written_costs_time_and_nothing_else(root: Path, cache: Path, obstacle: str) -> None:
    expected = closure(root)
    file = only_file(cache)
    file.unlink()
    if obstacle == "a file":
        cache.rmdir()
        cache.touch()
    elif obstacle == "a folder without permissions":
        cache.chmod(0)
    else:
        file.mkdir()
    assert closure(root) == expected
    cache.chmod(0o700)


def test_writers_at_the_same_time_leave_a_whole_file(root: Path, cache: Path) -> None:
    expected = closure(root)
    found: list[Closure] = []

    def write() -> None:
        for _ in range(5):
            only_file(cache).write_bytes(b"torn")
            found.append(closure(root))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 20
    assert closure(root) == expected
    assert [path.suffix for path in cache.iterdir()] == [".summaries"]


def test_the_oldest_files_go(root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary_cache, "MAX_FILES", 3)
    for number in range(5):
        monkeypatch.setattr(summary_cache, "_version", lambda number=number: f"version {number}")
        closure(root)
    assert len(list(cache.iterdir())) == 3
