"""Drivers of the tiny Tootsie in their own processes, and the contents of a prefix after them."""

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
"""Enough on a busy machine; only a hang takes longer."""


@dataclasses.dataclass(frozen=True)
class Ended:
    """Exit code and output of a driver."""

    code: int
    output: str
    errors: str

    @property
    def ran(self) -> list[str]:
        """Steps that this driver ran, in the order in which they ended: only these have a duration."""
        return re.findall(r"^\S+  (\S+)  done \(\d+/\d+\):  [\d.]+ (?:s|min|h)\b", self.output, re.MULTILINE)


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
        """Start a driver in its own process group."""
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
        """Start a driver, and kill its process group with SIGKILL once it holds the step and `once()` is true.

        The lease shows the start: an ended step leaves none, and the screen shows a start up to a second late.
        """
        before = self._claims(digest)
        with self.start(**variables) as process:
            wait_for(lambda: bool(self._claims(digest) - before) and once(), process)
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        assert process.returncode == -signal.SIGKILL

    def _claims(self, digest: str) -> set[str]:
        """Return the claims of all drivers that began the step."""
        return {path.name for path in (self.prefix / "leases" / digest).glob("*.claim")}


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a driver, without the Ray settings of this process."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return kept | {
        "PYTHONPATH": str(ROOT),
        "RAY_AUTH_TOKEN": TOKEN,
        "RAY_worker_niceness": "0",
        "JAX_PLATFORMS": "cpu",
        **variables,
    }


def ended(process: subprocess.Popen[str]) -> Ended:
    """Wait for the end of a driver."""
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    return Ended(process.returncode, output, errors)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str] | None = None) -> None:
    """Wait until `condition()` is true; `process` must live meanwhile."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        has_given_up = time.monotonic() > deadline
        if process is not None and has_given_up:
            process.kill()
        assert process is None or (not has_given_up and process.poll() is None), process.communicate()
        assert not has_given_up, "it never came true"
        time.sleep(0.002)


def committed(prefix: Path) -> dict[str, Any]:
    """Return by key all that a reader can reach: the result, the manifest, and a hash of each file."""
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
    """Return every file below a folder."""
    return {str(path.relative_to(prefix)): path.read_bytes() for path in sorted(prefix.rglob("*")) if path.is_file()}


def processes_with(variable: str) -> Iterator[int]:
    """Yield the processes that were started with `NAME=VALUE` in their environment."""
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
        except OSError:  # ended meanwhile
            continue


def one_message(text: str, beginning: str) -> None:
    """Assert that the output is one line, and no traceback."""
    assert text.startswith(beginning), text
    assert text.count("\n") == 1, text
    assert "Traceback" not in text


def differing(found: dict[str, Any], expected: dict[str, Any]) -> Sequence[str]:
    """Return the keys and files in which two sets of outputs differ; a list is easier to read than two dictionaries."""
    lines = [f"{key}: only in one of them" for key in found.keys() ^ expected.keys()]
    for key in found.keys() & expected.keys():
        one, other = found[key], expected[key]
        lines += [f"{key}: other result"] * (one["result"] != other["result"])
        paths = one["files"].keys() | other["files"].keys()
        lines += [f"{key}: {path}" for path in sorted(paths) if one["files"].get(path) != other["files"].get(path)]
    return lines


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
