"""--copy-to: copies beside a run, that delay and fail no step, and are never missing without a word."""

import errno
import os
import signal
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
from marin_dag.keep.copy import copy_queue, run_copying
from marin_dag.keep.copy.attachments import Attachments
from marin_dag.keep.copy.certified_copies import CertifiedStates
from marin_dag.keep.copy.copy_queue import CopyQueue
from marin_dag.keep.copy.copying import Copied, Copier
from marin_dag.keep.copy.run_copying import RunCopying
from marin_dag.ledger.records import Record, Records
from marin_dag.store import retry as transient
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store, StoreError, explain_os_error
from tests.gcs_server.control import GcsServerProcess
from tests.gcs_server.faults import Fault
from tests.marin_dag.cli.test_main import Toy
from tests.marin_dag.keep.copy.test_certified_copies import PHASE, save
from tests.marin_dag.keep.copy.test_copying import FILES, output
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
    """Publishes a milestone, and goes on when it sees that in the other prefix."""
    (folder := Path(context.output_path, "first")).mkdir()
    (folder / "weights").write_text("1")
    context.publish(1, "first", Seen(step=1))
    deadline = time.monotonic() + WAIT_SECONDS
    while not Records(LocalStore(config.target)).committed_keys():
        assert time.monotonic() < deadline, "the milestone is not copied while the step runs"
        time.sleep(0.02)
    return Seen(step=config.until_step)


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Toy:
    return Toy(tmp_path / "runs", capsys)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transient, "PAUSES_SECONDS", ())
    monkeypatch.setattr(copy_queue, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(run_copying, "POLL_SECONDS", 0.02)


def failing(monkeypatch: pytest.MonkeyPatch, target: Path, errors: Callable[[], Exception | None]) -> None:
    """What is written to the target's outputs fails as long as `errors` gives one."""
    write_blocks = LocalStore.write_blocks

    def write(self: LocalStore, path: str, blocks: Iterable[bytes]) -> None:
        if self.prefix == str(target) and (error := errors()) is not None:
            raise error
        write_blocks(self, path, blocks)

    monkeypatch.setattr(LocalStore, "write_blocks", write)


def test_a_milestone_is_copied_while_its_step_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "there"

    def build(arguments: Namespace) -> list[Step[Any]]:
        return [watch("watch", WatchConfig(until_step=2, target=str(target)))]

    argv = ["--prefix", str(tmp_path / "here"), "--backend", "local", "--copy-to", str(target)]
    assert main(build, name="watched", argv=argv) == 0
    said = capsys.readouterr().out
    assert f"watch@1: copied to {target} (1 file, 1 B)\n" in said
    assert said.endswith(f"copies: all 2 outputs are in {target}, 2 by this run (1 B)\n")
    assert committed_bytes(target) == committed_bytes(tmp_path / "here")


def test_a_run_copies_what_it_commits_and_what_was_finished_before(run: Toy, tmp_path: Path) -> None:
    there = tmp_path / "there"
    assert run("--until", "count")[0] == 0  # a run without copies, or one that was killed before it had made them
    code, said = run("--copy-to", str(there), "--until", "kestrel")
    assert code == 0 and f"copies: all 6 outputs are in {there}, 6 by this run (16 B)\n" in said
    assert committed_bytes(there) == committed_bytes(run.prefix)
    assert run()[0] == 0
    code, said = run("--copy-to", str(there))
    assert code == 0 and "nothing to do: 8 steps, all done" in said and "8 outputs are in" in said
    assert committed_bytes(there) == committed_bytes(run.prefix)


def test_a_store_that_fails_for_a_while_costs_no_copy(
    run: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    left = [StoreError(f"{there}: the network is down", is_transient=True) for _ in range(9)]
    failing(monkeypatch, there, lambda: left.pop() if left else None)
    code, said = run("--copy-to", str(there))
    assert code == 0 and not left
    assert said.count("its copy is tried again, as long as that may help: ") == 1 and "the network is down" in said
    assert committed_bytes(there) == committed_bytes(run.prefix)


@pytest.mark.parametrize("is_transient", [True, False])
def test_copies_that_fail_fail_no_step_and_are_told_with_what_catches_up(
    run: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_transient: bool
) -> None:
    there, is_broken = tmp_path / "there", [True]
    error = StoreError(f"{there}: no permission", is_transient=is_transient)
    failing(monkeypatch, there, lambda: error if is_broken[0] else None)
    code, said = run("--copy-to", str(there))
    assert code == 1
    assert set(run.verdicts().values()) == {"done"} and said.count("done (") == 8
    assert f"copies: 8 of 8 outputs are not in {there}:\n" in said
    assert f"\n  count: {there}: no permission\n" in said
    (line,) = [line for line in said.splitlines() if line.startswith("to catch up:  ")]
    assert f"copy --to {there} --prefix {run.prefix}" in line
    assert committed_bytes(there) == {}
    is_broken[0] = False
    assert run("copy", "--to", str(there))[0] == 0
    assert committed_bytes(there) == committed_bytes(run.prefix)


def test_a_damaged_output_is_named_with_what_makes_it_again(run: Toy, tmp_path: Path) -> None:
    assert run()[0] == 0
    (file,) = run.prefix.glob("outputs/text/web-*/*/text.txt")
    file.write_text("bew")
    code, said = run("--copy-to", str(tmp_path / "there"))
    assert code == 1 and said.count("text/web: not copied: 1 of its files are not as recorded; text.txt has CRC") == 1
    assert "first:        " in said and "--force text/web --until text/web" in said
    assert len(committed_bytes(tmp_path / "there")) == 7


def test_a_bucket_that_stumbles_gets_every_copy(
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


def copies_of(source: Store, target: Store, steps: list[Step[Any]], said: list[str]) -> RunCopying:
    class Voice:
        def say(self, text: str) -> None:
            said.append(text)

        complain = say

    copier = Copier(source, target)
    attachments = Attachments(copier, "names/none")
    states = CertifiedStates(source, target, steps)
    return RunCopying(copier, attachments, states, steps, Voice(), command="COPY", command_to_force=lambda name: name)


def test_who_is_interrupted_waits_for_no_copy(run: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main_step = count("main", CountConfig(stride=2, until_step=5))
    argv = ["--prefix", str(run.prefix), "--backend", "local"]
    assert main(lambda parsed: [main_step], name="counts", argv=argv) == 0
    is_begun, source, target = threading.Event(), open_store(str(run.prefix)), LocalStore(str(tmp_path / "there"))

    def endless(self: Copier, path: str, entry: Any) -> Iterable[bytes]:
        is_begun.set()
        while True:
            self.refuse_cancelled()
            time.sleep(0.01)
            yield b"x"

    monkeypatch.setattr(Copier, "_checked_blocks", endless)
    said: list[str] = []
    copies = copies_of(source, target, [main_step], said)
    copies.start()
    assert is_begun.wait(WAIT_SECONDS)
    assert not copies.finish(is_interrupted=True)
    assert said[-3:] == [
        f"copies: 1 of 1 output are not in {target.prefix}:",
        "  main@5: not copied yet",
        "to catch up:  COPY",
    ]
    assert target.list("outputs") == [] and target.list("commits") == []


def test_who_is_interrupted_is_told_of_a_certified_state_that_is_not_there(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(stores[0], 1_000)
    is_begun, copy = threading.Event(), CertifiedStates.copy

    def interrupted(self: CertifiedStates, copier: Copier, say: Callable[[str], None]) -> list[str]:
        is_begun.set()
        eventually(lambda: copier.is_cancelled)
        return copy(self, copier, say)

    monkeypatch.setattr(CertifiedStates, "copy", interrupted)
    said: list[str] = []
    copies = copies_of(*stores, [PHASE], said)
    copies.start()
    assert is_begun.wait(WAIT_SECONDS)
    assert not copies.finish(is_interrupted=True)
    assert said == ["copies: phase@1000, certified, is not there yet", "to catch up:  COPY"]


def committed(source: Store, main_step: Step[Any], milestone: int, files: dict[str, bytes] = FILES) -> Record:
    return output(source, files, milestone=milestone, digest=main_step.digest)


@pytest.fixture
def main_step() -> Step[Any]:
    return count("main", CountConfig(stride=2, until_step=12))


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Store, Store]:
    return LocalStore(str(tmp_path / "here")), LocalStore(str(tmp_path / "there"))


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_explains_an_output_follows_it_while_the_run_goes_on(
    stores: tuple[Store, Store], main_step: Step[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_copying, "ATTACH_SECONDS", 0.05)
    source, target = stores
    copies = copies_of(source, target, [main_step], [])
    copies.start()
    record = committed(source, main_step, 5)
    source.write(f"work/{main_step.digest}/events/one.jsonl", b"1")
    source.write(f"told/{main_step.digest}/x.json", b"{}")
    copies.add(record.key)
    eventually(lambda: bool(target.list("work") and target.list("told")))
    source.write(f"{record.output_path}.log", b"what it said, to the end")
    source.write(f"work/{main_step.digest}/events/one.jsonl", b"12")
    assert copies.finish(is_interrupted=False)
    assert target.read(f"work/{main_step.digest}/events/one.jsonl") == b"12"
    assert target.read(f"{record.output_path}.log") == b"what it said, to the end"


def test_looking_who_is_at_work_again_and_again_writes_no_more(
    stores: tuple[Store, Store], main_step: Step[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_copying, "ATTACH_SECONDS", 0.01)
    source, target = stores
    source.create(f"leases/{main_step.digest}/00000001.claim", b"of somebody else, long ago")
    os.utime(source.url(f"leases/{main_step.digest}/00000001.claim"), (0, 0))
    passes, written = [], []
    copy, write = Attachments.copy, LocalStore.write
    monkeypatch.setattr(Attachments, "copy", lambda *of: passes.append(of) or copy(*of))
    monkeypatch.setattr(LocalStore, "write", lambda *of: written.append(of[1]) or write(*of))
    copies = copies_of(source, target, [main_step], [])
    copies.start()
    eventually(lambda: len(passes) > 2)
    copies.finish(is_interrupted=False)
    assert written == ["clock/now"], "what the store's clock says is asked once"


def test_what_another_attempt_made_there_before_is_told(stores: tuple[Store, Store], main_step: Step[Any]) -> None:
    source, target = stores
    committed(source, main_step, 5, {"w": b"ours"})
    committed(target, main_step, 5, {"w": b"theirs"})
    same = committed(source, main_step, 7)
    copier = Copier(source, target)
    copier.copy(same.key)
    copier.close()
    said: list[str] = []
    copies = copies_of(source, target, [main_step], said)
    copies.start()
    assert copies.finish(is_interrupted=False)
    others = [line for line in said if "from other attempts" in line]
    assert len(others) == 1 and "main@5;" in others[0] and "main@7" not in others[0]


def test_who_is_interrupted_waits_for_nothing_that_goes_along(
    stores: tuple[Store, Store], main_step: Step[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    record = committed(source, main_step, 5)
    for number in range(100):
        source.write(f"told/{main_step.digest}/{number}.json", b"{}")
    create, is_begun = LocalStore.create, threading.Event()

    def slow(self: LocalStore, path: str, data: bytes) -> bool:
        if path.startswith("told/"):
            is_begun.set()
            time.sleep(0.02)
        return create(self, path, data)

    monkeypatch.setattr(LocalStore, "create", slow)
    said: list[str] = []
    copies = copies_of(source, target, [main_step], said)
    copier = Copier(source, target)
    copier.copy(record.key)
    copier.close()
    copies.start()
    assert is_begun.wait(WAIT_SECONDS)
    copies.finish(is_interrupted=True)
    assert len(target.list("told")) < 50


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_while_copies_are_waited_for_tells_what_is_not_there(
    stores: tuple[Store, Store], main_step: Step[Any], monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    source, target = stores
    committed(source, main_step, 5)

    def endless(self: Copier, *args: Any) -> tuple[int, int]:
        while True:
            self.refuse_cancelled()
            time.sleep(0.01)

    is_over = CopyQueue.is_over

    def signalled(self: CopyQueue, timeout_seconds: float) -> bool:
        monkeypatch.setattr(CopyQueue, "is_over", is_over)
        signal.raise_signal(number)
        return is_over(self, timeout_seconds)

    monkeypatch.setattr(Copier, "copy_files", endless)
    monkeypatch.setattr(CopyQueue, "is_over", signalled)
    said: list[str] = []
    copies = copies_of(source, target, [main_step], said)
    copies.start()
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with pytest.raises(KeyboardInterrupt):
            copies.finish(is_interrupted=False)
    finally:
        copies.leave()
        signal.signal(number, before)
    assert said[-2:] == ["  main@5: not copied yet", "to catch up:  COPY"]


def test_what_will_not_pass_is_told_whatever_was_told_a_moment_ago(
    stores: tuple[Store, Store], main_step: Step[Any]
) -> None:
    said: list[str] = []
    copies = copies_of(*stores, [main_step], said)
    for number in range(2):
        copies.on_postponed(f"{main_step.digest}@{number}", 1.0, StoreError("down", is_transient=True))
    copies.on_failed(f"{main_step.digest}@5", StoreError("no permission"))
    assert [line.partition(":")[0] for line in said] == ["main@0", "main@5"] and "no permission" in said[1]


def test_a_full_target_is_told_again_once_something_was_copied_since_and_in_the_end_with_what_is_not_there(
    stores: tuple[Store, Store], main_step: Step[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    record, said = committed(source, main_step, 5), list[str]()
    copies = copies_of(source, target, [main_step], said)
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def full() -> StoreError:
        raised = StoreError(explain_os_error(error, f"{target.prefix}/x"))
        raised.__cause__ = error
        return raised

    for _ in range(2):
        copies.on_full([], full())
    assert len(said) == 1 and "no room is left" in said[0] and "pass another --to, then" in said[0]
    copies.on_copied(Copied(record.key, "copied", None))
    copies.on_full([], full())
    assert len(said) == 2
    failing(monkeypatch, Path(target.prefix), full)
    copies.start()
    assert not copies.finish(is_interrupted=False)
    told = f"copies: {target.prefix}/x: No space left on device"
    assert [line for line in said[2:] if "No space left" in line] == [line for line in said if line.startswith(told)]
    assert said[-1] == "to catch up:  COPY" and said[-2].startswith(told)
