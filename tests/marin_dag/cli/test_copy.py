"""copy: what a user types, and a copy that is a prefix like any other."""

import errno
import itertools
import json
import os
import shutil
import signal
import threading
import time
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from marin_dag.cli.main import main
from marin_dag.cli.session import program
from marin_dag.graph.step import Step
from marin_dag.identity.diff import CodeChanged
from marin_dag.keep.copy import copy_queue, run_copying
from marin_dag.keep.copy.attachments import Attachments
from marin_dag.keep.copy.copy_queue import CopyQueue
from marin_dag.keep.copy.copying import Copied, Copier
from marin_dag.ledger.acceptances import ACCEPTED, Acceptances
from marin_dag.ledger.pins import Pins
from marin_dag.ledger.records import Records
from marin_dag.ledger.requests import Requests
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from marin_dag.store.store import StoreError, explain_os_error
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
    """The same pipeline at the target."""
    return Toy(tmp_path / "there", capsys)


def file_of(run: Toy, name: str) -> Path:
    records = Records(open_store(str(run.prefix)))
    ((key),) = records.labels()[name]
    return run.prefix / records.get(key).output_path / "text.txt"


def test_everything_finished_is_copied_once_and_is_done_and_sound_there(made: Toy, there: Toy) -> None:
    assert made("fork", "phoenix", "--as", "mine", "--set", "z_loss=0.5")[0] == 0
    code, said = made("copy", "--to", str(there.prefix))
    assert code == 0
    assert "text/web: 1 file, 3 B, copied\n" in said and "phoenix@30: 0 files, 0 B, copied\n" in said
    assert said.endswith(f"8 outputs copied, 16 B written; 0 were there: all 8 are in {there.prefix}\n")
    assert committed_bytes(there.prefix) == committed_bytes(made.prefix)
    before = {path: path.read_bytes() for path in there.prefix.rglob("*") if path.is_file()}
    assert made("copy", "--to", str(there.prefix)) == (0, f"nothing to copy: 8 outputs, all in {there.prefix}\n")
    assert {path: path.read_bytes() for path in there.prefix.rglob("*") if path.is_file()} == before
    shutil.rmtree(made.prefix)  # the first one is lost
    assert there.verdicts() == dict.fromkeys(there.verdicts().keys() - {"mine"}, "done") | {"mine": "missing"}
    assert there("verify", "all")[1].count("all as recorded") == 8
    assert "committed" in there("log", "text/web")[1] and "text = 'web'" in there("show", "text/web")[1]
    assert there("gc", "--older-than-days", "0") == (0, "nothing to collect that is older than 0 days\n")
    assert there()[0] == 0 and there.committed() >= {"mine"}


def test_named_steps_are_copied_alone_and_until_takes_what_they_need(made: Toy, there: Toy) -> None:
    assert made("copy", "text/w*", "ocelot", "--to", str(there.prefix))[0] == 0
    done = {name for name, verdict in there.verdicts().items() if verdict == "done"}
    assert done == {"text/web", "ocelot", "phoenix"}  # two legs of one trajectory
    assert made("copy", "--until", "count", "--to", str(there.prefix))[0] == 0
    assert {"text/books", "count"} <= {name for name, verdict in there.verdicts().items() if verdict == "done"}
    assert there.verdicts()["kestrel"] == "missing"


def test_what_is_damaged_is_named_with_its_cure_and_all_else_is_copied(made: Toy, there: Toy) -> None:
    file_of(made, "text/web").write_text("bew")
    code, said = made("copy", "--to", str(there.prefix))
    assert code == 1
    assert "text/web: not copied: 1 of its files are not as recorded in " in said
    assert "\n  text.txt has CRC32C " in said
    assert "--force text/web --until text/web" in said and "1 of 8 outputs not copied; then:" in said
    assert len(committed_bytes(there.prefix)) == 7 and not list(there.prefix.glob("outputs/text/web-*/*/text.txt"))
    assert made("--force", "text/web", "--until", "text/web")[0] == 0
    assert made("copy", "--to", str(there.prefix))[0] == 0
    assert committed_bytes(there.prefix) == committed_bytes(made.prefix)


def test_a_record_that_cannot_be_read_keeps_no_other_output_from_being_copied(made: Toy, there: Toy) -> None:
    ((key),) = Records(open_store(str(made.prefix))).labels()["text/web"]
    (made.prefix / "commits" / f"{key}.json").write_text("{")
    code, said = made("copy", "--to", str(there.prefix))
    assert code == 1 and "text/web: not copied: " in said and "not a record of this program" in said
    assert len(committed_bytes(there.prefix)) == 7


