"""adopt: data from elsewhere becomes an output, known by its content."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from marin_dag.cli.main import main
from marin_dag.errors import UserError
from marin_dag.graph.step import Input, Step, StepContext, step
from marin_dag.keep import adopt as adopt_module
from marin_dag.keep.adopt import AdoptedConfig, AdoptedResult, adopt, adopted
from marin_dag.ledger.checked_json import checked_json
from marin_dag.ledger.lease import COPIES, Leases
from marin_dag.ledger.records import Records, make_manifest, record_path
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store
from tests.catalogue import expect_error


class LinesConfig(BaseModel, frozen=True, extra="forbid"):
    data: Input[AdoptedResult]


class Lines(BaseModel, frozen=True, extra="forbid"):
    num_lines: int


@step()
def lines(config: LinesConfig, context: StepContext) -> Lines:
    files = [config.data.join(file.path) for file in config.data.result.files]
    return Lines(num_lines=sum(len(Path(file).read_text().splitlines()) for file in files))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("one\ntwo\n")
    (folder / "deep" / "b.txt").write_text("three\n")
    return folder


def test_adopted_data_are_an_input_like_any_other(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--prefix", str(tmp_path / "runs"), "--backend", "local"]
    assert main(lambda parsed: [], name="toy", argv=["adopt", str(data), "--as", "wiki", *options]) == 0
    content = capsys.readouterr().out.partition('content="')[2].partition('"')[0]

    def build(parsed: Any) -> list[Step[Any]]:
        return [lines("lines", LinesConfig(data=adopted("wiki", AdoptedConfig(content=content))))]  # type: ignore[arg-type]

    assert main(build, name="toy", argv=["--dry-run", *options]) == 2
    assert main(build, name="toy", argv=options) == 0
    records = Records(open_store(str(tmp_path / "runs")))
    (key,) = records.labels()["lines"]
    assert records.get(key).result == {"num_lines": 3}
    assert main(build, name="toy", argv=["verify", "wiki", *options]) == 0


def test_missing_adopted_data_fail_the_run(tmp_path: Path) -> None:
    options, config = ["--prefix", str(tmp_path / "runs"), "--backend", "local"], AdoptedConfig(content="ab")
    assert main(lambda parsed: [adopted("wiki", config)], name="toy", argv=options) == 1
    with expect_error(UserError):
        adopted.function(config, SimpleNamespace(name="wiki"))  # type: ignore[arg-type]


def test_the_content_alone_is_the_identity(store: Store, tmp_path: Path, data: Path) -> None:
    first = adopt(store, str(data), "wiki")
    elsewhere = tmp_path / "elsewhere"
    data.rename(elsewhere)
    again = adopt(store, str(elsewhere), "wikipedia")
    assert (first.is_new, again.is_new) == (True, False)
    assert again.record == first.record
    assert Records(store).labels().keys() == {"wiki", "wikipedia"}
    (elsewhere / "deep" / "b.txt").rename(elsewhere / "b.txt")
    other = adopt(store, str(elsewhere), "wiki")
    assert other.content != first.content


def test_other_data_than_the_recipe_wants_is_refused_before_a_byte_is_kept(store: Store, data: Path) -> None:
    with expect_error(UserError):
        adopt(store, str(data), "wiki", wanted="ab")
    assert store.list("outputs") == []
    assert store.list("commits") == []


def test_a_path_without_data_is_refused(store: Store, tmp_path: Path) -> None:
    with expect_error(UserError):
        adopt(store, str(tmp_path / "none"), "wiki")
    (tmp_path / "empty").mkdir()
    with expect_error(UserError):
        adopt(store, str(tmp_path / "empty"), "wiki")


@pytest.mark.parametrize("target", ["deep", "nowhere"])
def test_a_link_that_leads_to_no_file_is_named_with_what_to_do(tmp_path: Path, data: Path, target: str) -> None:
    (data / "link").symlink_to(data / target)
    store = open_store(str(tmp_path / "runs"))
    with expect_error(UserError):
        adopt(store, str(data), "wiki")
    assert store.list("commits") == []


def test_one_file_is_adopted_under_its_own_name(store: Store, data: Path) -> None:
    result = AdoptedResult.model_validate(adopt(store, str(data / "a.txt"), "a").record.result)
    assert [(file.path, file.size_in_bytes) for file in result.files] == [("a.txt", 8)]


def test_a_plan_shows_that_data_are_being_adopted(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(str(tmp_path / "runs"))
    shown = []

    def manifest(*arguments: Any) -> Any:
        content = adopt_module.adopted("wiki", AdoptedConfig(content=wanted))
        options = ["--prefix", store.prefix]
        assert main(lambda parsed: [content], name="toy", argv=["--dry-run", *options]) == 2
        assert Leases(store).at_work() == {}
        shown.append(capsys.readouterr().out)
        return make_manifest(*arguments)

    wanted = adopt(open_store(str(tmp_path / "before")), str(data), "wiki").content
    monkeypatch.setattr(adopt_module, "make_manifest", manifest)
    adopt(store, str(data), "wiki")
    assert re.match(r"wiki +running ", shown[0])


def test_another_process_that_works_on_the_same_data_is_an_error(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node-1")
    store = open_store(str(tmp_path / "runs"))
    content = adopt(open_store(str(tmp_path / "before")), str(data), "wiki").content
    leases, digest = Leases(store), adopted("wiki", AdoptedConfig(content=content)).digest
    leases.acquire(digest, "copy of wiki", lambda: None, does=COPIES)
    with expect_error(UserError):
        adopt(store, str(data), "wiki")
    leases.close()


def test_data_that_change_while_they_are_read_are_refused(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, copied = open_store(str(tmp_path / "runs")), adopt_module._copied

    def edited(*arguments: Any) -> Any:
        (data / "a.txt").write_text("one\ntwo\nthree\n")
        return copied(*arguments)

    monkeypatch.setattr(adopt_module, "_copied", edited)
    with expect_error(UserError):
        adopt(store, str(data), "wiki")
    assert store.list("commits") == []


def test_adopted_data_do_not_drift(tmp_path: Path, data: Path) -> None:
    store = open_store(str(tmp_path / "runs"))
    adoption = adopt(store, str(data), "wiki")
    assert adoption.record.identity["code"]["definitions"] == {}
    older = {"definitions": {"marin_dag.keep.adopt.adopted": "0" * 16}, "fingerprint": "0" * 64}
    identity = {**adoption.record.identity, "code": {**adoption.record.identity["code"], **older}}
    before = adoption.record.model_copy(update={"identity": identity})  # its fingerprint covers code of the engine
    store.write(record_path(adoption.record.key), checked_json(before))
    (code,) = store.list("codes")
    store.delete(code.path)
    recipe = [adopted("wiki", AdoptedConfig(content=adoption.content))]
    assert main(lambda parsed: recipe, name="toy", argv=["--dry-run", "--prefix", store.prefix]) == 0
