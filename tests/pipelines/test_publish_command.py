"""`publish`: exports become revisions of a repository or a folder, each once, also after kills and lost answers."""

import dataclasses
import hashlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from marin_dag.cli.session import program_words
from runtime.interop import hub_repository
from runtime.interop.revisions import Revision, RevisionFile, RevisionsFolder, in_order, is_ahead, revision_name
from tests.catalogue import check_message
from tests.gcs_server.faults import Fault
from tests.hub_server.server import HubServer, Repository, git_id
from tests.pipelines.publishing import main, write_exports

# The client uploads in a way that its HTTP library deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")
TOKEN = "hf_" + "planted" * 4
REPO = "someone/toy"
REVISIONS = {2: "first-step2-tokens600k", 4: "first-step4-tokens1M", 8: "first-step8-tokens2M"}
PATTERN = "hf_export/first-*"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(hub_repository, "PAUSES", (0.0, 0.0))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with HubServer(TOKEN) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def publish(prefix: Path, *words: str, to: str = f"hub:{REPO}") -> int:
    return main(["publish", *words, "--to", to, "--prefix", str(prefix)])


def shortened(text: str, prefix: Path) -> str:
    """Return a text without the program that runs the tests, the prefix and the digests of exports."""
    text = text.replace(" ".join(program_words()), "python RECIPE.py").replace(str(prefix), "PREFIX")
    return re.sub(r"(hf_export/[a-z]+-\d+)-[0-9a-f]{8}/", r"\1-<hex>/", text)


def check_published(repository: Repository, exports: dict[int, dict[str, bytes]], newest: int) -> None:
    """Check the files of each revision, and that each has one commit."""
    for number, files in exports.items():
        check_files(repository.files(REVISIONS[number]), files, REVISIONS[number])
    check_files(repository.files("main"), exports[newest], "main")
    titles = {name: list(found) for name, found in repository.titles.items()}
    assert titles.pop("main")[-1] == f"{REVISIONS[newest]} (hot weights, float32)"
    assert titles == {REVISIONS[number]: [f"{REVISIONS[number]} (hot weights, float32)"] for number in exports}


def check_files(found: dict[str, bytes], files: dict[str, bytes], revision: str) -> None:
    card = found["README.md"].decode()
    assert card.startswith(files["README.md"].decode())
    assert f"revision `{revision}`" in card
    assert {**found, "README.md": b""} == {**files, "README.md": b""}


def test_each_export_becomes_a_branch_and_the_last_main_and_a_second_call_commits_nothing(tmp_path, hub, capsys):
    exports = write_exports(tmp_path)
    assert publish(tmp_path, PATTERN, "--dry-run") == 2
    assert not hub.repositories
    assert all(request.startswith("GET") for request in hub.requests)
    assert publish(tmp_path, PATTERN, "--private") == 0
    repository = hub.repositories[REPO]
    check_published(repository, exports, newest=8)
    assert repository.is_private
    assert repository.titles["main"][1:] == repository.titles[REVISIONS[8]]
    assert all(name in repository.files("main")["README.md"].decode() for name in REVISIONS.values())
    num_commits = len(repository.commits)
    assert publish(tmp_path, PATTERN) == 0
    assert publish(tmp_path, PATTERN, "--dry-run") == 0
    assert len(repository.commits) == num_commits
    check_message(shortened(capsys.readouterr().out, tmp_path))


def test_a_later_milestone_is_added_and_moves_main_alone(tmp_path, hub):
    first = write_exports(tmp_path, names=("hf_export/first-2", "hf_export/first-4"))
    assert publish(tmp_path, "hf_export/first-2", "hf_export/first-4") == 0
    repository = hub.repositories[REPO]
    heads = {name: repository.head(name) for name in REVISIONS.values() if name in repository.branches}
    exports = write_exports(tmp_path, names=("hf_export/first-8",))
    assert publish(tmp_path, PATTERN) == 0
    check_published(repository, first | exports, newest=8)
    assert heads == {name: repository.head(name) for name in heads}
    assert len(repository.titles["main"]) == 3