def test_either_prefix_mends_the_other(made: Toy, there: Toy) -> None:
    assert made("copy", "--to", str(there.prefix))[0] == 0
    expected = committed_bytes(made.prefix)
    for damaged, whole in ((there, made), (made, there)):
        file_of(damaged, "text/web").write_text("bew")
        file_of(damaged, "text/code").unlink()
        assert whole("copy", "--to", str(damaged.prefix))[1].startswith("nothing to copy")
        code, said = whole("copy", "--check", "--to", str(damaged.prefix))
        assert code == 0
        assert "text/web: 1 file, 3 B, 1 damaged file replaced at the target" in said
        assert "0 outputs copied, 2 mended, 7 B written; 6 were there" in said
        assert committed_bytes(damaged.prefix) == expected


@pytest.mark.parametrize("damage", ["lost", "damaged"])
def test_check_makes_what_tells_of_code_and_packages_again(made: Toy, there: Toy, damage: str) -> None:
    assert made("copy", "--to", str(there.prefix))[0] == 0

    def kept() -> dict[Path, bytes]:
        folders = (there.prefix / "sources", there.prefix / "environments")
        return {path: path.read_bytes() for folder in folders for path in folder.iterdir()}

    before, num_damaged = kept(), 0
    for path in before:
        if damage == "lost":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-9])
        num_damaged += 1
    assert num_damaged == 4  # one environment, and the sources of three kinds of step
    code, said = made("copy", "--check", "--to", str(there.prefix))
    assert code == 0 and "1 damaged file replaced at the target" in said and " mended, " in said
    assert kept() == before
    assert made("copy", "--check", "--to", str(there.prefix))[1].startswith("nothing to copy")


def test_check_makes_the_mark_of_a_versioned_output_s_code_again(bench: Workbench, tmp_path: Path) -> None:
    assert bench()[0] == 0
    target = LocalStore(str(tmp_path / "there"))
    assert bench("copy", "--to", target.prefix)[0] == 0
    before = Records(target).codes()
    shutil.rmtree(tmp_path / "there" / "codes")
    assert bench("copy", "--check", "--to", target.prefix)[0] == 0
    assert Records(target).codes() == before != {}


def test_check_does_not_spread_what_is_damaged_at_the_source(made: Toy, there: Toy) -> None:
    assert made("copy", "--to", str(there.prefix))[0] == 0
    whole = {path.name: path.read_bytes() for path in (there.prefix / "sources").iterdir()}
    for path in (made.prefix / "sources").iterdir():
        path.write_bytes(b"rotten")
    assert made("copy", "--check", "--to", str(there.prefix))[0] == 0
    assert {path.name: path.read_bytes() for path in (there.prefix / "sources").iterdir()} == whole


@pytest.mark.parametrize("damage", ["another figure", "no JSON"])
@pytest.mark.parametrize("options", [[], ["--check"]], ids=["copy", "check"])
def test_a_damaged_record_of_a_copy_is_told_with_the_cure_and_mended_by_it(
    made: Toy, there: Toy, damage: str, options: list[str]
) -> None:
    to = ["copy", *options, "--to", str(there.prefix)]
    assert made(*to)[0] == 0
    expected = committed_bytes(there.prefix)
    ((key),) = Records(open_store(str(there.prefix))).labels()["text/web"]
    record = there.prefix / "commits" / f"{key}.json"
    whole = record.read_text()
    crc32c = json.loads(whole)["manifest"][0]["crc32c"]
    record.write_text(whole.replace(crc32c, crc32c[::-1]) if damage == "another figure" else whole[:99])
    code, said = made(*to)
    assert code == 1 and f"its record at the target is damaged; delete {record}, and run the same command again" in said
    record.unlink()
    assert made(*to)[0] == 0
    assert committed_bytes(there.prefix) == expected and record.read_text() == whole


def test_an_output_that_somebody_made_there_stays_and_that_is_said(made: Toy, there: Toy) -> None:
    assert there("--until", "text/web")[0] == 0
    before = file_of(there, "text/web")
    code, said = made("copy", "--to", str(there.prefix))
    assert code == 0
    assert "text/web: is there from another attempt, with the same files and result; that one stays" in said
    assert "7 outputs copied, 13 B written; 1 was there" in said
    assert file_of(there, "text/web") == before


