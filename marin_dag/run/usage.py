"""Usage: files, programs and variables that a running step reads and its digest does not cover.

The fingerprint comes from source text, which does not name every file that code opens. An audit hook therefore notes
each file that Python opens, and each Python program that it starts, while the step function or a shard runs. The
mapping `os.environ` notes the variables that code outside installed packages reads by name. The result leaves out the
closure, paths that the config names, inputs, and the files of the machine.
The hook does not see files that a native library opens, or modules that the worker had imported before.
"""

import contextlib
import functools
import importlib.util
import itertools
import os
import re
import shlex
import site
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import BaseModel

from marin_dag.code.fingerprint import ENGINE, PROJECT_ROOT, covered_by
from marin_dag.code.set_constants import set_constants
from marin_dag.errors import UserError, listed
from marin_dag.run.environment_reads import end_reports, names_the_environment, report_reads, set_here
from marin_dag.run.input_files import absolute, listen, path_read
from marin_dag.store.redact import redact
from marin_dag.values.walk import children

MAX_NAMED = 4
FRAMES_TO_TRACEBACK = 8
"""Frames between the opening of a file and the function of `traceback` that wants its lines."""
MACHINE = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib/", "/lib64/", "/opt/", "/run/", "/var/")
MEMORY = "/dev/shm/"
"""A file system in memory, where recipes and data may lie; no device, unlike the rest of /dev/."""
OF_THE_MACHINE = re.compile(r"CACHE|^AWS_|^GOOGLE_|^OMP_NUM_THREADS$|^(?:HOME|PATH|PYTHONPATH|TMPDIR)$")
"""Variables of the machine: folders, cloud accounts, number of threads."""
PYTHON, SHELL = re.compile(r"python[\d.]*"), re.compile(r"(?:ba|da|z)?sh")
UNCOVERED_FIX = "Make it an input or a field of the config, or import it by name."


class UncoveredError(UserError):
    """A read that the digest does not cover, by a step whose kind refuses such reads."""


class Used(BaseModel, frozen=True, extra="forbid"):
    """The uses of a shard, without the files of the machine."""

    files: tuple[str, ...] = ()
    programs: tuple[tuple[str, ...], ...] = ()
    variables: tuple[str, ...] = ()


