"""Usage: the files that a step reads and its digest does not cover, seen while it runs.

The fingerprint is read from source text, and a file can be found in ways that no reading follows. So an audit hook
notes each file that Python opens in the step function, its threads and its shards, and each Python program that they
start. The result leaves out the closure, paths that the config names, inputs, and the files of the machine.
Not seen: files that a native library opens, modules that the worker had imported before, environment variables, and on
the local backend the further threads of steps that run at once.
"""

import contextlib
import functools
import importlib.util
import os
import site
import sys
import sysconfig
import tempfile
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from marin_dag.code.fingerprint import ENGINE, PROJECT_ROOT, covered_by
from marin_dag.errors import UserError, listed
from marin_dag.run.input_files import absolute, listen, path_read
from marin_dag.store.redact import redact
from marin_dag.values.walk import children

MAX_NAMED = 4
MACHINE = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib/", "/lib64/", "/opt/", "/run/", "/var/")
MEMORY = "/dev/shm/"
"""No device: a file system in memory, where recipes and data may lie."""
UNCOVERED_FIX = "Make it an input or a field of the config, or import it by name."


class UncoveredError(UserError):
    """A step of a kind that refuses it has read what its digest does not cover."""


class Used(BaseModel, frozen=True, extra="forbid"):
    """The files and programs that a shard used, without those of the machine."""

    files: tuple[str, ...] = ()
    programs: tuple[tuple[str, ...], ...] = ()


