"""Secrets: planted everywhere, they appear neither below the prefix nor on the terminal.

Data from a store are never unpickled: no code can do so, and a pickle in the place of a record is an error.
"""

import ast
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from marin_dag.identity.canonical import canonical, sha256
from marin_dag.ledger.checked_json import checked_body
from marin_dag.ledger.records import Records
from marin_dag.run.shards import Shard
from marin_dag.store.local import LocalStore
from marin_dag.store.store import Store, StoreError
from tests.catalogue import expect_error

REPOSITORY = Path(__file__).parents[3]
SIGNED = (
    "https://storage.googleapis.com/bucket/object?generation=5&X-Goog-Date={0}&X-Goog-Expires=60&X-Goog-Signature={0}"
)


def call(prefix: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "SERVICE_KEY": "planted-fifteen-1515"}
    script = str(REPOSITORY / "tests/marin_dag/secrets_pipeline.py")
    command = [sys.executable, script, "--prefix", str(prefix), "--backend", "local", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_no_secret_reaches_a_record_a_log_an_error_or_the_terminal(tmp_path: Path):
    prefix = tmp_path / "runs"
    url = "with-an-error.endpoint=https://reader:planted-sixteen@elsewhere"
    calls = [
        call(prefix, "--dry-run"),
        call(prefix),
        call(prefix, "--set", url),
        call(prefix, "--set", "not-at-all.password=planted-seventeen", "why", "not-at-all"),
        call(prefix, "ls"),
        call(prefix, "--traceback", "--set", "not-at-all.nothing=https://reader:planted-eighteen@host"),
        call(prefix, "fork", "not-at-all", "--as", "other", "--set", "endpoint=https://reader:planted-nineteen@host"),
        call(prefix, "fork", "not-at-all", "--as", "other", "--set", "password=planted-twenty"),
    ]
    assert [done.returncode for done in calls] == [2, 1, 1, 0, 0, 1, 1, 1]
    for done in calls:
        assert "planted" not in done.stdout + done.stderr
    files = [path for path in prefix.rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        assert b"planted" not in path.read_bytes(), path
    shown = calls[1].stdout + calls[1].stderr
    for path in ("with-a-result: its result.text", "with-a-field-of-its-result: its result.password", ".where"):
        assert path in shown
    assert "***" in calls[3].stdout
    (record,) = [Records(LocalStore(str(prefix))).get(key) for key in Records(LocalStore(str(prefix))).committed_keys()]
    assert "https://***@host/data.bin" in json.dumps(record.identity)


def test_changed_secrets_change_an_identity_or_not_as_documented(tmp_path: Path):
    document = {"https://a:{}@host/x": True, "token={}": False, SIGNED: True, "hf_{0}{0}{0}{0}{0}{0}": False}
    for text, is_same in document.items():
        digests = {sha256(canonical(text.format(secret), "x")) for secret in ("111aaa", "222bbb")}
        assert (len(digests) == 1) == is_same, text


def test_two_signed_urls_of_one_object_are_one_identity_and_of_two_objects_two():
    first, second = canonical(SIGNED.format("2026"), "x"), canonical(SIGNED.format("2027"), "x")
    assert first == second == "https://storage.googleapis.com/bucket/object?generation=5"
    assert canonical(SIGNED.format("2026").replace("generation=5", "generation=6"), "x") != first
    assert canonical(SIGNED.format("2026").replace("object", "other"), "x") != first


def test_an_identity_ignores_the_environment(monkeypatch: pytest.MonkeyPatch):
    before = canonical("the value of a variable", "x")
    monkeypatch.setenv("SOME_TOKEN", "the value of a variable")
    assert canonical("the value of a variable", "x") == before == "the value of a variable"


@pytest.mark.parametrize(
    "text", ["pad_token: <pad>", "num_tokens=5", "tokenizer.json", "gs://bucket/folder", "ssh://git@host/repository"]
)
def test_ordinary_values_are_their_own_identity(text: str):
    assert canonical(text, "x") == text


READS_ITS_OWN = "marin_dag/code/summary_cache.py"
"""Reads files of this user's cache on this machine, never of a store, and takes only the classes that it names."""
UNPICKLING = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def unpickling(source: str) -> list[str]:
    """Return the calls and imports of a module that unpickle."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in UNPICKLING]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNPICKLING:
            found.append(node.module or "")
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            named = {word.arg: ast.unparse(word.value) for word in node.keywords}
            is_safe = "Safe" in named.get("Loader", "") or named.get("weights_only") == "True"
            if called in ("yaml.load", "yaml.unsafe_load", "yaml.full_load", "torch.load") and not is_safe:
                found.append(called)
            if called.endswith("read_pickle") or named.get("allow_pickle", "False") != "False":
                found.append(called)
    return found


def test_no_module_can_unpickle():
    modules = [
        path for part in ("marin_dag", "steps", "runtime", "pipelines") for path in (REPOSITORY / part).rglob("*.py")
    ]
    assert len(modules) > 100
    found = {str(path.relative_to(REPOSITORY)): unpickling(path.read_text()) for path in modules}
    assert {path for path, calls in found.items() if calls} == {READS_ITS_OWN}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from joblib import load",
        "np.load(file, allow_pickle=True)",
        "yaml.load(text)",
        "torch.load(path)",
        "pd.read_pickle(path)",
    ],
)
def test_the_search_for_unpickling_finds_it(line: str):
    assert unpickling(line)


class Trap:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self._path),)


def test_a_pickle_in_the_place_of_a_record_is_an_error_and_does_nothing(store: Store, tmp_path: Path):
    poison = pickle.dumps(Trap(tmp_path / "sprung"))
    store.create("commits/abc.json", poison)
    with expect_error(StoreError):
        Records(store).get("abc")
    with pytest.raises(ValueError):
        checked_body(poison)
    with pytest.raises(ValueError):
        Shard.model_validate_json(poison)
    assert not (tmp_path / "sprung").exists()


def test_a_pickle_in_the_place_of_an_array_is_an_error_and_does_nothing(tmp_path: Path):
    import numpy as np

    from runtime.text.array_files import read_array

    array = np.empty(1, dtype=object)
    array[0] = Trap(tmp_path / "sprung")
    np.save(tmp_path / "hashes.npy", array, allow_pickle=True)
    with pytest.raises(ValueError):
        read_array(str(tmp_path / "hashes.npy"))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("file", ["manifest.json", "metadata.json"])
def test_a_pickle_in_the_place_of_a_checkpoint_is_an_error_and_does_nothing(tmp_path: Path, file: str):
    from runtime.training.checkpoint import read_metadata
    from runtime.training.checkpoint_files import CheckpointFiles
    from runtime.training.checkpoint_reader import CheckpointError

    files = CheckpointFiles(str(tmp_path / "checkpoint"))
    files.write("manifest.json", b"{}")
    files.write(file, pickle.dumps(Trap(tmp_path / "sprung")))
    with expect_error(CheckpointError):
        read_metadata(str(tmp_path / "checkpoint"))
    assert not (tmp_path / "sprung").exists()
