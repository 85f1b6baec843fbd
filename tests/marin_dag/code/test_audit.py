"""Code edited during a run: an output is committed under the digest of the code that made it, or not at all."""

import dataclasses
import importlib
import itertools
import logging
from pathlib import Path
from typing import Any

import pytest

from marin_dag.code.audit import CodeChangedError
from marin_dag.graph.step import Step
from marin_dag.identity.code_identity import check_packages
from marin_dag.identity.identity import check_config
from marin_dag.ledger.records import Records
from marin_dag.run.local.backend import LocalBackend
from marin_dag.run.task import Backend
from marin_dag.store.prefix import open_store
from tests.catalogue import expect_error
from tests.marin_dag.run.test_driver import Recorder, record, run
from tests.marin_dag.toy import TextConfig, text

STEP = """
from pathlib import Path
from pydantic import BaseModel
from marin_dag.graph.step import Runtime, StepContext, StopAt, step


class Config(BaseModel, frozen=True, extra="forbid"):
    edits: Runtime[str] = ""
    to: Runtime[str] = ""
    moment: Runtime[str] = "never"


class Result(BaseModel, frozen=True, extra="forbid"):
    value: int


def edit(config, moment):
    if config.moment == moment:
        Path(config.edits).write_text(config.to)


@step()
def plain(config: Config, context: StepContext) -> Result:
    edit(config, "before the import")
    from {package}.helper import value
    found = value()
    edit(config, "after the import")
    context.progress(1, 2, "halves")
    edit(config, "after a sign of progress")
    return Result(value=found)


class PhaseConfig(Config, frozen=True, extra="forbid"):
    until_step: StopAt[int] = 2


@step()
def phased(config: PhaseConfig, context: StepContext) -> Result:
    edit(config, "before the import")
    from {package}.helper import value
    found = value()
    context.publish(1, "1", Result(value=found))
    return Result(value=found)


def one_shard(item, path):
    config = Config.model_validate_json(item)
    edit(config, "before the import")
    from {package}.helper import value
    found = value()
    edit(config, "after the import")
    return found


@step()
def mapped(config: Config, context: StepContext) -> Result:
    return Result(value=sum(context.map(one_shard, [config.model_dump_json()], in_flight=1)))
"""
HELPER = "def value():\n    return 1\n"
EDITED = "def value():\n    return 1 + 1\n"
NUMBERS = itertools.count()


@dataclasses.dataclass
class Package:
    """A package whose helper a test edits."""

    name: str
    helper: Path

    def step(self, kind: str = "plain", **execution: str) -> Step[Any]:
        module = importlib.import_module(f"{self.name}.step")
        made_by = getattr(module, kind)
        step: Step[Any] = made_by(kind, made_by.config_type(edits=str(self.helper), **execution))
        assert step.digest
        return step


@pytest.fixture
def package(importable: Path) -> Package:
    name = f"edited_package_{next(NUMBERS)}"
    folder = importable / name
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "step.py").write_text(STEP.replace("{package}", name))
    (folder / "helper.py").write_text(HELPER)
    importlib.invalidate_caches()
    return Package(name, folder / "helper.py")


def refused(prefix: str, step: Step[Any], display: Recorder, what: str) -> None:
    records = Records(open_store(prefix))
    assert records.find(step.key) is None
    (failure,) = records.failures(step.key)
    assert not failure.is_transient
    assert failure.error_type == "CodeChangedError"
    assert what in failure.error
    assert failure.error.splitlines()[0] in display.text


def test_no_milestone_of_other_code_than_the_planned_is_published(tmp_path: Path, package: Package) -> None:
    prefix = str(tmp_path / "runs")
    assert run(prefix, [package.step("phased", moment="before the import", to=EDITED)])[0] == 1
    assert Records(open_store(prefix)).committed_keys() == frozenset()


def test_code_edited_after_the_plan_is_not_run(tmp_path: Path, package: Package, backend: Backend) -> None:
    prefix, step = str(tmp_path / "runs"), package.step()
    package.helper.write_text(EDITED)
    code, display = run(prefix, [step], backend)
    assert code == 1
    refused(prefix, step, display, f"{package.name}.helper.value")


def test_the_step_runs_when_the_edit_is_undone(tmp_path: Path, package: Package) -> None:
    prefix, step = str(tmp_path / "runs"), package.step()
    package.helper.write_text(EDITED)
    assert run(prefix, [step], LocalBackend())[0] == 1
    package.helper.write_text(HELPER)
    assert run(prefix, [step], LocalBackend())[0] == 0
    assert record(prefix, step).result == {"value": 1}


@pytest.mark.parametrize("kind", ["plain", "mapped"])
def test_code_edited_while_it_runs_before_it_is_imported_is_not_committed(
    tmp_path: Path, package: Package, backend: Backend, kind: str
) -> None:
    prefix = str(tmp_path / "runs")
    step = package.step(kind, moment="before the import", to=EDITED)
    code, display = run(prefix, [step], backend)
    assert code == 1
    refused(prefix, step, display, f"{package.name}.helper.value")