SHARDS = dict.fromkeys(
    ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"], b"old"
)
OF_OTHERS = {"LICENSE": b"terms", "eval/results.json": b"{}", "pytorch_model.bin": b"weights", "my_code.py": b"pass"}


def test_weights_that_the_export_lacks_are_removed_a_changed_file_replaced_and_files_of_others_kept(
    tmp_path, hub, capsys
):
    prefix = tmp_path / "prefix"
    exports = write_exports(prefix)
    assert publish(prefix, "hf_export/first-2") == 0
    repository = hub.repositories[REPO]
    name = REVISIONS[2]
    repository.commits[repository.head(name)] |= {"config.json": b"{}"} | SHARDS | OF_OTHERS
    folder = tmp_path / "published"
    assert publish(prefix, "hf_export/first-2", to=str(folder)) == 0
    for file, content in ({"config.json": b"{}"} | SHARDS | OF_OTHERS).items():
        (folder / name / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / file).write_bytes(content)
    capsys.readouterr()
    assert publish(prefix, "hf_export/first-2", "--dry-run") == 2
    assert publish(prefix, "hf_export/first-2") == 0
    check_message(shortened(capsys.readouterr().out, prefix))
    assert publish(prefix, "hf_export/first-2", to=str(folder)) == 0
    in_folder = {str(path.relative_to(folder / name)): path.read_bytes() for path in (folder / name).rglob("*.*")}
    in_folder["LICENSE"] = (folder / name / "LICENSE").read_bytes()
    for found in (repository.files(name), in_folder):
        check_files(found, exports[2] | OF_OTHERS, name)


@pytest.mark.parametrize("is_folder", [False, True], ids=["hub", "folder"])
def test_main_goes_back_to_an_earlier_revision_only_when_asked(tmp_path, hub, capsys, is_folder):
    exports = write_exports(tmp_path / "prefix")
    to = str(tmp_path / "published") if is_folder else f"hub:{REPO}"

    def files_of(name: str) -> dict[str, bytes]:
        if is_folder:
            return {path.name: path.read_bytes() for path in Path(to, name).iterdir()}
        return hub.repositories[REPO].files(name)

    assert publish(tmp_path / "prefix", "hf_export/first-2", "hf_export/first-8", to=to) == 0
    capsys.readouterr()
    assert publish(tmp_path / "prefix", "hf_export/first-4", to=to) == 1
    check_message(capsys.readouterr().err.replace(to, "TARGET"))
    assert publish(tmp_path / "prefix", "hf_export/first-4", "--dry-run", to=to) == 1
    assert REVISIONS[4] not in (RevisionsFolder(to).names() if is_folder else hub.repositories[REPO].branches)
    check_files(files_of("main"), exports[8], "main")
    assert publish(tmp_path / "prefix", "hf_export/first-4", "hf_export/first-8", to=to) == 0
    check_files(files_of(REVISIONS[4]), exports[4], REVISIONS[4])
    capsys.readouterr()
    assert publish(tmp_path / "prefix", "hf_export/first-4", "--rewind-main", "--dry-run", to=to) == 2
    assert publish(tmp_path / "prefix", "hf_export/first-4", "--rewind-main", to=to) == 0
    check_message(shortened(capsys.readouterr().out, tmp_path / "prefix").replace(to, "TARGET"))
    check_files(files_of("main"), exports[4], "main")
    assert publish(tmp_path / "prefix", "hf_export/first-4", to=to) == 0


@pytest.mark.parametrize(
    "fault",
    [
        Fault("lost_reply", where="/commit/", count=1),
        Fault("status", where="/commit/", count=1, status=503),
        Fault("reset", where="/branch/", count=1),
        Fault("lost_reply", where="repos/create", count=1),
    ],
    ids=lambda fault: f"{fault.kind}{fault.where.replace('/', '-')}",
)
def test_a_lost_answer_or_a_busy_hub_leaves_one_commit_for_each_revision(tmp_path, hub, fault):
    exports = write_exports(tmp_path)
    hub.faults.add(fault)
    assert publish(tmp_path, PATTERN) == 0
    check_published(hub.repositories[REPO], exports, newest=8)
    assert len(hub.repositories[REPO].commits) == 1 + len(REVISIONS) + 1


