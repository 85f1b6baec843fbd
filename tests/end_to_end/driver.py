"""Drivers of the tiny Tootsie as processes of their own, and what a prefix holds when they are gone."""

import dataclasses
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from marin_dag.ledger.records import Records
from marin_dag.store.local import LocalStore

ROOT = Path(__file__).parents[2]
SCRIPT = "tests/end_to_end/tiny_tootsie.py"
TOKEN = "0123456789abcdef" * 2
PATIENCE_SECONDS = 480.0
"""With a machine that others keep busy; only what hangs takes so long."""


@dataclasses.dataclass(frozen=True)
class Ended:
    """What a driver left on the screen."""

    code: int
    output: str
    errors: str

    @property
    def started(self) -> list[str]:
        """Steps, in the order in which attempts of them began."""
        return re.findall(r"^\S+  (\S+)  started", self.output, re.MULTILINE)


class Driver:
    """Runs commands of one script in one environment; `folder` holds what all of them share.

    Args:
        folder: raw files below `texts`.
        prefix: where outputs are.
        backend: "local" or "ray".
    """

    def __init__(self, folder: Path, prefix: Path, backend: str = "local") -> None:
        self.prefix = prefix
        self._arguments = ["--texts", str(folder / "texts"), "--prefix", str(prefix), "--backend", backend]
        self._environment = environment()

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """A driver in a process group of its own."""
        return subprocess.Popen(
            [sys.executable, SCRIPT, *arguments, *self._arguments],
            cwd=ROOT,
            env=self._environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __call__(self, *arguments: str, **variables: str) -> Ended:
        return ended(self.start(*arguments, **variables))

    def kill_in(self, digest: str, *, once: Callable[[], bool] = lambda: True, **variables: str) -> None:
        """Starts a driver and kills its process group, -9, in a step: as soon as it holds it and `once()` is true.

        Of a step that has ended nothing is left in `leases`, and on the screen a start is told up to a second late.
        """
        before = self._claims(digest)
        with self.start(**variables) as process:
            wait_for(lambda: bool(self._claims(digest) - before) and once(), process)
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        assert process.returncode == -signal.SIGKILL

    def _claims(self, digest: str) -> set[str]:
        """Of all drivers that began the step."""
        return {path.name for path in (self.prefix / "leases" / digest).glob("*.claim")}


def environment(**variables: str) -> dict[str, str]:
    """Of a process that a test starts: without what tests set for Ray in this one, and compiled as a run is."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "XLA_"))}
    return kept | {
        "PYTHONPATH": str(ROOT),
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_worker_niceness": "0",
        "JAX_PLATFORMS": "cpu",
        **variables,
    }


def ended(process: subprocess.Popen[str]) -> Ended:
    """Waits for the end of a driver."""
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    return Ended(process.returncode, output, errors)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Waits until `condition()` is true; `process` must live meanwhile."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        has_given_up = time.monotonic() > deadline
        if process is not None and has_given_up:
            process.kill()
        assert process is None or (not has_given_up and process.poll() is None), process.communicate()
        assert not has_given_up, "it never came true"
        time.sleep(0.002)


def committed(prefix: Path) -> dict[str, Any]:
    """Everything that a reader can reach: by key, the result, the manifest and a hash of each file as it lies there."""
    records = Records(LocalStore(str(prefix)))
    found = {}
    for key in sorted(records.committed_keys()):
        record = records.get(key)
        files = {
            entry.path: (entry.size_in_bytes, entry.crc32c, _sha256(prefix / record.output_path / entry.path))
            for entry in record.manifest
        }
        found[key] = {"result": record.result, "files": files}
    return found


def tree(prefix: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(prefix)): path.read_bytes() for path in sorted(prefix.rglob("*")) if path.is_file()}


def processes_with(variable: str) -> Iterator[int]:
    """Processes that were started with `NAME=VALUE` in their environment."""
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
        except OSError:  # ended meanwhile
            continue


def one_message(text: str, beginning: str) -> None:
    """Asserts that a person is told one thing, and no traceback."""
    assert text.startswith(beginning), text
    assert text.count("\n") == 1, text
    assert "Traceback" not in text


def differing(found: dict[str, Any], expected: dict[str, Any]) -> Sequence[str]:
    """Keys and files in which two sets of outputs differ: an empty list shows better than two large dictionaries."""
    lines = [f"{key}: only in one of them" for key in found.keys() ^ expected.keys()]
    for key in found.keys() & expected.keys():
        one, other = found[key], expected[key]
        lines += [f"{key}: other result"] * (one["result"] != other["result"])
        paths = one["files"].keys() | other["files"].keys()
        lines += [f"{key}: {path}" for path in sorted(paths) if one["files"].get(path) != other["files"].get(path)]
    return lines


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
