"""Good checkpoints in copies: the newest of a run, whole or not at all, under a lease epoch that no attempt has."""

import json
import re
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from marin_dag.cli.main import main
from marin_dag.graph.step import Step, StepContext, StopAt, step
from marin_dag.keep.copy.copier import Copier
from marin_dag.keep.copy.scope import GoodCheckpoint, copy_good_checkpoint, good_checkpoints
from marin_dag.ledger.lease import Leases
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store, StoreError
from tests.marin_dag.toy_steps import WriteConfig, write

SAVED = re.compile(r"temporary/step-(\d+)-epoch-\d+/checkpoint/manifest\.json")


class TrainConfig(BaseModel, frozen=True, extra="forbid"):
    until_step: StopAt[int]


class Trained(BaseModel, frozen=True, extra="forbid"):
    step: int


def _resumes_at(paths: Sequence[str]) -> list[int]:
    return [int(match[1]) for path in paths if (match := SAVED.fullmatch(path))]


@step(policy="versioned", version="1", resumes_at=_resumes_at)
def train(config: TrainConfig, context: StepContext) -> Trained:
    return Trained(step=config.until_step)


PHASE = train("phase", TrainConfig(until_step=2_000))
TEXT = write("text", WriteConfig(text="web"))


def build(arguments: Namespace) -> list[Step[Any]]:
    return [PHASE, TEXT]


def save(store: Store, at: int, *, epoch: int = 3, is_good: bool = True, is_complete: bool = True) -> str:
    folder = f"work/{PHASE.digest}/temporary/step-{at:010d}-epoch-{epoch:06d}"
    store.write(f"{folder}/checkpoint/arrays/w", b"w" * (at - 5))
    store.write(f"{folder}/metrics.parquet", b"m")
    if is_complete:
        store.write(f"{folder}/checkpoint/manifest.json", b"{}")
    if is_good:
        store.write(f"{folder}/good.json", b"{}")
    return folder


def states_at(store: Store) -> dict[str, bytes]:
    entries = store.list("work", f"{PHASE.digest}/temporary/")
    return {entry.path.split("/temporary/")[1]: store.read(entry.path) for entry in entries}


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Store, Store]:
    return LocalStore(str(tmp_path / "here")), LocalStore(str(tmp_path / "there"))


def left(stores: tuple[Store, Store], *, check: bool = False) -> list[GoodCheckpoint]:
    return good_checkpoints(*stores, [PHASE, TEXT], check=check)


def copied(stores: tuple[Store, Store], *, check: bool = False) -> list[tuple[str, int]]:
    """Copy the good checkpoints that are left; return names and numbers of written files."""
    copier = Copier(*stores, check=check)
    try:
        return [(found.name, copy_good_checkpoint(copier, found).num_files) for found in left(stores, check=check)]
    finally:
        copier.close()


def test_the_newest_is_copied_under_epoch_0_with_the_code_that_wrote_it(stores: tuple[Store, Store]) -> None:
    source, target = stores
    save(source, 1_000)
    save(source, 1_100, epoch=4)
    save(source, 1_150, is_good=False)
    save(source, 1_200, is_complete=False)
    source.write(f"work/{PHASE.digest}/code/ab.json", b"{}")
    assert copied(stores) == [("phase@1100", 4)]
    folder = "step-0000001100-epoch-000000"
    assert states_at(target) == {
        f"{folder}/good.json": b"{}",
        f"{folder}/checkpoint/arrays/w": b"w" * 1_095,
        f"{folder}/checkpoint/manifest.json": b"{}",
        f"{folder}/metrics.parquet": b"m",
    }
    assert target.exists(f"work/{PHASE.digest}/code/ab.json")
    assert left(stores) == []
    assert Leases(target).running() == {}
    save(source, 1_200)
    assert copied(stores) == [("phase@1200", 4)]
    assert len(states_at(target)) == 8, "nothing is deleted there"


def test_a_good_checkpoint_is_copied_from_bucket_to_bucket(gcs_bucket: str, tmp_path: Path) -> None:
    places = open_store(f"gs://{gcs_bucket}/{tmp_path.name}/a"), open_store(f"gs://{gcs_bucket}/{tmp_path.name}/b")
    save(places[0], 1_000)
    assert copied(places) == [("phase@1000", 4)]
    assert len(states_at(places[1])) == 4 and left(places) == []


def test_half_a_copy_never_looks_complete(stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = stores
    save(source, 1_000)
    write_blocks, num_left = LocalStore.write_blocks, [0]

    def failing(self: LocalStore, path: str, blocks: Iterable[bytes]) -> None:
        if not num_left[0]:
            raise StoreError("no permission")
        num_left[0] -= 1
        write_blocks(self, path, blocks)

    monkeypatch.setattr(LocalStore, "write_blocks", failing)
    for number in range(4):
        num_left[0] = number
        with pytest.raises(StoreError):
            copied(stores)
        names = [name.rpartition("/")[2] for name in states_at(target)]
        assert "good.json" not in names
        assert "manifest.json" not in names or sorted(names) == ["manifest.json", "metrics.parquet", "w"]
        for name in states_at(target):
            target.delete(f"work/{PHASE.digest}/temporary/{name}")
    num_left[0] = 4
    assert copied(stores) == [("phase@1000", 4)] and left(stores) == []


def test_a_run_with_states_of_its_own_at_the_target_keeps_them(stores: tuple[Store, Store]) -> None:
    source, target = stores
    save(source, 1_000)
    save(target, 100, epoch=1, is_good=False)
    assert left(stores) == left(stores, check=True) == []


def test_check_repairs_a_copied_checkpoint(stores: tuple[Store, Store]) -> None:
    source, target = stores
    save(source, 1_000)
    copied(stores)
    whole = states_at(target)
    target.write(f"work/{PHASE.digest}/temporary/step-0000001000-epoch-000000/checkpoint/arrays/w", b"x" * 995)
    assert copied(stores) == []
    assert copied(stores, check=True) == [("phase@1000", 1)]
    assert states_at(target) == whole


@pytest.mark.parametrize("arguments", [["copy", "--to"], ["--copy-to"]], ids=["copy", "run"])
def test_copies_of_a_run_bring_its_newest_good_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    there = str(tmp_path / "there")

    def called(*words: str) -> tuple[int, str]:
        code = main(build, name="toy", argv=["--prefix", str(tmp_path / "here"), "--backend", "local", *words])
        return code, capsys.readouterr().out

    assert called(*(["--only", "text"] if arguments[0] == "copy" else []))[0] == 0  # the phase has ended, or has not
    assert called(*arguments, there)[0] == 0
    save(LocalStore(str(tmp_path / "here")), 1_000)
    assert called(*arguments, there, "--dry-run")[0] == 2
    assert called(*arguments, there)[0] == 0
    assert called(*arguments, there, "--dry-run")[0] == 0 and len(states_at(LocalStore(there))) == 4
    if arguments[0] == "copy":
        text = called("--dry-run", "--json", "--prefix", there)[1]
        (phase,) = [step for step in json.loads(text)["steps"] if step["name"] == "phase"]
        assert phase["verdict"] == "begun"