EARLIER = {"config.json": b"{}", "model.safetensors": b"earlier"}
"""Files that main has before the first kill."""
KILLS = (
    (rf"POST /api/models/{REPO}/branch/", True),
    (rf"PUT /lfs/{REPO}/", True),
    (rf"POST /api/models/{REPO}/commit/", False),
    (rf"POST /api/models/{REPO}/commit/", True),
)
"""Requests, and whether the publisher dies after the hub has applied it, or before."""


def publish_and_kill(hub: HubServer, child: Any, place: tuple[str, bool] | None) -> None:
    """Let the child publish, and kill it at a request; without a place let it finish."""
    started = queue.Queue[int](1)
    is_killed = threading.Event()

    def kill(request: str, is_applied: bool) -> None:
        if place is not None and request.startswith(place[0]) and is_applied == place[1] and not is_killed.is_set():
            is_killed.set()
            os.kill(started.get(timeout=60), signal.SIGKILL)

    hub.on_request = kill
    child.stdin.write("publish\n")
    child.stdin.flush()
    started.put(int(child.stdout.readline()))
    assert int(child.stdout.readline()) == (0 if place is None else -signal.SIGKILL), place


def publish_to_main(repository: Repository) -> None:
    repository.branches["main"].append(repository.add("earlier", EARLIER))
    repository.titles["main"].append("earlier")


def check_whole_or_empty(repository: Repository, folder: Path) -> None:
    """Check that no branch has another revision's files; one without a commit of its own is empty."""
    for name in repository.branches.keys() - {"main"}:
        files = {path.name: path.read_bytes() for path in (folder / name).iterdir()}
        assert repository.files(name) == (files if repository.titles[name] else {})


def test_a_publisher_killed_at_any_of_its_writes_is_resumed_without_a_second_commit(tmp_path, hub):
    for number, name in REVISIONS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(bytes([number]) * 1000)
        (tmp_path / name / "config.json").write_bytes(b"{}")
    repository = hub.repositories[REPO] = Repository(is_private=False)
    publish_to_main(repository)
    environment = os.environ | {"HF_HUB_DISABLE_XET": "1"}
    words = [sys.executable, "-m", "tests.hub_server.publisher", REPO, hub.url, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as child:
        for place in (*KILLS, None):
            publish_and_kill(hub, child, place)
            check_whole_or_empty(repository, tmp_path)
        child.stdin.close()
        assert child.wait(60) == 0
    assert repository.branches.keys() == {"main", *REVISIONS.values()}
    assert repository.titles == {"main": ["initial commit", "earlier"]} | {name: [name] for name in REVISIONS.values()}
    assert repository.files("main") == EARLIER
    uploads = [request for request in hub.requests if request.startswith("PUT")]
    assert len(uploads) == len(set(uploads)) == len(REVISIONS), "weights that are there are not uploaded again"


def test_the_token_is_in_no_output_and_no_file(tmp_path, hub, capfd):
    write_exports(tmp_path)
    hub.faults.add(Fault("status", where="/commit/", status=400, document=f'{{"error": "bad request with {TOKEN}"}}'))
    assert publish(tmp_path, PATTERN) == 1
    printed = capfd.readouterr()
    assert "***" in printed.err and TOKEN not in printed.out + printed.err
    assert not any(TOKEN.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    uploads = [headers for request, headers in zip(hub.requests, hub.headers, strict=True) if "PUT /lfs" in request]
    assert uploads and not any("authorization" in headers for headers in uploads), "storage gets no token"


@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", where="/commit/", status=412),
        Fault("status", where="/commit/", status=403),
        Fault("status", where="/refs", status=503),
        Fault("reset", where="/refs"),
    ],
    ids=["another-commit", "forbidden", "busy", "unreachable"],
)
def test_a_hub_that_refuses_or_does_not_answer_is_an_error_with_the_next_command(tmp_path, hub, capsys, fault):
    write_exports(tmp_path)
    hub.faults.add(fault)
    assert publish(tmp_path, PATTERN) == 1
    check_message(capsys.readouterr().err)


