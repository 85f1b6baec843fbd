"""Summary cache: what earlier processes on this machine learned of source files, so that a plan need not parse them.

A summary is kept by the hash of the file's content. What is missing, torn or of another version is read from the
source again: the cache costs or saves time, and decides nothing.
"""

import contextlib
import hashlib
import io
import os
import pickle
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from marin_dag.code import effects, import_time, messages, reads, references, summary, syntax
from marin_dag.code.pure import quiet_packages
from marin_dag.code.summary import Summary, summarize

_CLASSES = {
    (kind.__module__, kind.__name__): kind
    for module in (effects, import_time, messages, reads, references, summary, syntax)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, tuple | references.Aspect)
}
"""All that a file of the cache may be made of."""
MAX_FILES = 64
"""Files that are kept: one for each project, version of this code and Python."""
_CHECKSUM_LENGTH = hashlib.sha256().digest_size


class SummaryCache:
    """The summaries of the modules of one project, in one file below `$MARIN_DAG_CACHE` or `~/.cache/marin-dag`.

    `project` differs between the projects of a machine, such as two checkouts.
    """

    def __init__(self, project: str) -> None:
        name = hashlib.sha256(f"{project}\n{_version()}".encode()).hexdigest()[:32]
        self._file = _folder() / f"{name}.summaries"
        self._kept: dict[str, tuple[str, Summary]] | None = None
        self._has_news = False

    def summary(self, name: str, path: Path, source: bytes) -> Summary:
        """Return the summary of `source`, the content of `path`, as module `name`."""
        if self._kept is None:
            self._kept = _read(self._file)
        digest = hashlib.sha256(source).hexdigest()
        # A package and a module of one name and content differ in what their relative imports mean.
        key = f"{name} {path.name}"
        found = self._kept.get(key)
        if found is None or found[0] != digest:
            found = digest, summarize(name, path, source)
            self._kept[key] = found
            self._has_news = True
        return found[1]

    def save(self) -> None:
        """Write what is new, for later processes. The last of several writers wins, and costs the others time."""
        if self._has_news and self._kept is not None:
            self._has_news = False
            with contextlib.suppress(OSError):  # a full disk, a folder that is read only: no cache
                _write(self._file, dict(self._kept))  # a copy: another thread may read a module meanwhile


def _folder() -> Path:
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home, as in some containers
        home = Path(tempfile.gettempdir(), f"marin-dag-{os.getuid()}")
    return Path(os.environ.get("MARIN_DAG_CACHE") or home / ".cache" / "marin-dag") / "code"


@cache
def _version() -> str:
    """Return what summaries depend on besides the source: the code that makes them, and this Python."""
    code = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return f"{sys.version} {sys.implementation.cache_tag} {hashlib.sha256(code).hexdigest()} {sorted(quiet_packages())}"


def _read(file: Path) -> dict[str, tuple[str, Summary]]:
    try:
        content = file.read_bytes()
    except OSError:
        return {}
    checksum, body = content[:_CHECKSUM_LENGTH], content[_CHECKSUM_LENGTH:]
    if checksum != _checksum(body):
        return {}
    try:
        kept: dict[str, tuple[str, Summary]] = _Unpickler(io.BytesIO(body)).load()
    except pickle.UnpicklingError:
        return {}
    return kept


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(_version().encode() + body).digest()


def _write(file: Path, kept: dict[str, tuple[str, Summary]]) -> None:
    body = pickle.dumps(kept, protocol=5)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as partial:
        try:
            partial.write(_checksum(body) + body)
            partial.close()
            Path(partial.name).replace(file)
        except OSError:
            Path(partial.name).unlink()
            raise
    by_age = sorted(file.parent.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
    for old in by_age[MAX_FILES:]:
        old.unlink(missing_ok=True)


class _Unpickler(pickle.Unpickler):
    """Makes summaries and nothing else, so that a file of the cache runs no code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _CLASSES:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a summary")
        return _CLASSES[module, name]