class Usage:
    """The uses of one attempt or shard, whose arguments are `values`; the files that these name are covered.

    `began` is its start in seconds since 1970; the attempt itself made all files that are newer.
    """

    def __init__(self, values: Iterable[object], prefix: str, began: float) -> None:
        self.began = began
        self._own = (*_furniture(), *_texts_in(values), *(() if "://" in prefix else (prefix,)))
        self._of_shards: set[str] = set()
        self.read: set[str] = set()
        self.programs: set[tuple[str, ...]] = set()
        self.variables: set[str] = set()
        self.constants: tuple[str, ...] = ()
        self._others: dict[int | None, threading.Thread] = {}
        """Threads from before the attempt."""

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Note what this process uses until the end of the block; a shard inside the block notes its own use."""
        listen(_on_event)
        report_reads(_on_variable)
        self._others = {thread.ident: thread for thread in threading.enumerate()}
        self._others.pop(threading.get_ident(), None)
        _active.append(self)
        try:
            yield
        finally:
            _active.remove(self)
            if not _active:
                end_reports()

    def has_thread(self) -> bool:
        """Return whether the calling thread belongs to the attempt."""
        other = self._others.get(threading.get_ident())
        return other is None or not other.is_alive()  # Python reuses the identifiers of threads

    def add(self, used: Used) -> None:
        self._of_shards.update(used.files)
        self.programs.update(used.programs)
        self.variables.update(used.variables)

    def used(self) -> Used:
        """Return the noted files from before the attempt, the Python programs and the variables."""
        read = {_source_of(path) for path in list(self.read) if not _lies_in(path, self._own)}
        files = {path for path in read if self._was_there(path)} | self._of_shards
        files = {path for path in files if not _lies_in(path, self._own)}
        programs = sorted(each for each in list(self.programs) if each)
        return Used(files=sorted(files), programs=programs, variables=sorted(self.variables - set_here))

    def note_constants(self, definitions: Iterable[str]) -> None:
        """Note constants among the definitions of the closure that this process has set before the attempt."""
        self.constants = set_constants(definitions)

    def uncovered(self, function: Any, values: tuple[object, ...]) -> tuple[str, ...]:
        """Return a readable line for each use that the digest of a step with these values does not cover."""
        used = self.used()
        lines = [*self.constants, *(f"environment variable {name}" for name in used.variables)]
        if used.files or used.programs:  # false for most steps, and the closure is slow
            covered = covered_by(function, *values)
            known = {str(path) for path in covered.files} | {os.path.realpath(path) for path in covered.files}
            files = [path for path in used.files if path not in known and os.path.realpath(path) not in known]
            programs = [each for each in used.programs if not _is_known_module(each, covered.modules)]
            lines = [path.removeprefix(f"{PROJECT_ROOT}/") for path in files] + lines
            lines += [f"program {' '.join(each)}" for each in programs]
        return tuple(map(redact, lines))

    def _was_there(self, path: str) -> bool:
        file = Path(path)
        return file.is_file() and file.stat().st_ctime < self.began


def uncovered_text(lines: Iterable[str]) -> str:
    return f"read what its digest does not cover, so a change of it goes unseen: {listed(list(lines), MAX_NAMED)}"


_active: list[Usage] = []
"""The attempts and shards that this process runs now, the innermost last."""


def _usage_of_thread() -> Usage | None:
    """Return the innermost attempt or shard, if the calling thread belongs to it."""
    active = _active[-1:]  # a copy: another thread may end the attempt meanwhile
    return active[0] if active and active[0].has_thread() else None


def _on_variable(name: str, reader: FrameType) -> None:
    usage, file = _usage_of_thread(), reader.f_code.co_filename
    if usage is None or OF_THE_MACHINE.search(name):
        return
    if file.startswith("/") and not _lies_in(file, _furniture()) and names_the_environment(reader):
        usage.variables.add(name)


def _on_event(event: str, arguments: tuple[Any, ...]) -> None:
    usage = _usage_of_thread()
    if usage is None:
        return
    if event == "open" and (path := path_read(arguments)) is not None and not _is_traceback():
        usage.read.add(path)
    elif event in ("os.exec", "os.posix_spawn", "os.system", "subprocess.Popen"):
        usage.programs.add(_python_of(arguments[0] if event == "os.system" else arguments[1]))


def _python_of(command: Any) -> tuple[str, ...]:
    """Return the words of a command from its Python on, also inside the command of a shell; () for other programs."""
    words = [os.fsdecode(each) for each in ([command] if isinstance(command, str | bytes) else command)]
    if len(words) == 1:
        words = _split(words[0])
    elif SHELL.fullmatch(Path(words[0]).name):  # `sh -ec COMMAND ARGUMENTS`
        texts = itertools.dropwhile(lambda word: not (word.startswith("-") and word.endswith("c")), words)
        words = _split(next(itertools.islice(texts, 1, None), ""))
    numbers = [number for number, word in enumerate(words) if PYTHON.fullmatch(Path(word).name)]
    return tuple(words[numbers[0] :]) if numbers else ()


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # an open quote, which the shell refuses
        return command.split()


def _is_traceback() -> bool:
    """Return whether a file is opened for the source lines of a traceback, which decide nothing."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(FRAMES_TO_TRACEBACK):
        if frame is None:
            return False
        if frame.f_globals.get("__name__") == "traceback":
            return True
        frame = frame.f_back
    return False


@functools.cache
def _furniture() -> tuple[str, ...]:
    """Return the folders of the interpreter, its packages, the engine and the caches of this user."""
    paths = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *site.getsitepackages()}
    paths |= {site.getusersitepackages(), str(PROJECT_ROOT / ENGINE)}
    paths |= {path for name, path in os.environ.items() if "CACHE" in name and path.startswith("/")}
    places = {tempfile.gettempdir(), "/tmp", os.environ.get("RAY_TMPDIR", "/tmp")}
    paths |= {f"{place}/ray{user}" for place in places for user in ("", f"-{os.getuid()}")}
    paths |= {str(Path.home() / ".cache")}
    # Python may open a file by its resolved path, as in an environment behind a link.
    paths |= {os.path.realpath(path) for path in paths if path}
    return tuple(path.rstrip("/") for path in paths if path)


def _lies_in(path: str, folders: Iterable[str]) -> bool:
    if path.startswith(MACHINE) and not path.startswith(MEMORY):
        return True
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _texts_in(values: Iterable[object]) -> Iterator[str]:
    """Yield each text in `values` that can be a path, as an absolute path."""
    for value in values:
        if isinstance(value, (str, Path)):
            text = str(value).removeprefix("file://")
            if text.strip("/"):
                yield absolute(text).rstrip("/")
        elif not isinstance(value, (bytes, int, float, type(None))):
            yield from _texts_in(item for _, item in children(value))


def _source_of(path: str) -> str:
    """Return the source file of a `.pyc` file; return any other path as it is."""
    if not path.endswith(".pyc"):
        return path
    with contextlib.suppress(ValueError):
        return importlib.util.source_from_cache(path)
    return path


def _is_known_module(arguments: tuple[str, ...], covered: Collection[str]) -> bool:
    """Return whether a program is `python -m MODULE` for a covered or installed module."""
    if len(arguments) < 3 or arguments[1] != "-m":
        return False
    if arguments[2] in covered:
        return True
    found = importlib.util.find_spec(arguments[2].partition(".")[0])
    return found is not None and found.origin is not None and _lies_in(found.origin, _furniture())
