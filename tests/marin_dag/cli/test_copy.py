"""copy: the command, and a copy that is a prefix like any other."""

import errno
import os
import shutil
import signal
import threading
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from marin_dag.cli.main import main
from marin_dag.cli.session import program
from marin_dag.graph.step import Step
from marin_dag.identity.diff import CodeChanged
from marin_dag.keep.copy import job as job_module
from marin_dag.keep.copy.copier import Copier
from marin_dag.ledger.acceptances import Acceptances
from marin_dag.ledger.pins import Pins
from marin_dag.ledger.records import Records
from marin_dag.ledger.requests import Requests
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from marin_dag.store.store import StoreError, explain_os_error
from tests.catalogue import check_message
from tests.marin_dag.cli.test_main import Toy
from tests.marin_dag.kill_everywhere import committed_bytes
from tests.marin_dag.toy_steps import CountConfig, count, executions
from tests.marin_dag.workbench import Workbench


@pytest.fixture
def made(run: Toy) -> Toy:
    assert run()[0] == 0
    return run


@pytest.fixture
def there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Toy:
    """Return the same pipeline at the target."""
    return Toy(tmp_path / "there", capsys)


def file_of(run: Toy, name: str) -> Path:
    records = Records(open_store(str(run.prefix)))
    ((key),) = records.labels()[name]
    return run.prefix / records.get(key).output_path / "text.txt"


def sorted_lines(text: str) -> str:
    return "\n".join(sorted(text.splitlines()))


def test_every_finished_output_is_copied_once_and_is_done_at_the_target(made: Toy, there: Toy) -> None:
    assert made("fork", "phoenix", "--as", "mine", "--set", "z_loss=0.5")[0] == 0
    code, text = made("copy", "--to", str(there.prefix))
    assert code == 0
    check_message(sorted_lines(text))
    assert committed_bytes(there.prefix) == committed_bytes(made.prefix)
    before = {path: path.read_bytes() for path in there.prefix.rglob("*") if path.is_file()}
    code, text = made("copy", "--to", str(there.prefix))
    assert code == 0
    check_message(text)
    assert {path: path.read_bytes() for path in there.prefix.rglob("*") if path.is_file()} == before
    shutil.rmtree(made.prefix)  # the first prefix is lost
    assert there.verdicts() == dict.fromkeys(there.verdicts().keys() - {"mine"}, "done") | {"mine": "missing"}
    assert there("verify", "all")[0] == 0
    assert there("log", "text/web")[0] == there("show", "text/web")[0] == 0
    assert there("gc", "--older-than-days", "0")[0] == 0
    assert there()[0] == 0 and there.committed() >= {"mine"}


def test_named_steps_are_copied_alone_and_until_takes_what_they_need(made: Toy, there: Toy) -> None:
    assert made("copy", "text/w*", "ocelot", "--to", str(there.prefix))[0] == 0
    done = {name for name, verdict in there.verdicts().items() if verdict == "done"}
    assert done == {"text/web", "ocelot", "phoenix"}  # two phases of one run
    assert made("copy", "--until", "count", "--to", str(there.prefix))[0] == 0
    assert {"text/books", "count"} <= {name for name, verdict in there.verdicts().items() if verdict == "done"}
    assert there.verdicts()["kestrel"] == "missing"