@pytest.mark.parametrize("kind", ["plain", "mapped"])
def test_an_edit_of_an_imported_module_comes_too_late_to_matter(
    tmp_path: Path, package: Package, backend: Backend, kind: str
) -> None:
    importlib.import_module(f"{package.name}.helper")  # in this process; a worker of Ray is left to import it late
    prefix = str(tmp_path / "runs")
    step = package.step(kind, moment="after the import", to=EDITED)
    code, display = run(prefix, [step], backend)
    if isinstance(backend, LocalBackend):
        assert code == 0, display.text
        assert record(prefix, step).result == {"value": 1}
    else:
        # The worker cannot know which of the two it imported.
        refused(prefix, step, display, f"{package.name}.helper.value")


def test_a_module_imported_before_reported_progress_may_be_edited_after_it(
    tmp_path: Path, package: Package, backend: Backend
) -> None:
    prefix = str(tmp_path / "runs")
    step = package.step(moment="after a sign of progress", to=EDITED)
    code, display = run(prefix, [step], backend)
    assert code == 0, display.text
    assert record(prefix, step).result == {"value": 1}
    log = open_store(prefix).read(f"{record(prefix, step).output_path}.log").decode()
    assert f"{package.name}.helper.value" in log


def test_a_comment_written_during_the_run_stops_nothing(tmp_path: Path, package: Package, backend: Backend) -> None:
    prefix = str(tmp_path / "runs")
    step = package.step(moment="before the import", to="# Always one.\n" + HELPER)
    assert run(prefix, [step], backend)[0] == 0
    assert record(prefix, step).result == {"value": 1}


def test_a_versioned_step_runs_with_the_fingerprint_that_its_record_names(tmp_path: Path, package: Package) -> None:
    module = importlib.import_module(f"{package.name}.step")
    step = module.plain("plain", module.Config(), policy="versioned", version="1")
    assert step.digest
    package.helper.write_text(EDITED)
    prefix = str(tmp_path / "runs")
    code, display = run(prefix, [step], LocalBackend())
    assert code == 1
    refused(prefix, step, display, f"{package.name}.helper.value")


def test_another_version_of_a_package_where_the_step_runs_is_refused() -> None:
    identity = {"code": {"packages": {"pydantic": "0.0.1"}}}
    with expect_error(CodeChangedError):
        check_packages("tokenize", identity)
    with expect_error(CodeChangedError):
        check_packages("tokenize", {"code": {"packages": {"no-such-thing": "1"}}})


def test_a_config_that_changed_after_its_digest_is_refused() -> None:
    from tests.marin_dag.identity.test_identity_holes import Anything, anything

    step = anything("anything", Anything(value=[1, 2]))
    assert step.digest
    check_config("anything", step.kind.function, step.config, None, step.identity)
    step.config.value.append(3)  # type: ignore[attr-defined]
    with expect_error(CodeChangedError):
        check_config("anything", step.kind.function, step.config, None, step.identity)


def test_a_worker_sees_the_config_that_was_planned(tmp_path: Path, backend: Backend) -> None:
    logging.getLogger("step.a").setLevel(logging.INFO)
    prefix, step = str(tmp_path / "runs"), text("a", TextConfig(text="web", workers=3))
    assert run(prefix, [step], backend)[0] == 0
    assert record(prefix, step).identity == step.identity


TABLE_STEP = """
from pathlib import Path
from pydantic import BaseModel
from marin_dag.graph.step import Runtime, StepContext, step


class Config(BaseModel, frozen=True, extra="forbid"):
    edits: Runtime[str] = ""
    to: Runtime[str] = ""
    moment: Runtime[str] = "never"


class Result(BaseModel, frozen=True, extra="forbid"):
    value: str


@step()
def plain(config: Config, context: StepContext) -> Result:
    found = (Path(__file__).parent / "table.txt").read_text()
    context.progress(1, 2, "halves")
    if config.moment == "after a sign of progress":
        Path(config.edits).write_text(config.to)
    return Result(value=found)
"""


def test_a_file_beside_the_code_that_is_edited_during_the_run_is_not_committed(
    tmp_path: Path, importable: Path
) -> None:
    """The static closure cannot know when the step reads it."""
    name = f"edited_package_{next(NUMBERS)}"
    folder = importable / name
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "step.py").write_text(TABLE_STEP)
    (folder / "table.txt").write_text("one")
    importlib.invalidate_caches()
    package, prefix = Package(name, folder / "table.txt"), str(tmp_path / "runs")
    step = package.step(moment="after a sign of progress", to="two")
    code, display = run(prefix, [step], LocalBackend())
    assert code == 1
    refused(prefix, step, display, "table.txt")