def test_without_a_login_nothing_is_made(tmp_path, hub, monkeypatch, capsys):
    write_exports(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert publish(tmp_path, PATTERN) == 1
    check_message(capsys.readouterr().err)
    assert not hub.repositories


@pytest.mark.parametrize(
    "words",
    [
        ("hf_export/nothing", "--to", "folder"),
        ("hf_export/first-8", "--to", "folder"),
        ("hf_export/first-2",),
        ("hf_export/first-2", "--to", "hub:name"),
        ("hf_export/first-2", "--to", "hub:foo/ba r"),
        ("hf_export/first-2", "--to", "gs://bucket/folder"),
        ("hf_export/first-2", "--to", "folder", "--private"),
    ],
)
def test_what_cannot_be_published_is_refused_before_anything_is_written(tmp_path, capsys, words):
    write_exports(tmp_path, names=("hf_export/first-2",))
    assert main(["publish", *words, "--prefix", str(tmp_path)]) == 1
    check_message(capsys.readouterr().err)
    assert not Path("folder").exists()


def test_neither_the_prefix_of_the_run_nor_a_file_is_published_to(tmp_path, capsys):
    prefix = tmp_path / "prefix"
    write_exports(prefix, names=("hf_export/first-2",))
    (tmp_path / "file").write_text("kept")
    before = sorted(tmp_path.rglob("*"))
    for to in (f"{prefix}/.", f"{prefix}/published/model", str(tmp_path / "file")):
        assert publish(prefix, "hf_export/first-2", to=to) == 1
        check_message(capsys.readouterr().err)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["main/model-00001-of-00002.safetensors", f"{REVISIONS[2]}/README.md"])
def test_a_file_in_the_folder_that_no_publish_wrote_is_never_lost(tmp_path, capsys, name):
    write_exports(tmp_path / "prefix")
    file = tmp_path / "published" / name
    file.parent.mkdir(parents=True)
    file.write_text("precious")
    for words in (PATTERN,), (PATTERN, "--dry-run"):
        assert publish(tmp_path / "prefix", *words, to=str(tmp_path / "published")) == 1
        check_message(capsys.readouterr().err.replace(str(tmp_path), "FOLDER"))
    assert [path for path in (tmp_path / "published").rglob("*") if path.is_file()] == [file]
    assert file.read_text() == "precious"
    file.rename(tmp_path / "moved")
    assert publish(tmp_path / "prefix", PATTERN, to=str(tmp_path / "published")) == 0


def test_a_pattern_takes_what_is_finished_and_names_the_rest(tmp_path, hub, capsys):
    exports = write_exports(tmp_path, names=("hf_export/first-2",))
    assert publish(tmp_path, PATTERN) == 0
    check_published(hub.repositories[REPO], exports, newest=2)
    check_message(capsys.readouterr().err)


def test_files_of_a_remote_prefix_are_copied_and_hashed_as_local_ones(tmp_path):
    content = bytes(range(256)) * 1000
    (tmp_path / "local").write_bytes(content)
    fsspec.filesystem("memory").pipe_file("/bucket/remote", content)
    local = RevisionFile.read(str(tmp_path / "local"), tmp_path / "unused")
    remote = RevisionFile.read("memory://bucket/remote", tmp_path / "copies/remote")
    assert not (tmp_path / "unused").exists()
    assert remote == dataclasses.replace(local, path=tmp_path / "copies/remote")
    assert remote.path.read_bytes() == content
    assert (local.sha256, local.git_id) == (hashlib.sha256(content).hexdigest(), git_id(content))


def test_a_damaged_file_of_an_export_is_not_published(tmp_path, hub, capsys):
    write_exports(tmp_path)
    weights = next(tmp_path.glob("outputs/**/first-4-*/**/model.safetensors"))
    weights.write_bytes(b"\0" + weights.read_bytes()[1:])
    assert publish(tmp_path, PATTERN) == 1
    check_message(shortened(capsys.readouterr().err, tmp_path))
    assert REVISIONS[4] not in hub.repositories[REPO].branches