def test_a_dry_run_says_what_would_be_copied_and_writes_nothing(made: Toy, there: Toy) -> None:
    code, said = made("copy", "--dry-run", "--to", str(there.prefix))
    assert code == 2 and "text/web: not there yet\n" in said
    assert said.endswith("8 outputs to copy, 16 B; 0 are there already\n")
    code, said = made("--dry-run", "--copy-to", str(there.prefix))
    assert code == 2 and f"copies in  {there.prefix}; 0 of 8 finished outputs there, 16 B to copy\n" in said
    assert f"\ncopy them  {program()} --prefix {made.prefix} --backend local --copy-to {there.prefix}\n" in said
    assert made("--dry-run", "--until", "count")[0] == 0
    assert not there.prefix.exists()
    made("copy", "--to", str(there.prefix))
    assert made("copy", "--dry-run", "--to", str(there.prefix))[0] == 0
    code, said = made("plan", "--copy-to", str(there.prefix))
    assert code == 0 and f"copies in  {there.prefix}; 8 of 8 finished outputs there\n" in said


def test_what_is_no_second_place_is_refused_before_anything_starts(run: Toy, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run.prefix)
    (tmp_path / "file").write_text("")
    refused = {
        str(run.prefix): "the same prefix as --prefix; name another",
        str(tmp_path / "link"): "the same prefix as --prefix; name another",
        str(run.prefix / "copy"): "it lies inside --prefix",
        str(tmp_path): "--prefix lies inside it",
        "ftp://x/y": "no such kind of store",
        "": "it is empty; name a folder or a bucket",
        str(tmp_path / "file"): "nothing was started. ",
    }
    for target, why in refused.items():
        for arguments in (["copy", "--to"], ["--copy-to"]):
            code, said = run(*arguments, target)
            assert code == 1 and why in said and len(said.splitlines()) == 1, said
    assert not run.prefix.exists()
    for arguments in (["copy", "--to=a", "--to"], ["--copy-to", "a", "--copy-to"]):
        code, said = run(*arguments, str(tmp_path / "b"))
        assert code == 1 and f"{arguments[-1]}: given 2 times, and one place is copied to; call it once" in said
    assert not run.prefix.exists() and not (tmp_path / "b").exists()
    assert "copy: say where to: --to DIR" in run("copy")[1]
    for words in (["copy"], ["copy", "count"]):
        code, said = run(*words, "--to", str(tmp_path / "x"))
        assert code == 1 and f"{' '.join(words)}: nothing of it is committed in {run.prefix}; run it first" in said
    assert "name steps, or select them" in run("copy", "count", "--until", "count", "--to", str(tmp_path / "x"))[1]


def test_what_leads_to_outputs_and_explains_them_goes_along(bench: Workbench, tmp_path: Path) -> None:
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
    store.write(f"migrations/{key}/{'ef' * 32}.json", b"{}")
    store.write(f"told/{'ef' * 32}/x.json", b"of another step")
    assert bench("copy", "--to", target.prefix)[0] == 0
    assert Pins(target).all() == Pins(store).all() != []
    assert Records(target).labels()["another-name"] == [key] and Records(target).codes() == records.codes()
    assert Acceptances(target).log(key) == [accepted]
    Acceptances(store).revoke(accepted, "a mistake")
    assert [request.milestone for request in Requests(target).of_all()] == [7]
    assert len(target.list("requests")) == 1
    assert [entry.path for entry in target.list("work")] == [f"work/{key}/events/one.jsonl"]
    assert target.exists(f"migrations/{key}/{'ef' * 32}.json")
    assert set(bench.files("sources")) == {entry.path for entry in target.list("sources")}
    store.write(f"work/{key}/events/one.jsonl", b"12")
    assert bench("copy", "--to", target.prefix)[1].startswith("nothing to copy")
    assert target.read(f"work/{key}/events/one.jsonl") == b"12" and len(Acceptances(target).log(key)) == 2


def test_a_fork_of_that_name_at_the_target_stays_and_is_told(made: Toy, there: Toy) -> None:
    made("fork", "phoenix", "--as", "mine", "--set", "z_loss=0.5")
    there("fork", "phoenix", "--as", "mine", "--set", "z_loss=0.25")
    code, said = made("copy", "--to", str(there.prefix))
    assert code == 1 and "the fork mine is another one at the target, and stays" in said
    assert "mine of phoenix with z_loss=0.25" in there("ls")[1] and len(committed_bytes(there.prefix)) == 8


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


