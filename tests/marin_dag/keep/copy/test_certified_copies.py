"""Certified states: the newest of a trajectory is in the copy, whole or not at all, under an epoch that is nobody's."""

import re
import threading
import time
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from marin_dag.cli.main import main
from marin_dag.graph.step import Step, StepContext, StopAt, step
from marin_dag.keep.copy import run_copying
from marin_dag.keep.copy.certified_copies import CertifiedStates
from marin_dag.keep.copy.copying import Copier
from marin_dag.ledger.lease import Leases
from marin_dag.ledger.records import Records
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store, StoreError
from tests.marin_dag.keep.copy.test_copying import output
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


def save(store: Store, at: int, *, epoch: int = 3, is_certified: bool = True, is_complete: bool = True) -> str:
    folder = f"work/{PHASE.digest}/temporary/step-{at:010d}-epoch-{epoch:06d}"
    store.write(f"{folder}/checkpoint/arrays/w", b"w" * (at - 5))
    store.write(f"{folder}/metrics.parquet", b"m")
    if is_complete:
        store.write(f"{folder}/checkpoint/manifest.json", b"{}")
    if is_certified:
        store.write(f"{folder}/certified.json", b"{}")
    return folder


def states_at(store: Store) -> dict[str, bytes]:
    entries = store.list("work", f"{PHASE.digest}/temporary/")
    return {entry.path.split("/temporary/")[1]: store.read(entry.path) for entry in entries}


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Store, Store]:
    return LocalStore(str(tmp_path / "here")), LocalStore(str(tmp_path / "there"))


@pytest.fixture
def states(stores: tuple[Store, Store]) -> CertifiedStates:
    return CertifiedStates(*stores, [PHASE, TEXT])


def copied(states: CertifiedStates, stores: tuple[Store, Store], *, check: bool = False) -> tuple[list[str], list[str]]:
    """What was said, and the problems."""
    said: list[str] = []
    copier = Copier(*stores, check=check)
    try:
        return said, states.copy(copier, said.append)
    finally:
        copier.close()


def test_the_newest_is_copied_under_epoch_0_with_the_code_that_left_it(
    states: CertifiedStates, stores: tuple[Store, Store]
) -> None:
    source, target = stores
    save(source, 1_000)
    save(source, 1_100, epoch=4)
    save(source, 1_150, is_certified=False)
    save(source, 1_200, is_complete=False)
    source.write(f"work/{PHASE.digest}/code/ab.json", b"{}")
    assert copied(states, stores) == (["phase@1100, certified: 4 files, 1.1 kB, copied"], [])
    folder = "step-0000001100-epoch-000000"
    assert states_at(target) == {
        f"{folder}/certified.json": b"{}",
        f"{folder}/checkpoint/arrays/w": b"w" * 1_095,
        f"{folder}/checkpoint/manifest.json": b"{}",
        f"{folder}/metrics.parquet": b"m",
    }
    assert target.exists(f"work/{PHASE.digest}/code/ab.json")
    assert states.left() == [] and copied(states, stores) == ([], [])
    assert Leases(target).running() == {}
    save(source, 1_200)
    assert copied(states, stores)[0] == ["phase@1200, certified: 4 files, 1.2 kB, copied"]
    assert len(states_at(target)) == 8, "nothing is deleted there"


def test_from_bucket_to_bucket_too(gcs_bucket: str, tmp_path: Path) -> None:
    places = open_store(f"gs://{gcs_bucket}/{tmp_path.name}/a"), open_store(f"gs://{gcs_bucket}/{tmp_path.name}/b")
    save(places[0], 1_000)
    states = CertifiedStates(*places, [PHASE])
    assert copied(states, places) == (["phase@1000, certified: 4 files, 1 kB, copied"], [])
    assert len(states_at(places[1])) == 4 and states.left() == []


