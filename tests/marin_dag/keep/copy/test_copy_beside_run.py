"""--copy-to: copies beside a run, which delay and fail no step, and report what is missing."""

import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from marin_dag.cli.main import main
from marin_dag.graph.step import Runtime, Step, StepContext, StopAt, step
from marin_dag.keep.copy import job
from marin_dag.keep.copy.copier import Copier
from marin_dag.keep.copy.job import Copies
from marin_dag.ledger.records import Records
from marin_dag.store import retry
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store, StoreError
from tests.gcs_server.control import GcsServerProcess
from tests.gcs_server.faults import Fault
from tests.marin_dag.cli.test_main import Toy
from tests.marin_dag.keep.copy.test_copier import output
from tests.marin_dag.kill_everywhere import committed_bytes
from tests.marin_dag.toy_steps import CountConfig, count

WAIT_SECONDS = 30.0


class WatchConfig(BaseModel, frozen=True, extra="forbid"):
    until_step: StopAt[int]
    target: Runtime[str]


class Seen(BaseModel, frozen=True, extra="forbid"):
    step: int


@step()
def watch(config: WatchConfig, context: StepContext) -> Seen:
    """Publish a milestone, and return when it is at the target."""
    (folder := Path(context.output_path, "first")).mkdir()
    (folder / "weights").write_text("1")
    context.publish(1, "first", Seen(step=1))
    eventually(lambda: bool(Records(LocalStore(config.target)).committed_keys()))
    return Seen(step=config.until_step)


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Toy:
    return Toy(tmp_path / "runs", capsys)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "PAUSES_SECONDS", ())


def failing(monkeypatch: pytest.MonkeyPatch, target: Path, errors: Callable[[], Exception | None]) -> None:
    """Let writes to the outputs of `target` raise what `errors` returns."""
    write_blocks = LocalStore.write_blocks

    def write(self: LocalStore, path: str, blocks: Iterable[bytes]) -> None:
        is_output = path.startswith("outputs/") and not path.endswith(".log")
        if self.prefix == str(target) and is_output and (error := errors()) is not None:
            raise error
        write_blocks(self, path, blocks)

    monkeypatch.setattr(LocalStore, "write_blocks", write)


def test_a_milestone_is_copied_while_its_step_runs(tmp_path: Path) -> None:
    target = tmp_path / "there"

    def build(arguments: Namespace) -> list[Step[Any]]:
        return [watch("watch", WatchConfig(until_step=2, target=str(target)))]

    argv = ["--prefix", str(tmp_path / "here"), "--backend", "local", "--copy-to", str(target)]
    assert main(build, name="watched", argv=argv) == 0
    assert len(committed_bytes(target)) == 2
    assert committed_bytes(target) == committed_bytes(tmp_path / "here")


def test_a_run_copies_new_and_earlier_outputs(run: Toy, tmp_path: Path) -> None:
    there = tmp_path / "there"
    assert run("--until", "count")[0] == 0  # without copies, as after a kill
    assert run("--copy-to", str(there), "--until", "kestrel")[0] == 0
    assert len(committed_bytes(there)) == 6 and committed_bytes(there) == committed_bytes(run.prefix)
    assert run()[0] == 0
    assert run("--copy-to", str(there))[0] == 0  # nothing to run
    assert len(committed_bytes(there)) == 8 and committed_bytes(there) == committed_bytes(run.prefix)


def test_an_output_whose_copy_fails_at_first_is_retried(
    run: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    left = [StoreError(f"{there}: the network is down", is_transient=True) for _ in range(2)]
    failing(monkeypatch, there, lambda: left.pop() if left else None)
    assert run("--copy-to", str(there))[0] == 0 and not left
    assert committed_bytes(there) == committed_bytes(run.prefix)


@pytest.mark.parametrize("is_transient", [True, False])
def test_failed_copies_fail_no_step_and_are_reported(
    run: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_transient: bool
) -> None:
    there, is_broken = tmp_path / "there", [True]
    error = StoreError(f"{there}: no permission", is_transient=is_transient)
    failing(monkeypatch, there, lambda: error if is_broken[0] else None)
    code, text = run("--copy-to", str(there))
    assert code == 1
    assert set(run.verdicts().values()) == {"done"}
    assert text.count(f"{error}\n") == 8  # of four outputs with a file, when they fail and at the end
    assert len(committed_bytes(there)) == 4
    is_broken[0] = False
    assert run("copy", "--to", str(there))[0] == 0
    assert committed_bytes(there) == committed_bytes(run.prefix)


def test_a_bucket_with_errors_gets_every_copy(
    run: Toy, gcs_server: GcsServerProcess, gcs_bucket: str, tmp_path: Path
) -> None:
    target = f"gs://{gcs_bucket}/{tmp_path.name}"
    gcs_server.add_fault(Fault("status", where=tmp_path.name, probability=0.05, count=10))
    try:
        assert run("--copy-to", target)[0] == 0
    finally:
        gcs_server.clear_faults()
    assert Records(open_store(target)).committed_keys() == Records(open_store(str(run.prefix))).committed_keys()
    assert run("--prefix", target, "verify", "all")[0] == 0


@pytest.fixture
def main_step() -> Step[Any]:
    return count("main", CountConfig(stride=2, until_step=12))


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Store, Store]:
    return LocalStore(str(tmp_path / "here")), LocalStore(str(tmp_path / "there"))


def copies_of(stores: tuple[Store, Store], steps: list[Step[Any]], lines: list[str]) -> Copies:
    copies = Copies(
        Copier(*stores), steps, "names/none", say=lines.append, complain=lines.append, command="COPY",
        command_to_force=lambda name: name,
    )  # fmt: skip
    copies.start()
    return copies


def test_an_interrupted_run_waits_for_no_copy(
    stores: tuple[Store, Store], main_step: Step[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    output(stores[0], milestone=5, digest=main_step.digest)
    is_started = threading.Event()

    def endless(self: Copier, path: str, entry: Any, lease: Any) -> Iterable[bytes]:
        is_started.set()
        while True:
            self._check_going(lease)
            time.sleep(0.01)
            yield b"x"

    monkeypatch.setattr(Copier, "_blocks", endless)
    lines = list[str]()
    copies = copies_of(stores, [main_step], lines)
    assert is_started.wait(WAIT_SECONDS)
    assert not copies.finish(is_interrupted=True)
    assert lines == [
        f"1 not copied to {stores[1].prefix}:",
        "  main@5: not copied yet",
        "to continue:  COPY",
    ]
    assert stores[1].list("outputs") == [] and stores[1].list("commits") == []


def test_objects_that_belong_to_an_output_follow_it_while_the_run_goes_on(
    stores: tuple[Store, Store], main_step: Step[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "INTERVAL_SECONDS", 0.05)
    source, target = stores
    copies = copies_of(stores, [main_step], [])
    record = output(source, milestone=5, digest=main_step.digest)
    source.write(f"work/{main_step.digest}/events/one.jsonl", b"1")
    source.write(f"requests/{main_step.digest}/x.json", b"{}")
    copies.add(record.key)
    eventually(lambda: bool(target.list("work") and target.list("requests")))
    source.write(f"{record.output_path}.log", b"a line, and the last line")
    assert copies.finish(is_interrupted=False)
    assert target.read(f"{record.output_path}.log") == b"a line, and the last line"


def test_outputs_of_other_steps_are_not_copied(stores: tuple[Store, Store], main_step: Step[Any]) -> None:
    copies = copies_of(stores, [main_step], [])
    copies.add(output(stores[0], digest="cd" * 32).key)
    assert copies.finish(is_interrupted=False)
    assert stores[1].list("commits") == []