def test_a_folder_gets_a_folder_for_each_revision(tmp_path, monkeypatch):
    exports = write_exports(tmp_path / "prefix")
    folder = tmp_path / "published"
    (folder / f".partial-{REVISIONS[4]}").mkdir(parents=True)  # of a killed call
    (folder / f".partial-{REVISIONS[4]}" / "torn").write_bytes(b"torn")
    assert publish(tmp_path / "prefix", PATTERN, "--dry-run", to=str(folder)) == 2
    assert publish(tmp_path / "prefix", PATTERN, to=str(folder)) == 0
    read = {
        path.name: {file.name: file.read_bytes() for file in path.iterdir()}
        for path in folder.iterdir()
        if path.is_dir()
    }
    assert set(read) == {*REVISIONS.values(), "main"}
    for number, files in exports.items():
        check_files(read[REVISIONS[number]], files, REVISIONS[number])
    check_files(read["main"], exports[8], "main")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert publish(tmp_path / "prefix", PATTERN, to=str(folder)) == 0
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    (folder / "main" / "config.json").write_bytes(b"{}")
    assert publish(tmp_path / "prefix", PATTERN, to=str(folder)) == 0
    assert (folder / "main" / "config.json").read_bytes() == exports[8]["config.json"]


KILLED_AT_RENAME = """
import os, sys
from pathlib import Path
from runtime.interop.revisions import Revision, RevisionFile, RevisionsFolder
folder, file = sys.argv[1], Path(sys.argv[2])
count, rename = 0, Path.rename
def killed(path, target):
    global count
    count += 1
    if count == 2:
        os.kill(os.getpid(), 9)
    return rename(path, target)
Path.rename = killed
RevisionsFolder(folder).write(Revision("main", "main", {file.name: RevisionFile.of(file)}), print)
"""
"""Writes main into a folder, and dies before its second rename."""


def test_a_kill_between_the_renames_of_a_folder_loses_neither_the_old_nor_the_new(tmp_path):
    old, new = tmp_path / "old" / "config.json", tmp_path / "new" / "config.json"
    for file in (old, new):
        file.parent.mkdir()
        file.write_text(file.parent.name)
    folder = RevisionsFolder(str(tmp_path / "published"))
    revisions = [Revision("main", "main", {"config.json": RevisionFile.of(file)}) for file in (old, new)]
    folder.write(revisions[0], print)
    words = [sys.executable, "-c", KILLED_AT_RENAME, folder.address, str(new)]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    assert (tmp_path / "published" / ".old-main" / "config.json").read_text() == "old"
    assert folder.names() == ["main"]
    assert folder.changes(revisions[0]) == (True, (), ())
    assert folder.changes(revisions[1]) == (True, ("config.json",), ())
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    assert (tmp_path / "published" / "main" / "config.json").read_text() == "old", "restored before anything else"
    for revision, text in zip(revisions, ("old", "new"), strict=True):
        folder.write(revision, print)
        assert [path.name for path in (tmp_path / "published").iterdir()] == ["main"]
        assert (tmp_path / "published" / "main" / "config.json").read_text() == text


def test_two_exports_of_one_milestone_are_no_two_revisions(tmp_path, capsys):
    write_exports(tmp_path / "prefix", names=("hf_export/first-2", "hf_export/again-2"))
    assert publish(tmp_path / "prefix", "hf_export/*-2", to=str(tmp_path / "published")) == 1
    check_message(capsys.readouterr().err)


def test_names_of_revisions_say_step_and_tokens_and_sort_by_step():
    assert revision_name("phoenix", 1_320_001, 5_536_000_000_000) == "phoenix-step1320001-tokens5T"
    assert revision_name("merge/last 50", 7, 999) == "merge-last-50-step7-tokens999"
    names = {revision_name("a", step, 1000 * step) for step in (1000, 9, 200)} | {"main", "refs-pr-1"}
    assert is_ahead("a-step2-tokens1B", "a-step9-tokens999M") and is_ahead("a-step9-tokens1B", "b-step8-tokens1B")
    assert not is_ahead("a-step9-tokens1B", "a-step9-tokens1B")
    assert [name.split("-")[1] for name in in_order(names)] == ["step9", "step200", "step1000"]