def test_until_all_of_it_is_there_nothing_says_so(
    states: CertifiedStates, stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    save(source, 1_000)
    write_blocks, left = LocalStore.write_blocks, [0]

    def failing(self: LocalStore, path: str, blocks: Iterable[bytes]) -> None:
        if not left[0]:
            raise StoreError("no permission")
        left[0] -= 1
        write_blocks(self, path, blocks)

    monkeypatch.setattr(LocalStore, "write_blocks", failing)
    for number in range(4):
        left[0] = number
        assert copied(states, stores) == ([], ["phase@1000, certified, was not copied: no permission"])
        names = [name.rpartition("/")[2] for name in states_at(target)]
        assert "certified.json" not in names
        assert "manifest.json" not in names or sorted(names) == ["manifest.json", "metrics.parquet", "w"]
        for name in states_at(target):
            target.delete(f"work/{PHASE.digest}/temporary/{name}")
    left[0] = 4
    assert len(copied(states, stores)[0]) == 1 and states.left() == []


def test_what_is_let_go_meanwhile_leaves_nothing_that_looks_whole(
    states: CertifiedStates, stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    folder = save(source, 1_000)
    write_blocks = LocalStore.write_blocks

    def collected(self: LocalStore, path: str, blocks: Iterable[bytes]) -> None:
        write_blocks(self, path, blocks)
        source.delete(f"{folder}/certified.json")
        source.delete(f"{folder}/checkpoint/manifest.json")

    monkeypatch.setattr(LocalStore, "write_blocks", collected)
    assert copied(states, stores) == ([], [])
    assert not [name for name in states_at(target) if name.endswith(".json")]


def test_an_attempt_at_the_target_keeps_its_own_states_alone(
    states: CertifiedStates, stores: tuple[Store, Store]
) -> None:
    source, target = stores
    save(source, 1_000)
    save(target, 100, epoch=1, is_certified=False)
    before = states_at(target)
    assert states.left() == [] and copied(states, stores, check=True) == ([], [])
    assert states_at(target) == before


def test_where_somebody_makes_the_step_there_it_is_left_to_that(
    states: CertifiedStates, stores: tuple[Store, Store]
) -> None:
    save(stores[0], 1_000)
    leases = Leases(stores[1])
    leases.acquire(PHASE.digest, "phase", lambda: None)
    assert copied(states, stores) == ([], []) and states_at(stores[1]) == {}
    leases.close()


def test_a_run_that_copies_a_milestone_and_a_state_of_one_trajectory_does_not_wait_for_itself(
    states: CertifiedStates, stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    save(source, 1_000)
    record = output(source, milestone=500, digest=PHASE.digest)
    copy_files, now, most, both = Copier.copy_files, [0], [0], threading.Barrier(2)

    def slow(self: Copier, *args: Any) -> tuple[int, int]:
        now[0] += 1
        most[0] = max(most[0], now[0])
        time.sleep(0.05)
        now[0] -= 1
        return copy_files(self, *args)

    monkeypatch.setattr(Copier, "copy_files", slow)
    said: list[str] = []
    copier = Copier(source, target, say=said.append)

    def milestone() -> None:
        both.wait(10)
        copier.copy(record.key)

    thread = threading.Thread(target=milestone)
    thread.start()
    both.wait(10)
    assert states.copy(copier, lambda text: None) == []
    thread.join()
    copier.close()
    assert most == [1] and said == []
    assert Records(target).get(record.key) == record and states.left() == []


def test_check_mends_a_copied_state(states: CertifiedStates, stores: tuple[Store, Store]) -> None:
    source, target = stores
    save(source, 1_000)
    copied(states, stores)
    whole = states_at(target)
    target.write(f"work/{PHASE.digest}/temporary/step-0000001000-epoch-000000/checkpoint/arrays/w", b"x" * 995)
    assert copied(states, stores) == ([], [])
    assert copied(states, stores, check=True)[0] == ["phase@1000, certified: 1 file, 995 B, copied"]
    assert states_at(target) == whole


@pytest.mark.parametrize("arguments", [["copy", "--to"], ["--copy-to"]], ids=["copy", "run"])
def test_the_command_line_brings_it_and_its_plan_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(run_copying, "POLL_SECONDS", 0.02)
    there = str(tmp_path / "there")

    def called(*words: str) -> tuple[int, str]:
        code = main(build, name="toy", argv=["--prefix", str(tmp_path / "here"), "--backend", "local", *words])
        return code, capsys.readouterr().out

    assert called(*(["--only", "text"] if arguments[0] == "copy" else []))[0] == 0  # whether the phase has ended or not
    assert called(*arguments, there)[0] == 0
    save(LocalStore(str(tmp_path / "here")), 1_000)
    plan, left = called(*arguments, there, "--dry-run")
    code, said = called(*arguments, there)
    assert (plan, code) == (2, 0)
    if arguments[0] == "copy":
        at_the_copy = called("--dry-run", "--every-step", "--prefix", there)[1]
        assert re.search(r"^phase +begun +resumes at step 1,000, saved by ", at_the_copy, re.MULTILINE), at_the_copy
        assert "phase@1000, certified: not there yet\n0 outputs to copy, 0 B; 1 are there" in left
        assert "phase@1000, certified: 4 files, 1 kB, copied\nnothing more to copy: 1 output, in" in said
    else:
        assert "2 of 2 finished outputs there, 1 certified state to copy\ncopy them  " in left
        assert "phase@1000, certified: 4 files, 1 kB, copied\ncopies: all 2 outputs are in" in said
    assert called(*arguments, there, "--dry-run")[0] == 0 and len(states_at(LocalStore(there))) == 4