def test_a_damaged_output_is_named_with_the_fix_and_all_others_are_copied(
    made: Toy, there: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried, copy = list[str](), Copier.copy
    monkeypatch.setattr(Copier, "copy", lambda self, key: tried.append(key) or copy(self, key))
    file_of(made, "text/web").write_text("bew")
    code, text = made("copy", "--only", "text/web", "--to", str(there.prefix))
    assert code == 1 and len(tried) == 1, "a second try would find the same damage"
    attempt = file_of(made, "text/web").parent.name
    check_message(text.replace(attempt, "ATTEMPT").replace(program(), "PROGRAM"))
    assert made("copy", "--to", str(there.prefix))[0] == 1
    assert len(committed_bytes(there.prefix)) == 7 and not list(there.prefix.glob("outputs/text/web-*/*/text.txt"))
    assert made("--force", "text/web", "--until", "text/web")[0] == 0
    assert made("copy", "--to", str(there.prefix))[0] == 0
    assert committed_bytes(there.prefix) == committed_bytes(made.prefix)


def test_an_unreadable_record_keeps_no_other_output_from_being_copied(made: Toy, there: Toy) -> None:
    ((key),) = Records(open_store(str(made.prefix))).labels()["text/web"]
    (made.prefix / "commits" / f"{key}.json").write_text("{")
    assert made("copy", "--to", str(there.prefix))[0] == 1
    assert len(committed_bytes(there.prefix)) == 7


def test_either_prefix_repairs_the_other(made: Toy, there: Toy) -> None:
    assert made("copy", "--to", str(there.prefix))[0] == 0
    expected = committed_bytes(made.prefix)
    for damaged, whole in ((there, made), (made, there)):
        file_of(damaged, "text/web").write_text("bew")
        file_of(damaged, "text/code").unlink()
        assert whole("copy", "--to", str(damaged.prefix))[0] == 0
        code, text = whole("copy", "--check", "--to", str(damaged.prefix))
        assert code == 0
        assert committed_bytes(damaged.prefix) == expected
    check_message(sorted_lines(text))


def test_check_restores_sources_environments_and_marks_of_code(bench: Workbench, tmp_path: Path) -> None:
    assert bench()[0] == 0
    target = LocalStore(str(tmp_path / "there"))
    assert bench("copy", "--to", target.prefix)[0] == 0
    folders = ("codes", "sources", "environments")
    before = {entry.path for folder in folders for entry in target.list(folder)}
    for folder in folders:
        shutil.rmtree(tmp_path / "there" / folder)
    assert bench("copy", "--check", "--to", target.prefix)[0] == 0
    assert {entry.path for folder in folders for entry in target.list(folder)} == before != set()


@pytest.mark.parametrize("damage", ["another figure", "no JSON"])
@pytest.mark.parametrize("options", [[], ["--check"]], ids=["copy", "check"])
def test_a_damaged_record_at_the_target_is_never_overwritten(
    made: Toy, there: Toy, damage: str, options: list[str]
) -> None:
    assert made("copy", "--to", str(there.prefix))[0] == 0
    expected = committed_bytes(there.prefix)
    ((key),) = Records(open_store(str(there.prefix))).labels()["text/web"]
    record = there.prefix / "commits" / f"{key}.json"
    whole = record.read_text()
    broken = whole.replace('"count"', '"coumt"') if damage == "another figure" else whole[:99]
    record.write_text(broken)
    assert made("copy", *options, "--to", str(there.prefix))[0] == (1 if options else 0)
    assert record.read_text() == broken
    record.unlink()
    assert made("copy", "--to", str(there.prefix))[0] == 0
    assert committed_bytes(there.prefix) == expected and record.read_text() == whole


def test_an_output_that_was_made_at_the_target_stays(made: Toy, there: Toy) -> None:
    assert there("--until", "text/web")[0] == 0
    before = file_of(there, "text/web")
    assert made("copy", "--to", str(there.prefix))[0] == 0
    assert file_of(there, "text/web") == before and len(committed_bytes(there.prefix)) == 8


def test_a_dry_run_prints_what_would_be_copied_and_writes_nothing(made: Toy, there: Toy) -> None:
    code, text = made("copy", "--dry-run", "--to", str(there.prefix))
    assert code == 2
    check_message(text)
    assert made("--dry-run", "--copy-to", str(there.prefix))[0] == 2
    assert made("--dry-run", "--until", "count")[0] == 0
    assert not there.prefix.exists()
    made("copy", "--to", str(there.prefix))
    assert made("copy", "--dry-run", "--to", str(there.prefix))[0] == 0
    assert made("plan", "--copy-to", str(there.prefix))[0] == 0


@pytest.mark.parametrize("arguments", [["copy", "--to"], ["--copy-to"]], ids=["copy", "run"])
@pytest.mark.parametrize("place", ["itself", "link", "inside", "around", "unknown", "empty", "file"])
def test_a_place_that_is_not_apart_is_refused_before_anything_starts(
    run: Toy, tmp_path: Path, arguments: list[str], place: str
) -> None:
    (tmp_path / "link").symlink_to(run.prefix)
    (tmp_path / "file").write_text("")
    target = {
        "itself": str(run.prefix),
        "link": str(tmp_path / "link"),
        "inside": str(run.prefix / "copy"),
        "around": str(tmp_path),
        "unknown": "ftp://x/y",
        "empty": "",
        "file": str(tmp_path / "file"),
    }[place]
    code, text = run(*arguments, target)
    assert code == 1
    check_message(text)
    assert not run.prefix.exists()


@pytest.mark.parametrize("words", [["copy"], ["copy", "--to"], ["copy", "count", "--until", "count", "--to"]], ids=str)
def test_a_copy_of_nothing_or_to_nowhere_is_refused(run: Toy, tmp_path: Path, words: list[str]) -> None:
    code, text = run(*words, *([str(tmp_path / "x")] if words[-1] == "--to" else []))
    assert code == 1
    check_message(text)


def test_objects_that_belong_to_outputs_are_copied(bench: Workbench, tmp_path: Path) -> None:
    assert bench()[0] == 0
    store, target = open_store(str(bench.prefix)), LocalStore(str(tmp_path / "there"))
    records = Records(store)
    ((key),) = records.labels()["count"]
    bench("pin", "count", "--because", "cited")
    records.label("another-name", key)
    code = CodeChanged(("count",), (), (), "old", "new")
    accepted = Acceptances(store).accept(key, "count", code, "the first")
    Requests(store).send(key, "count", "publish", milestone=7)
    store.write(f"work/{key}/events/one.jsonl", b"1")
    store.write(f"work/{key}/shards/x/0.json", b"not an event")
    store.write(f"requests/{'ef' * 32}/x.json", b"of another step")
    assert bench("copy", "--to", target.prefix)[0] == 0
    assert Pins(target).all() == Pins(store).all() != []
    assert Records(target).labels()["another-name"] == [key] and Records(target).codes() == records.codes()
    assert Acceptances(target).log(key) == [accepted]
    assert len(target.list("requests")) == 1
    assert [entry.path for entry in target.list("work")] == [f"work/{key}/events/one.jsonl"]
    assert set(bench.files("sources")) == {entry.path for entry in target.list("sources")}
    Acceptances(store).revoke(accepted, "a mistake")
    assert bench("copy", "--to", target.prefix)[0] == 0
    assert len(Acceptances(target).log(key)) == 2


def test_a_fork_of_that_name_at_the_target_stays_and_fails_the_command(made: Toy, there: Toy) -> None:
    made("fork", "phoenix", "--as", "mine", "--set", "z_loss=0.5")
    there("fork", "phoenix", "--as", "mine", "--set", "z_loss=0.25")
    before = {path: path.read_bytes() for path in there.prefix.rglob("mine*") if path.is_file()}
    assert made("copy", "--to", str(there.prefix))[0] == 1
    assert {path: path.read_bytes() for path in there.prefix.rglob("mine*") if path.is_file()} == before != {}
    assert len(committed_bytes(there.prefix)) == 8


def test_acceptances_that_differ_at_the_target_stay_and_fail_the_command(bench: Workbench, tmp_path: Path) -> None:
    assert bench()[0] == 0
    store, target = open_store(str(bench.prefix)), LocalStore(str(tmp_path / "there"))
    ((key),) = Records(store).labels()["count"]
    code = CodeChanged(("count",), (), (), "old", "new")
    revoked = Acceptances(store).accept(key, "count", code, "at first")
    assert bench("copy", "--to", target.prefix)[0] == 0
    theirs = Acceptances(target).accept(key, "count", code, "there alone")
    assert bench("copy", "--to", target.prefix)[0] == 0  # the log there begins with this one
    Acceptances(store).revoke(revoked, "a mistake")
    Acceptances(store).accept(key, "count", code, "again")
    assert bench("copy", "--to", target.prefix)[0] == 1
    assert Acceptances(target).log(key) == [revoked, theirs]


def test_a_branch_starts_at_the_target_from_a_copied_milestone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marks = tmp_path / "marks"

    def build(arguments: Namespace) -> list[Step[Any]]:
        return [count("main", CountConfig(stride=2, until_step=12, marks=str(marks)))]

    def called(prefix: str, *arguments: str) -> int:
        return main(build, name="counts", argv=["--prefix", str(tmp_path / prefix), "--backend", "local", *arguments])

    assert called("here") == 0
    assert called("here", "copy", "--to", str(tmp_path / "there")) == 0
    shutil.rmtree(tmp_path / "here")
    shutil.rmtree(marks)
    assert called("there", "fork", "main", "--as", "branch", "--set", "start=main@5", "--set", "stride=7") == 0
    assert called("there") == 0
    assert sorted(executions(marks)) == sorted(f"count{number}" for number in range(5, 12))
    ((key),) = Records(LocalStore(str(tmp_path / "there"))).labels()["branch"][-1:]
    assert Records(LocalStore(str(tmp_path / "there"))).get(key).result["value"] == 5 * 2 + 7 * 7


def test_a_detached_run_copies_to_the_same_place(run: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import marin_dag.run.ray.detach

    sent: list[Any] = []

    class Recorded:
        def __init__(self, pipeline: str, prefix: str) -> None: ...

        def submit(self, command: list[str], folder: Path, *, not_sent: tuple[str, ...]) -> str:
            sent.append((command[-4:], not_sent))
            return "toy-1"

    monkeypatch.setattr(marin_dag.run.ray.detach, "DetachedRuns", Recorded)
    monkeypatch.chdir(tmp_path)
    assert run("--detach", "--copy-to", "there")[0] == 0
    place = str(tmp_path / "there")
    assert sent == [(["--prefix", str(run.prefix), "--copy-to", place], (place,))]


def test_an_output_that_is_collected_meanwhile_fails_nothing(
    made: Toy, there: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, copy = LocalStore(str(made.prefix)), Copier.copy
    ((collected),) = Records(store).labels()["text/code"]

    def copied(self: Copier, key: str) -> Any:
        if key == collected:
            store.delete(f"commits/{key}.json")
        return copy(self, key)

    monkeypatch.setattr(Copier, "copy", copied)
    assert made("copy", "--to", str(there.prefix))[0] == 0
    assert len(committed_bytes(there.prefix)) == 7


def test_a_complete_copy_reads_no_record(made: Toy, there: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    assert made("copy", "--to", str(there.prefix))[0] == 0
    read, reads = LocalStore.read, list[str]()

    def counting(self: LocalStore, path: str) -> bytes:
        reads.append(path)
        return read(self, path)

    monkeypatch.setattr(LocalStore, "read", counting)
    assert made("copy", "--to", str(there.prefix))[0] == 0
    assert not any(path.startswith("commits/") for path in reads)


@pytest.mark.parametrize("arguments", [["copy", "--to"], ["--copy-to"]], ids=["copy", "run"])
def test_a_full_target_fails_the_command_and_the_next_one_completes_the_copy(
    made: Toy, there: Toy, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    write_blocks = LocalStore.write_blocks

    def limited(self: LocalStore, path: str, blocks: Iterable[bytes]) -> None:
        if self.prefix == str(there.prefix) and path.endswith("text.txt"):
            error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise StoreError(explain_os_error(error, self.url(path))) from error
        write_blocks(self, path, blocks)

    monkeypatch.setattr(LocalStore, "write_blocks", limited)
    assert made(*arguments, str(there.prefix))[0] == 1
    assert len(committed_bytes(there.prefix)) == 4
    monkeypatch.undo()
    assert made("copy", "--to", str(there.prefix))[0] == 0
    assert committed_bytes(there.prefix) == committed_bytes(made.prefix)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_a_signal_ends_a_copy_and_the_next_one_completes_it(
    made: Toy, there: Toy, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    copy, left, is_waiting = Copier.copy, [3], threading.Event()

    def copied(self: Copier, key: str) -> Any:
        if not left[0]:
            is_waiting.set()
            self._cancelled.wait(20)
        else:
            left[0] -= 1
        return copy(self, key)

    def signalled(*args: Any, **kwargs: Any) -> None:
        assert is_waiting.wait(30)
        signal.raise_signal(number)

    monkeypatch.setattr(job_module, "OUTPUTS_AT_ONCE", 1)
    monkeypatch.setattr(job_module, "wait", signalled)
    monkeypatch.setattr(Copier, "copy", copied)
    before = signal.signal(number, signal.SIG_IGN)
    try:
        assert made("copy", "--to", str(there.prefix))[0] == 130
    finally:
        signal.signal(number, before)
    assert len(committed_bytes(there.prefix)) == 3
    monkeypatch.undo()
    assert made("copy", "--to", str(there.prefix))[0] == 0
    assert committed_bytes(there.prefix) == committed_bytes(made.prefix)
