"""Usage: what a step used and its digest does not cover is recorded, shown at once and in each plan, or refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from marin_dag.cli.main import main
from marin_dag.ledger.records import Records
from marin_dag.run.task import Backend
from marin_dag.run.usage import _furniture, _python_of
from marin_dag.store.prefix import open_store
from tests.catalogue import check_message
from tests.marin_dag import using_steps
from tests.marin_dag.run.test_driver import record, run
from tests.marin_dag.using_steps import COVERED, FILE, MODULE, UNCOVERED, UseConfig, strict, using, using_in_shards

KINDS = [using, using_in_shards]


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    (tmp_path / FILE).write_text("beside the prefix")
    (tmp_path / MODULE).write_text("LENGTH = 7\n")
    return str(tmp_path / "runs")


def expected(prefix: str, how: str) -> list[str]:
    if how.startswith("program"):
        return ["program"]
    if how.startswith("variable"):
        return ["environment variable SOME_SETTING"]
    return [str(Path(prefix).parent / (MODULE if how == "module" else FILE))]


@pytest.mark.parametrize("how", UNCOVERED)
@pytest.mark.parametrize("kind", KINDS)
def test_uncovered_reads_are_recorded_and_shown_at_once(prefix: str, kind: Any, how: str) -> None:
    item = kind("step", UseConfig(how=how))
    code, display = run(prefix, [item])
    assert code == 0
    found = record(prefix, item).provenance.uncovered
    assert [line.partition(" /")[0] if how.startswith("program") else line for line in found] == expected(prefix, how)
    assert found[0] in display.text


@pytest.mark.parametrize("how", COVERED)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_recorded_of_what_is_covered_or_of_the_machine(prefix: str, kind: Any, how: str) -> None:
    item = kind("step", UseConfig(how=how))
    assert run(prefix, [item])[0] == 0
    assert record(prefix, item).provenance.uncovered == ()


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_the_config_names_is_no_surprise(prefix: str, tmp_path: Path, kind: Any) -> None:
    item = kind("step", UseConfig(how="named", named=str(tmp_path / FILE)))
    assert run(prefix, [item])[0] == 0
    assert record(prefix, item).provenance.uncovered == ()


def test_the_usage_of_steps_in_one_process_is_separate(prefix: str) -> None:
    steps = [using(f"step/{how}", UseConfig(how=how)) for how in ("descriptor", "nothing", "module", "code")]
    assert run(prefix, steps)[0] == 0
    found = [[Path(line).name for line in record(prefix, item).provenance.uncovered] for item in steps]
    assert found == [[FILE], [], [MODULE], []]


def test_a_folder_that_the_environment_names_as_a_cache_is_no_surprise(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_LIBRARY_CACHE_DIR", str(tmp_path))
    _furniture.cache_clear()
    try:
        item = using("step", UseConfig(how="file"))
        assert run(prefix, [item])[0] == 0
    finally:
        _furniture.cache_clear()
    assert record(prefix, item).provenance.uncovered == ()


@pytest.mark.parametrize("kind", KINDS)
def test_each_backend_sees_it(prefix: str, backend: Backend, kind: Any) -> None:
    item = kind("step", UseConfig(how="file"))
    assert run(prefix, [item], backend)[0] == 0
    assert list(record(prefix, item).provenance.uncovered) == expected(prefix, "file")


def test_a_kind_can_refuse_it(prefix: str) -> None:
    item = strict("step", UseConfig(how="file"))
    assert run(prefix, [item])[0] == 1
    store = open_store(prefix)
    assert Records(store).find(item.key) is None
    (failure,) = Records(store).failures(item.key)
    assert failure.error_type == "UncoveredError"
    check_message(failure.error)
    assert run(prefix, [strict("other", UseConfig(how="code"))])[0] == 0


def test_a_constant_that_a_recipe_sets_in_a_module_of_its_steps_is_seen(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(using_steps, "LEAST_LENGTH", 3)
    item, refused = using("step", UseConfig(how="nothing")), strict("strict", UseConfig(how="nothing"))
    code, display = run(prefix, [item])
    assert code == 0
    assert record(prefix, item).result == {"length": 3}
    (found,) = record(prefix, item).provenance.uncovered
    assert found in display.text
    assert run(prefix, [refused])[0] == 1
    (failure,) = Records(open_store(prefix)).failures(refused.key)
    assert failure.error_type == "UncoveredError"
    check_message(failure.error)


def test_each_later_plan_shows_it(prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    item = using("step", UseConfig(how="file"))
    assert run(prefix, [item])[0] == 0
    argv = ["--prefix", prefix, "--backend", "local"]
    for words in (["--dry-run"], []):
        assert main(lambda _: [item], name="toy", argv=[*words, *argv]) == 0
        text = capsys.readouterr().out
        assert str(Path(prefix).parent / FILE) in text
    main(lambda _: [item], name="toy", argv=["plan", "--json", *argv])
    assert json.loads(capsys.readouterr().out)["uncovered"] == {"step": expected(prefix, "file")}


@pytest.mark.parametrize(
    ("command", "python"),
    [
        (["python3", "-m", "tool"], ("python3", "-m", "tool")),
        (["sh", "-c", "cd x && 'python3' a.py"], ("python3", "a.py")),
        (["bash", "-ec", 'python "$0"', "x.py"], ("python", "$0")),
        ("python3 'a file.py'", ("python3", "a file.py")),
        ("echo 'open", ()),
        (["git", "status"], ()),
    ],
)
def test_the_python_of_a_command_is_found_in_a_shell_too(command: object, python: tuple[str, ...]) -> None:
    assert _python_of(command) == python
