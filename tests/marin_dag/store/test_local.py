"""LocalStore: power cuts, links, odd names and full disks."""

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from marin_dag.ledger.records import Records, make_manifest
from marin_dag.store.local import LocalStore
from marin_dag.store.retry import is_transient
from marin_dag.store.store import StoreError
from tests.catalogue import expect_error
from tests.marin_dag.kill_everywhere import committed_bytes

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return every file and folder that was flushed to the disk, in order."""
    paths: list[str] = []
    fsync = os.fsync

    def recording(descriptor: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115 -- of a descriptor
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recording)
    return paths


def test_every_folder_on_the_way_to_a_record_is_flushed(tmp_path: Path, flushed: list[str]):
    LocalStore(str(tmp_path / "runs")).create("commits/deep/x", b"1")
    for folder in (tmp_path, tmp_path / "runs", tmp_path / "runs/commits", tmp_path / "runs/commits/deep"):
        assert str(folder) in flushed


def test_every_folder_that_a_step_made_is_flushed_before_its_record(tmp_path: Path, flushed: list[str]):
    store = LocalStore(str(tmp_path / "runs"))
    output = Path(store.make_folder("outputs/x/attempt"))
    (output / "shards/00000/part").mkdir(parents=True)
    (output / "shards/00000/part/file").write_bytes(b"1")
    flushed.clear()
    make_manifest(store, "outputs/x/attempt")
    file = output / "shards/00000/part/file"
    assert flushed[0] == str(file)
    folders = [folder for folder in file.parents if folder.is_relative_to(tmp_path / "runs")]
    assert flushed[1:] == [str(folder) for folder in folders]


def test_streams_and_copies_flush_the_folders_that_they_make(tmp_path: Path, flushed: list[str]):
    store = LocalStore(str(tmp_path / "runs"))
    store.write_blocks("a/b/file", iter([b"1"]))
    assert str(tmp_path / "runs/a") in flushed
    store.copy("a/b/file", "c/d/file")
    assert str(tmp_path / "runs/c") in flushed


@pytest.mark.parametrize("target", ["there", "gone", "folder"])
def test_a_link_in_an_output_is_refused_and_not_dropped(tmp_path: Path, target: str):
    store = LocalStore(str(tmp_path))
    store.write("outputs/x/there", b"1")
    store.write("outputs/x/folder/inside", b"1")
    (tmp_path / "outputs/x/link").symlink_to(target)
    with expect_error(StoreError):
        make_manifest(store, "outputs/x")


def test_a_pipe_in_an_output_is_refused_and_not_waited_for(tmp_path: Path):
    store = LocalStore(str(tmp_path))
    store.write("outputs/x/there", b"1")
    os.mkfifo(tmp_path / "outputs/x/pipe")
    with expect_error(StoreError):
        make_manifest(store, "outputs/x")


def test_a_file_of_a_step_that_looks_temporary_is_part_of_its_output(tmp_path: Path):
    store = LocalStore(str(tmp_path))
    store.write("outputs/x/.tmp-cache", b"1")
    store.write("outputs/x/.hidden", b"1")
    assert [entry.path for entry in make_manifest(store, "outputs/x")] == [".hidden", ".tmp-cache"]


def test_two_writers_of_one_file_leave_the_whole_file_of_the_last(tmp_path: Path):
    store = LocalStore(str(tmp_path))

    def interrupted_by_another() -> Iterator[bytes]:
        yield b"first"
        store.write_blocks("work/x/events", iter([b"second"]))
        assert store.read("work/x/events") == b"second"

        def failing() -> Iterator[bytes]:
            yield b"half of the th"
            raise KeyError("the source is gone")

        with pytest.raises(KeyError):
            store.write_blocks("work/x/events", failing())
        yield b" one"

    store.write_blocks("work/x/events", interrupted_by_another())
    assert store.read("work/x/events") == b"first one"
    assert [path.name for path in (tmp_path / "work/x").iterdir()] == ["events"]


def test_temporary_files_of_killed_writers_are_swept(tmp_path: Path):
    store, temporary = LocalStore(str(tmp_path)), f".tmp-{'0' * 32}"
    for path in (temporary, f"deep/{temporary}", ".tmp-cache", "file"):
        store.write(f"outputs/x/{path}", b"1")
    store.sweep("outputs/x")
    store.sweep("outputs/none")
    left = {str(path.relative_to(tmp_path / "outputs/x")) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {".tmp-cache", "file"}


def test_an_unresponsive_network_disk_is_a_transient_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def stale(descriptor: int) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "fsync", stale)
    with pytest.raises(StoreError) as caught:
        LocalStore(str(tmp_path)).write("a", b"1")
    assert is_transient(caught.value)


@contextlib.contextmanager
def small_disk(folder: Path, kibibytes: int) -> Iterator[bool]:
    """Mount a small disk at `folder`; yield False, with an ordinary folder, if this process may not mount."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={kibibytes}k"]
    mounted = subprocess.run(["mount", *options, "tmpfs", str(folder)], capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


def run_toy(prefix: Path, marks: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    marks.mkdir(exist_ok=True)
    command = [sys.executable, "tests/marin_dag/toy_driver.py", str(prefix), "local", "0", str(marks)]
    every = {**os.environ, "PYTHONPATH": str(REPOSITORY), "LARGE": "1", **environment}
    return subprocess.run(command, env=every, cwd=REPOSITORY, capture_output=True, text=True)


def test_the_same_command_completes_a_run_after_a_full_disk(tmp_path: Path):
    disk, undisturbed = tmp_path / "disk", tmp_path / "undisturbed"
    assert run_toy(undisturbed, tmp_path / "marks").returncode == 0
    pages = sum(-(-path.stat().st_size // 4096) for path in undisturbed.rglob("*") if path.is_file())
    # The ballast leaves room for all but the last step, which takes 300 KB with log and record.
    with small_disk(disk, pages * 4 + 400) as is_mounted:
        prefix, ballast = disk / "runs", disk / "ballast"
        if is_mounted:
            ballast.write_bytes(b"x" * 650 * 1024)
        # If no disk can be mounted, the kernel's limit on file sizes replaces it.
        done = run_toy(prefix, tmp_path / "marks2", **({} if is_mounted else {"FILE_LIMIT": "50000"}))
        shown = done.stdout + done.stderr
        assert done.returncode == 1, shown
        assert os.strerror(errno.ENOSPC if is_mounted else errno.EFBIG) in shown
        assert "Traceback" not in shown
        kept = Records(LocalStore(str(prefix))).committed_keys()
        assert len(kept) >= 6
        if is_mounted:
            ballast.unlink()
        again = run_toy(prefix, tmp_path / "marks2")
        assert again.returncode == 0, again.stdout
        assert kept < Records(LocalStore(str(prefix))).committed_keys()
        assert committed_bytes(prefix) == committed_bytes(undisturbed)


def test_a_disk_that_is_full_at_the_start_gives_no_traceback(tmp_path: Path):
    with small_disk(tmp_path / "disk", 64) as is_mounted:
        if is_mounted:
            (tmp_path / "disk/ballast").write_bytes(b"x" * 63 * 1024)
        done = run_toy(tmp_path / "disk/runs", tmp_path / "marks", **({} if is_mounted else {"FILE_LIMIT": "2500"}))
        shown = done.stdout + done.stderr
        assert done.returncode == 1
        assert os.strerror(errno.ENOSPC if is_mounted else errno.EFBIG) in shown
        assert "Traceback" not in shown
        if is_mounted:
            (tmp_path / "disk/ballast").unlink()


def test_tidy_deletes_empty_folders_only(tmp_path: Path):
    store = LocalStore(str(tmp_path / "runs"))
    for path in ("names/a/b/one.json", "names/a/two.json"):
        store.create(path, b"1")
    store.delete("names/a/b/one.json")
    for _ in range(2):  # a second time finds nothing
        store.tidy("names/a/b/one.json")
        assert [path.name for path in (tmp_path / "runs/names/a").iterdir()] == ["two.json"]
    store.delete("names/a/two.json")
    store.tidy("names/a/two.json")
    assert (tmp_path / "runs").is_dir() and not list((tmp_path / "runs").iterdir())


def test_a_writer_makes_a_folder_again_that_is_tidied_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = LocalStore(str(tmp_path / "runs"))
    is_dir, tidied = Path.is_dir, []

    def is_dir_until_asked(path: Path) -> bool:
        there = is_dir(path)
        if there and path.name == "a" and not tidied:
            tidied.append(path)
            path.rmdir()
        return there

    monkeypatch.setattr(Path, "is_dir", is_dir_until_asked)
    store.make_folder("labels/a")
    assert store.create("labels/a/one", b"1"), "gone before the file is made"
    assert tidied.pop()
    store.delete("labels/a/one")
    assert Path(store.make_folder("labels/a/b")).exists(), "gone before a folder in it is"
    assert tidied


def test_a_temporary_file_of_a_killed_writer_is_never_listed(tmp_path: Path):
    store = LocalStore(str(tmp_path))
    store.write("commits/a", b"1")
    (tmp_path / "commits" / f".tmp-{'0a' * 16}").write_bytes(b"torn")
    assert [entry.path for entry in store.list("commits")] == ["commits/a"]


@pytest.mark.parametrize("operation", ["create", "write"])
def test_a_write_beyond_a_limit_leaves_nothing(tmp_path: Path, operation: str):
    # A real limit of the kernel, in a child: the file may grow to 4 KiB and no further.
    code = f"""
import resource, signal, sys
from marin_dag.store.local import LocalStore
from marin_dag.store.store import StoreError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    LocalStore({str(tmp_path)!r}).{operation}("commits/a", b"x" * 100_000)
except StoreError as error:
    print(error)
    sys.exit(3)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert os.strerror(errno.EFBIG) in done.stdout
    assert list((tmp_path / "commits").iterdir()) == []


def test_a_full_disk_is_one_clear_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with expect_error(StoreError):
        LocalStore(str(tmp_path)).write("commits/a", b"1")


def test_a_prefix_without_write_permission_is_one_clear_message(tmp_path: Path):
    """Run in a process without the rights of root, which may write anywhere."""
    code = f"""
import os, sys
sys.path.insert(0, {str(Path.cwd())!r})
from marin_dag.store.local import LocalStore
from marin_dag.store.store import StoreError
if os.getuid() == 0:
    os.setuid(65534)
try:
    LocalStore({str(tmp_path / "runs")!r}).create("commits/a", b"1")
except StoreError as error:
    print(error)
    sys.exit(3)
"""
    if os.getuid() == 0:  # other users cannot enter pytest's folders
        for folder in tmp_path.parents[:2]:
            folder.chmod(0o755)
    tmp_path.chmod(0o555)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    tmp_path.chmod(0o755)
    assert done.returncode == 3, done.stderr
    assert os.strerror(errno.EACCES) in done.stdout


def test_a_file_in_the_place_of_the_prefix_is_one_clear_message(tmp_path: Path):
    (tmp_path / "runs").write_text("not a folder")
    with expect_error(StoreError):
        LocalStore(str(tmp_path / "runs")).create("commits/a", b"1")


def test_a_file_system_without_hard_links_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def refuse(source: object, target: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(os, "link", refuse)
    with expect_error(StoreError):
        LocalStore(str(tmp_path)).create("commits/a", b"1")


def test_a_file_system_that_takes_no_folders_is_one_clear_message():
    with expect_error(StoreError):
        LocalStore("/proc/runs").create("commits/a", b"1")