def test_acceptances_that_went_apart_stay_apart_and_that_is_said(bench: Workbench, tmp_path: Path) -> None:
    assert bench()[0] == 0
    store, target = open_store(str(bench.prefix)), LocalStore(str(tmp_path / "there"))
    ((key),) = Records(store).labels()["count"]
    code = CodeChanged(("count",), (), (), "old", "new")
    revoked = Acceptances(store).accept(key, "count", code, "at first")
    assert bench("copy", "--to", target.prefix)[0] == 0
    theirs = Acceptances(target).accept(key, "count", code, "there alone")
    assert bench("copy", "--to", target.prefix)[0] == 0  # this log has no more than that one begins with
    Acceptances(store).revoke(revoked, "a mistake")
    Acceptances(store).accept(key, "count", code, "again")
    code_said = bench("copy", "--to", target.prefix)
    assert code_said[0] == 1 and "count: what was accepted of it at the target is not what was accepted" in code_said[1]
    assert Acceptances(target).log(key) == [revoked, theirs]
    (damaged, *_) = [entry.path for entry in store.list(ACCEPTED)]
    store.write(damaged, b"{")
    code_said = bench("copy", "--to", target.prefix)
    assert code_said[0] == 1 and f"{damaged}: not an acceptance" in code_said[1]