class Usage:
    """The files and programs that one attempt or shard uses.

    Args:
        values: its arguments; files that a text in them names are theirs.
        prefix: the prefix of the outputs.
        began: when the attempt began, in seconds since 1970; files that were made later are its own.
    """

    def __init__(self, values: Iterable[object], prefix: str, began: float) -> None:
        self.began = began
        self._own = (*_furniture(), *_texts_in(values), *(() if "://" in prefix else (prefix,)))
        self._read: set[str] = set()
        self._programs: set[tuple[str, ...]] = set()
        self._of_shards: set[str] = set()
        self._others: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
        """Threads from before the attempt, and its own."""

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Note what this thread, and the threads that it starts, read until the end of the block."""
        listen(_on_event)
        self._others.update(threading.enumerate())
        thread = threading.current_thread()
        outer = _active.get(thread)
        _active[thread] = self
        try:
            yield
        finally:
            if outer is None:
                del _active[thread]
            else:
                _active[thread] = outer

    def may_have_started(self, thread: threading.Thread) -> bool:
        """Return whether a thread began after this attempt."""
        return thread not in self._others

    def note_file(self, path: str) -> None:
        """Note a file that is opened."""
        self._read.add(path)

    def note_program(self, arguments: str | Iterable[Any]) -> None:
        """Note a program that is started, by its arguments or its line for a shell."""
        self._programs.add(tuple(map(str, arguments.split() if isinstance(arguments, str) else arguments)))

    def add(self, used: Used) -> None:
        """Add what a shard has read, maybe on another machine."""
        self._of_shards.update(used.files)
        self._programs.update(used.programs)

    def used(self) -> Used:
        """Return the noted files from before the attempt, and the Python programs."""
        read = {_source_of(path) for path in list(self._read) if not _lies_in(path, self._own)}
        files = {path for path in read if self._was_there(path)} | self._of_shards
        files = {path for path in files if not _lies_in(path, self._own)}
        return Used(files=sorted(files), programs=sorted(each for each in list(self._programs) if _is_python(each)))

    def uncovered(self, function: Any, values: tuple[object, ...]) -> tuple[str, ...]:
        """Return what the digest of a step does not cover, for people to read: files, and Python programs.

        Args:
            function: the step function.
            values: its arguments.
        """
        used = self.used()
        if not used.files and not used.programs:
            return ()  # most steps, and the closure takes longer than the rest
        covered = covered_by(function, *values)
        known = {str(path) for path in covered.files} | {os.path.realpath(path) for path in covered.files}
        files = (path for path in used.files if path not in known and os.path.realpath(path) not in known)
        programs = (each for each in used.programs if not _is_known_module(each, covered.modules))
        lines = [*map(_shown, files), *(f"program {' '.join(each)}" for each in programs)]
        return tuple(map(redact, lines))

    def _was_there(self, path: str) -> bool:
        file = Path(path)
        return file.is_file() and file.stat().st_ctime < self.began


def uncovered_text(lines: Iterable[str]) -> str:
    """Return one line about uncovered files, without the name of the step."""
    return f"read what its digest does not cover, so a change of it goes unseen: {listed(list(lines), MAX_NAMED)}"


_active: dict[threading.Thread, Usage] = {}
"""The attempts and shards of this process by the thread of their function."""


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    if not _active:
        return
    if event == "open":
        path = path_read(arguments)
        if path is not None and (usage := _usage_of_thread()) is not None:
            usage.note_file(path)
    elif event == "subprocess.Popen" and (usage := _usage_of_thread()) is not None:
        usage.note_program(arguments[1])


def _usage_of_thread() -> Usage | None:
    """Return whose thread this is. A thread that two attempts of one process may have started counts for neither."""
    thread = threading.current_thread()
    usage = _active.get(thread)
    if usage is not None:
        return usage
    found = [usage for usage in list(_active.values()) if usage.may_have_started(thread)]
    return found[0] if len(found) == 1 else None


@functools.cache
def _furniture() -> tuple[str, ...]:
    """Return the folders of the interpreter, its packages, the engine and the caches of this user."""
    paths = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *site.getsitepackages()}
    paths |= {site.getusersitepackages(), str(PROJECT_ROOT / ENGINE)}
    paths |= {path for name, path in os.environ.items() if "CACHE" in name and path.startswith("/")}
    places = {tempfile.gettempdir(), "/tmp", os.environ.get("RAY_TMPDIR", "/tmp")}
    paths |= {f"{place}/ray{user}" for place in places for user in ("", f"-{os.getuid()}")}
    paths |= {str(Path.home() / ".cache")}
    # A file may be opened by its path without links, as in an environment that a link leads to.
    paths |= {os.path.realpath(path) for path in paths if path}
    return tuple(path.rstrip("/") for path in paths if path)


def _lies_in(path: str, folders: Iterable[str]) -> bool:
    if path.startswith(MACHINE) and not path.startswith(MEMORY):
        return True
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _texts_in(values: Iterable[object]) -> Iterator[str]:
    """Yield each text in `values` that can be a path, as an absolute one."""
    for value in values:
        if isinstance(value, (str, Path)):
            text = str(value).removeprefix("file://")
            if text.strip("/"):
                yield absolute(text).rstrip("/")
        elif not isinstance(value, (bytes, int, float, type(None))):
            yield from _texts_in(item for _, item in children(value))


def _source_of(path: str) -> str:
    """Return the source of a file that Python has compiled; otherwise the path."""
    if not path.endswith(".pyc"):
        return path
    with contextlib.suppress(ValueError):
        return importlib.util.source_from_cache(path)
    return path


def _is_python(arguments: tuple[str, ...]) -> bool:
    return bool(arguments) and Path(arguments[0]).name.startswith("python")


def _is_known_module(arguments: tuple[str, ...], covered: Collection[str]) -> bool:
    """Return whether a program is `python -m MODULE` with a module that the digest covers, or an installed one."""
    if len(arguments) < 3 or arguments[1] != "-m":
        return False
    if arguments[2] in covered:
        return True
    found = importlib.util.find_spec(arguments[2].partition(".")[0])
    return found is not None and found.origin is not None and _lies_in(found.origin, _furniture())


def _shown(path: str) -> str:
    return path.removeprefix(f"{PROJECT_ROOT}/")
