"""verify: outputs against their manifests, steps against themselves; what is committed is never touched."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from marin_dag.cli.main import main
from marin_dag.graph.step import Step, StepContext, StopAt, step
from marin_dag.keep.collect import Collector, Roots
from marin_dag.ledger.records import Records
from marin_dag.run.local.backend import LocalBackend
from marin_dag.run.task import Task
from marin_dag.store.prefix import open_store
from tests.marin_dag.cli.test_main import Toy
from tests.marin_dag.kill_everywhere import committed_bytes
from tests.marin_dag.toy_steps import CountConfig, WriteConfig, count, write_file


@pytest.fixture
def made(run: Toy) -> Toy:
    assert run()[0] == 0
    return run


def output_of(run: Toy, name: str) -> Path:
    records = Records(open_store(str(run.prefix)))
    ((key),) = records.labels()[name]
    return run.prefix / records.get(key).output_path


def test_outputs_that_are_as_committed_are_named_with_their_size(made: Toy) -> None:
    code, said = made("verify", "all")
    assert code == 0
    assert "text/web: 1 file, 3 B, all as recorded" in said
    assert said.count("all as recorded") == 8


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda file: file.write_text("abc"), "text.txt has CRC32C 364b3fb7, recorded"),
        (lambda file: file.write_text("ab"), "text.txt has 2 bytes, recorded 3"),
        (lambda file: file.unlink(), "text.txt is missing"),
        (lambda file: file.with_name("more.txt").write_text("x"), "more.txt is not in the manifest"),
    ],
)
def test_each_kind_of_damage_is_named_with_its_file(made: Toy, damage: Any, found: str) -> None:
    damage(output_of(made, "text/web") / "text.txt")
    code, said = made("verify", "text/*")
    assert code == 1
    assert found in said
    assert "text/web: 1 of its files are not as recorded" in said
    # Making it again mends what is damaged, and leaves what somebody put beside it.
    advises_force = "--force text/web --until text/web" in said
    assert advises_force != ("no reader sees them: remove them, or leave them" in said)
    assert advises_force == ("manifest" not in found)
    assert said.count("all as recorded") == 3


def test_a_record_that_cannot_be_read_keeps_no_other_step_from_being_looked_at(made: Toy) -> None:
    ((key),) = Records(open_store(str(made.prefix))).labels()["text/web"]
    record = made.prefix / "commits" / f"{key}.json"
    record.chmod(0o644)
    record.write_text("{")
    code, said = made("verify", "all")
    assert code == 1
    assert f"text/web: {record}: not a record of this program" in said and "delete the file" in said
    assert said.count("all as recorded") == 7
    record.unlink()
    assert made()[0] == 0 and made("verify", "all")[0] == 0


def test_a_step_that_is_not_committed_cannot_be_verified(run: Toy) -> None:
    assert "verify count: it is not committed; run it first" in run("verify", "count")[1]
    assert run("verify", "all") == (0, "nothing is committed yet\n")


def test_a_rerun_compares_bit_for_bit_and_leaves_the_first_output_alone(made: Toy) -> None:
    before = committed_bytes(made.prefix)
    records = sorted((path, path.stat().st_mtime_ns) for path in (made.prefix / "commits").iterdir())
    code, said = made("verify", "text/web", "ocelot", "--rerun")
    assert code == 0, said
    assert "text/web: run again, it gave the same, bit for bit" in said
    assert "ocelot: run again, it gave the same, bit for bit" in said
    assert committed_bytes(made.prefix) == before
    assert records == sorted((path, path.stat().st_mtime_ns) for path in (made.prefix / "commits").iterdir())


def test_what_a_rerun_reads_is_not_collected_meanwhile(made: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def collect_then_run(self: LocalBackend, task: Task) -> None:
        store = open_store(str(made.prefix))
        collector = Collector(store, Roots(frozenset(), frozenset(made.committed())), older_than_seconds=0)
        said.extend(garbage.name for garbage in collector.find() if garbage.kind == "output")
        submit(self, task)

    submit, leases = LocalBackend.submit, open_store(str(made.prefix)).list("leases")
    monkeypatch.setattr(LocalBackend, "submit", collect_then_run)
    assert made("verify", "count", "--rerun")[0] == 0
    assert {"count", "text/web"} & set(said) == set()
    assert "phoenix" in said
    monkeypatch.setattr(LocalBackend, "submit", submit)
    assert leases == open_store(str(made.prefix)).list("leases")


class NoConfig(BaseModel, frozen=True, extra="forbid"):
    until_step: StopAt[int] = 3


class Loss(BaseModel, frozen=True, extra="forbid"):
    loss: float


CALLS: list[float] = []


@step()
def train(config: NoConfig, context: StepContext) -> Loss:
    Path(context.output_path, "weights").write_text(str(CALLS[-1]))
    return Loss(loss=CALLS[-1])


@step()
def unsteady(config: NoConfig, context: StepContext) -> Loss:
    Path(context.output_path, "weights").write_text(str(CALLS[-1]))
    return Loss(loss=1.0)


def build(arguments: Any) -> list[Step[Any]]:
    return [train("train", NoConfig()), unsteady("unsteady", NoConfig())]


def test_another_result_or_file_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--prefix", str(tmp_path / "runs"), "--backend", "local"]
    CALLS[:] = [1.0]
    assert main(build, name="toy", argv=options) == 0
    for loss, code, said in (
        (1.0, 0, "train: run again, it gave the same, bit for bit"),
        (1.5, 1, "train: run again, it gave something else; the second output is in "),
    ):
        CALLS[:] = [loss]
        assert main(build, name="toy", argv=["verify", "train", "--rerun", *options]) == code
        assert said in capsys.readouterr().out
    assert main(build, name="toy", argv=["verify", "unsteady", "--rerun", *options]) == 1
    assert "  weights differs\n" in capsys.readouterr().out


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


def test_the_earlier_milestones_of_a_trajectory_are_verified_with_its_stop(tmp_path: Path, walked: Any) -> None:
    assert walked("verify", "walk") == (0, "walk and 2 earlier milestones: 3 files, 9 B, all as recorded\n")
    (weights,) = tmp_path.glob("runs/outputs/walk-*/*/step-2/weights")
    weights.chmod(0o644)
    weights.write_text("0.2")
    code, said = walked("verify", "walk")
    assert code == 1
    assert "walk and 1 earlier milestone: 2 files, 6 B, all as recorded\nwalk at 2: 1 of its files" in said
    assert f"in {weights.parent}\n  weights has CRC32C " in said and "--force walk --until walk" in said
    assert walked("--force", "walk", "--until", "walk")[0] == 0
    assert walked("verify", "walk")[0] == 0 and weights.read_text() == "2.0"
    (record,) = tmp_path.glob("runs/commits/*@4.json")
    record.chmod(0o644)
    record.write_text("{")
    code, said = walked("verify", "walk")
    assert code == 1 and f"walk: {record}: not a record of this program" in said
    assert "walk and 1 earlier milestone" in said


def test_a_rerun_compares_the_earlier_milestones_of_a_trajectory(walked: Any) -> None:
    assert walked("verify", "walk", "--rerun")[1].endswith("walk: run again, it gave the same, bit for bit\n")
    CALLS[2] = 7.0
    code, said = walked("verify", "walk", "--rerun")
    assert code == 1
    assert "  at 2: its result was {'loss': 2.0} and is {'loss': 7.0}\n  at 2: weights differs\n" in said
    assert "at 4" not in said


@step(parts=True)
def in_parts(config: WriteConfig, context: StepContext) -> Loss:
    for at in (1, 2):
        write_file(f"{context.output_path}/parts/{at}/text", str(at))
        context.publish(at, f"parts/{at}", Loss(loss=at))
    write_file(f"{context.output_path}/text", "whole")
    return Loss(loss=3)


def test_parts_in_the_folder_of_the_whole_are_no_files_too_many(tmp_path: Path) -> None:
    def run(*words: str) -> int:
        options = ["--prefix", str(tmp_path / "runs"), "--backend", "local"]
        return main(lambda _: [in_parts("web", WriteConfig(text="web"))], name="toy", argv=[*words, *options])

    assert run() == 0 and len(list(tmp_path.glob("runs/commits/*@*.json"))) == 2
    assert run("verify", "web") == 0
    (whole,) = tmp_path.glob("runs/outputs/web-*/*/text")
    whole.with_name("more").write_text("x")
    assert run("verify", "web") == 1


def test_a_leg_is_verified_from_where_it_starts_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = count("first", CountConfig(stride=1, until_step=12, publish_every=4))
    second = first.fork("second", until_step=24, start=first.at(step=12))
    options = ["--prefix", str(tmp_path / "runs"), "--backend", "local"]
    assert main(lambda _: [first, second], name="toy", argv=options) == 0 and first.digest == second.digest
    capsys.readouterr()
    assert main(lambda _: [first, second], name="toy", argv=["verify", "all", *options]) == 0
    said = capsys.readouterr().out
    assert said.count("and 2 earlier milestones: 3 files") == 2
