"""verify: compares outputs with their records, and changes nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from marin_dag.cli.main import main
from marin_dag.cli.session import program
from marin_dag.graph.step import StepContext, StopAt, step
from marin_dag.ledger.checked_json import checked_json
from marin_dag.ledger.records import Records, record_path
from marin_dag.store.prefix import open_store
from tests.catalogue import check_message
from tests.marin_dag.cli.test_main import Toy
from tests.marin_dag.toy_steps import CountConfig, WriteConfig, count, write, write_file


@pytest.fixture
def made(run: Toy) -> Toy:
    assert run()[0] == 0
    return run


def output_of(run: Toy, name: str) -> Path:
    records = Records(open_store(str(run.prefix)))
    ((key),) = records.labels()[name]
    return run.prefix / records.get(key).output_path


def test_undamaged_outputs_are_listed_with_their_size(made: Toy) -> None:
    code, text = made("verify", "all")
    assert code == 0
    check_message(text)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_text("abc"),
        lambda file: file.write_text("ab"),
        lambda file: file.unlink(),
        lambda file: file.with_name("more.txt").write_text("x"),
    ],
    ids=["other bytes", "other size", "missing", "extra"],
)
def test_each_kind_of_damage_is_named_with_its_file_and_the_fix(made: Toy, damage: Any) -> None:
    folder = output_of(made, "text/web")
    damage(folder / "text.txt")
    code, text = made("verify", "text/*")
    assert code == 1
    check_message(text.replace(folder.name, "ATTEMPT").replace(program(), "PROGRAM"))


def test_an_unreadable_record_keeps_no_other_step_from_being_verified(made: Toy) -> None:
    ((key),) = Records(open_store(str(made.prefix))).labels()["text/web"]
    record = made.prefix / "commits" / f"{key}.json"
    record.chmod(0o644)
    record.write_text("{")
    code, text = made("verify", "all")
    assert code == 1 and len(text.splitlines()) == 8
    check_message(text)
    record.unlink()
    assert made()[0] == 0 and made("verify", "all")[0] == 0


@pytest.mark.parametrize(
    "changed",
    [{"identity": {"config": []}}, {"key": "0" * 64}, {"digest": "0" * 64}],
    ids=["another config", "another key", "another digest"],
)
def test_a_record_whose_identity_is_not_that_of_its_key_is_named(made: Toy, changed: dict[str, Any]) -> None:
    records = Records(open_store(str(made.prefix)))
    ((key),) = records.labels()["text/web"]
    record = records.get(key)
    if "identity" in changed:
        changed = {"identity": {**record.identity, **changed["identity"]}}
    path = made.prefix / record_path(key)
    path.chmod(0o644)
    path.write_bytes(checked_json(record.model_copy(update=changed)))
    code, text = made("verify", "all")
    assert code == 1
    check_message(text)
    path.unlink()
    assert made()[0] == 0 and made("verify", "all")[0] == 0


def test_a_secret_that_a_record_hides_is_no_other_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SOME_PASSWORD", "correct horse")
    options = ["--prefix", str(tmp_path / "runs"), "--backend", "local"]

    def run(*words: str) -> int:
        return main(lambda _: [write("web", WriteConfig(text="correct horse"))], name="toy", argv=[*words, *options])

    assert run() == 0
    assert run("verify", "web") == 0


def test_a_step_that_is_not_committed_cannot_be_verified(run: Toy) -> None:
    assert run("verify", "count")[0] == 1
    assert run("verify", "all")[0] == 0


CALLS: list[float] = []


class Loss(BaseModel, frozen=True, extra="forbid"):
    loss: float


class WalkConfig(BaseModel, frozen=True, extra="forbid"):
    until_step: StopAt[int]


@step()
def walk(config: WalkConfig, context: StepContext) -> Loss:
    for at in (2, 4):
        if at < config.until_step:
            folder = Path(context.output_path, f"step-{at}")
            folder.mkdir(parents=True)
            (folder / "weights").write_text(str(CALLS[at]))
            context.publish(at, f"step-{at}", Loss(loss=CALLS[at]))
    Path(context.output_path, "weights").write_text("end")
    return Loss(loss=1.0)


@pytest.fixture
def walked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def run(*words: str) -> tuple[int, str]:
        options = ["--prefix", str(tmp_path / "runs"), "--backend", "local"]
        code = main(lambda _: [walk("walk", WalkConfig(until_step=5))], name="toy", argv=[*words, *options])
        return code, capsys.readouterr().out

    CALLS[:] = [float(at) for at in range(5)]
    assert run()[0] == 0
    return run


def test_earlier_milestones_are_verified_with_the_output(tmp_path: Path, walked: Any) -> None:
    code, text = walked("verify", "walk")
    assert code == 0
    check_message(text)
    (weights,) = tmp_path.glob("runs/outputs/walk-*/*/step-2/weights")
    weights.chmod(0o644)
    weights.write_text("0.2")
    code, text = walked("verify", "walk")
    assert code == 1
    check_message(text.replace(weights.parts[-3], "ATTEMPT").replace(program(), "PROGRAM"))
    assert walked("--force", "walk", "--until", "walk")[0] == 0
    assert walked("verify", "walk")[0] == 0 and weights.read_text() == "2.0"
    (record,) = tmp_path.glob("runs/commits/*@4.json")
    record.chmod(0o644)
    record.write_text("{")
    assert walked("verify", "walk")[0] == 1


@step(parts=True)
def in_parts(config: WriteConfig, context: StepContext) -> Loss:
    for at in (1, 2):
        write_file(f"{context.output_path}/parts/{at}/text", str(at))
        context.publish(at, f"parts/{at}", Loss(loss=at))
    write_file(f"{context.output_path}/text", "whole")
    return Loss(loss=3)


def test_parts_in_the_folder_of_the_whole_output_are_not_extra_files(tmp_path: Path) -> None:
    def run(*words: str) -> int:
        options = ["--prefix", str(tmp_path / "runs"), "--backend", "local"]
        return main(lambda _: [in_parts("web", WriteConfig(text="web"))], name="toy", argv=[*words, *options])

    assert run() == 0 and len(list(tmp_path.glob("runs/commits/*@*.json"))) == 2
    assert run("verify", "web") == 0
    (whole,) = tmp_path.glob("runs/outputs/web-*/*/text")
    whole.with_name("more").write_text("x")
    assert run("verify", "web") == 1


def test_a_phase_is_verified_from_its_start_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = count("first", CountConfig(stride=1, until_step=12, publish_every=4))
    second = first.fork("second", until_step=24, start=first.at(step=12))
    options = ["--prefix", str(tmp_path / "runs"), "--backend", "local"]
    assert main(lambda _: [first, second], name="toy", argv=options) == 0 and first.digest == second.digest
    capsys.readouterr()
    assert main(lambda _: [first, second], name="toy", argv=["verify", "all", *options]) == 0
    check_message(capsys.readouterr().out)