def test_a_record_that_is_gone_for_a_moment_is_told_and_fails_the_command(
    made: Toy, there: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, copy = LocalStore(str(made.prefix)), Copier.copy
    ((victim),) = Records(store).labels()["text/web"]
    ((collected),) = Records(store).labels()["text/code"]

    def copied(self: Copier, key: str) -> Copied:
        if key not in (victim, collected):
            return copy(self, key)
        path = f"commits/{key}.json"
        data = store.read(path)
        store.delete(path)
        try:
            return copy(self, key)
        finally:
            if key == victim:  # `gc` saw that somebody needs it
                store.create(path, data)

    monkeypatch.setattr(Copier, "copy", copied)
    code, said = made("copy", "--to", str(there.prefix))
    assert code == 1 and "text/web: not copied: its record was gone for a moment" in said
    assert "text/code: was collected at the source meanwhile" in said and "1 of 7 outputs not copied; then:" in said
    monkeypatch.undo()
    code, said = made("copy", "--to", str(there.prefix))
    assert code == 0 and "all 7 are in" in said


def test_what_goes_along_and_cannot_be_read_keeps_no_output_back(
    made: Toy, there: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, opened = LocalStore(str(made.prefix)), LocalStore.open
    ((key),) = Records(store).labels()["text/web"]
    for name in ("one", "two"):
        store.write(f"work/{key}/events/{name}.jsonl", b"1")
    store.write(f"pins/{key}.json", b"{}")
    read = LocalStore.read

    def unreadable(self: LocalStore, path: str, mode: str = "rb") -> Any:
        if path.endswith("one.jsonl"):
            raise StoreError("one.jsonl: Input/output error")
        return opened(self, path, mode)

    def taken_back(self: LocalStore, path: str) -> bytes:
        if path.startswith("pins/"):
            raise FileNotFoundError(path)
        return read(self, path)

    monkeypatch.setattr(LocalStore, "open", unreadable)
    monkeypatch.setattr(LocalStore, "read", taken_back)
    code, said = made("copy", "--to", str(there.prefix))
    assert code == 1 and said.count("one.jsonl: Input/output error\n") == 1
    assert committed_bytes(there.prefix) == committed_bytes(made.prefix)
    assert [path.name for path in there.prefix.rglob("*.jsonl")] == ["two.jsonl"] and not (
        there.prefix / "pins"
    ).exists()


def test_to_look_and_to_compare_are_not_asked_for_together(made: Toy, there: Toy) -> None:
    code, said = made("copy", "--check", "--dry-run", "--to", str(there.prefix))
    assert code == 1 and "leave one of the two out" in said and len(said.splitlines()) == 1


def test_where_all_is_there_a_copy_costs_a_listing_and_a_read_on_each_side(
    made: Toy, there: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made("copy", "--to", str(there.prefix))[0] == 0
    read, reads = LocalStore.read, list[str]()

    def counting(self: LocalStore, path: str) -> bytes:
        reads.append(path)
        return read(self, path)

    monkeypatch.setattr(LocalStore, "read", counting)
    monkeypatch.setattr(Copier, "copy", lambda self, key: pytest.fail(key))
    assert made("copy", "--to", str(there.prefix))[0] == 0
    assert sum(path.startswith("commits/") for path in reads) == 2 * 8


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EFBIG], ids=["full", "too large"])
@pytest.mark.parametrize("arguments", [["copy", "--to"], ["--copy-to"]], ids=["copy", "run"])
def test_a_limit_of_the_target_is_told_once_by_the_option_that_named_it(
    made: Toy, there: Toy, monkeypatch: pytest.MonkeyPatch, arguments: list[str], number: int
) -> None:
    write_blocks, tried = LocalStore.write_blocks, list[str]()

    def limited(self: LocalStore, path: str, blocks: Iterable[bytes]) -> None:
        if self.prefix == str(there.prefix) and path.endswith("text.txt"):
            tried.append(path)
            error = OSError(number, os.strerror(number))
            raise StoreError(explain_os_error(error, self.url(path))) from error
        write_blocks(self, path, blocks)

    monkeypatch.setattr(LocalStore, "write_blocks", limited)
    monkeypatch.setattr(copy_queue, "OUTPUTS_AT_ONCE", 1)
    monkeypatch.setattr(run_copying, "POLL_SECONDS", 0.02)
    code, said = made(*arguments, str(there.prefix))
    assert code == 1 and "--prefix, then" not in said
    if number == errno.ENOSPC:
        told, num_left = f"free some space or pass another {arguments[-1]}, then", 8
        assert said.count("no room is left, and ") <= 1
        assert len(tried) <= (1 if arguments[0] == "copy" else 2)  # a run tries once more in its end
    else:
        told, num_left = "raise `ulimit -f`", 4
    assert 1 <= said.count(told) <= (1 if arguments[0] == "copy" else 2)  # when it comes about, and in the end
    assert f"{num_left} of 8 outputs " in said
    monkeypatch.undo()
    assert made("copy", "--to", str(there.prefix))[0] == 0
    assert committed_bytes(there.prefix) == committed_bytes(made.prefix)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
@pytest.mark.parametrize("where", ["outputs", "what goes along"])
def test_a_signal_ends_a_copy_with_what_is_there_and_what_goes_on(
    made: Toy, there: Toy, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, where: str
) -> None:
    copy, num_copied = Copier.copy, 3 if where == "outputs" else 8
    turns, are_copied = itertools.count(1), threading.Event()

    def copied(self: Copier, key: str) -> Copied:
        if next(turns) > num_copied:
            are_copied.set()
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                self.refuse_cancelled()
                time.sleep(0.01)
        return copy(self, key)

    waits, method = (CopyQueue, "is_over") if where == "outputs" else (Attachments, "copy")
    undisturbed = getattr(waits, method)

    def signalled(self: Any, *args: Any) -> Any:
        monkeypatch.setattr(waits, method, undisturbed)
        assert where != "outputs" or are_copied.wait(30)
        signal.raise_signal(number)
        return undisturbed(self, *args)

    monkeypatch.setattr(copy_queue, "OUTPUTS_AT_ONCE", 1)
    monkeypatch.setattr(Copier, "copy", copied)
    monkeypatch.setattr(waits, method, signalled)
    before = signal.signal(number, signal.SIG_IGN)
    try:
        code, said = made("copy", "--to", str(there.prefix))
    finally:
        signal.signal(number, before)
    assert code == 130
    assert f"{num_copied} outputs copied by now: {num_copied} of 8 are in {there.prefix}, and stay; to go on:  " in said
    assert f" copy --prefix {made.prefix} --backend local --to {there.prefix}\ninterrupted" in said
    monkeypatch.undo()
    code, said = made("copy", "--to", str(there.prefix))
    assert code == 0 and committed_bytes(there.prefix) == committed_bytes(made.prefix)


@pytest.mark.parametrize("arguments", [["copy", "--to"], ["--copy-to"]], ids=["copy", "run"])
def test_what_a_log_had_still_to_say_when_its_copier_was_killed_follows_with_the_next(
    made: Toy, there: Toy, arguments: list[str]
) -> None:
    assert there("--until", "text/code")[0] == 0  # an attempt of its own
    assert made("copy", "--to", str(there.prefix))[0] == 0
    logs = {path.relative_to(made.prefix): path for path in made.prefix.rglob("outputs/**/*.log")}
    copied = {path for path in logs if (there.prefix / path).exists()}
    assert len(copied) == len(logs) - 1 == 7
    for path in logs.values():
        path.write_text(f"{path.read_text()}its last line\n")
    assert made(*arguments, str(there.prefix))[0] == 0
    for path in copied:
        assert (there.prefix / path).read_text() == logs[path].read_text()
    (others,) = logs.keys() - copied
    assert not (there.prefix / others).exists(), "it tells of files that are not there"
