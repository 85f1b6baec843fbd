"""Provenance: where and with what software an output was made. Recorded with the output, never part of an identity."""

import datetime
import getpass
import hashlib
import json
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from marin_dag.store.redact import redact
from marin_dag.store.store import Store

DETACHED_FROM = "MARIN_DAG_DETACHED_FROM"
"""Environment variable of a detached driver: the `git_state` of the project, whose copy there has no repository."""
RUN_NAME = "MARIN_DAG_RUN"
"""Environment variable of a detached driver: the name of its run."""
UNTRACKED_FILES, UNTRACKED_BYTES = 1000, 64 * 2**20
"""Limits on the untracked files that are read: a recipe is small, and outputs may lie beside it."""
ENVIRONMENTS = "environments"
LOCK_FILES = ("requirements.lock", "uv.lock", "pylock.toml", "poetry.lock")


class Environment(BaseModel, frozen=True, extra="forbid"):
    """Interpreter and installed packages; stored once under its own digest, since most steps share one."""

    python: str
    platform: str
    packages: dict[str, str]


class Provenance(BaseModel, frozen=True, extra="forbid"):
    """`environment` is the path, below the prefix, of an Environment."""

    git_commit: str | None
    is_dirty: bool | None
    dirty_diff: str | None = None
    """SHA-256 of `git diff HEAD` and of the untracked files; None for a clean tree, or without git."""
    lock: str | None = None
    """SHA-256 of the environment's lock file, if the repository has one."""
    argv: tuple[str, ...]
    host: str
    user: str = ""
    """Who ran the driver; "" in older records."""
    environment: str
    started: str = ""
    finished: str = ""
    lease_epoch: int = 0
    resources: str = ""
    """The resources of the attempt as text; "" in older records."""
    computed_with: dict[str, str] = {}
    """Arguments of `context.computed_with` in the step."""
    uncovered: tuple[str, ...] = ()
    """Files and programs that the attempt used and the digest does not cover, as far as they were seen."""


def now() -> str:
    """Return the time in UTC as text."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def user_name() -> str:
    """Return the name of the user."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        return f"uid {os.getuid()}"


def collect_provenance(store: Store) -> Provenance:
    """Return the provenance that all steps of this driver share. Write the environment if the store lacks it."""
    folder = Path(sys.argv[0]).absolute().parent if sys.argv and sys.argv[0] else Path.cwd()
    git = GitState(*json.loads(os.environ[DETACHED_FROM])) if DETACHED_FROM in os.environ else git_state(folder)
    return Provenance(
        git_commit=git.commit,
        is_dirty=git.is_dirty,
        dirty_diff=git.dirty_diff,
        lock=_lock_of(folder),
        argv=tuple(redact(argument) for argument in sys.argv),
        host=socket.gethostname(),
        user=user_name(),
        environment=_keep_environment(store),
    )


class GitState(NamedTuple):
    """State of the repository of the code, as in Provenance; all None without a repository."""

    commit: str | None
    is_dirty: bool | None
    dirty_diff: str | None


def git_state(folder: Path) -> GitState:
    """Return the commit, whether files differ from it, and the digest of the difference."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return GitState(None, None, None)
    changes = _git(folder, "status", "--porcelain")
    return GitState(commit, None if changes is None else bool(changes), _digest_of_changes(folder) if changes else None)


def _digest_of_changes(folder: Path) -> str | None:
    """Return the digest of the diff and of the first `UNTRACKED_FILES` untracked files.

    Of untracked files it covers paths and contents, beyond `UNTRACKED_BYTES` paths and sizes.
    """
    diff = _git(folder, "diff", "HEAD", "--binary")
    root = _git(folder, "rev-parse", "--show-toplevel")
    untracked = _git(Path(root), "ls-files", "--others", "--exclude-standard", "-z") if root is not None else None
    if diff is None or root is None or untracked is None:
        return None
    digest = hashlib.sha256(diff.encode(errors="surrogateescape"))
    names = sorted(name for name in untracked.split("\0") if name)
    left = UNTRACKED_BYTES
    for name in names[:UNTRACKED_FILES]:
        path = Path(root, name)
        try:
            is_read = path.is_file() and path.stat().st_size <= left
            data = path.read_bytes() if is_read else b""
            size = path.lstat().st_size
        except OSError:  # deleted meanwhile, or not readable
            is_read, data, size = False, b"", 0
        left -= len(data)
        contents = hashlib.sha256(data).hexdigest() if is_read else f"{size} bytes"
        digest.update(f"\0{name}\0{contents}".encode(errors="surrogateescape"))
    if len(names) > UNTRACKED_FILES:
        digest.update(f"\0{len(names)} files".encode())
    return digest.hexdigest()


def _lock_of(folder: Path) -> str | None:
    """Return the digest of the nearest lock file at or above `folder`."""
    for parent in (folder, *folder.parents):
        for name in LOCK_FILES:
            if (parent / name).is_file():
                return hashlib.sha256((parent / name).read_bytes()).hexdigest()
        if (parent / ".git").exists():
            return None
    return None


def installed_packages() -> dict[str, str]:
    """Return name and version of every distribution that this interpreter sees."""
    # The metadata are parsed once: `distribution.name` and `.version` would each parse the file again.
    import importlib.metadata  # a plan needs none of it, and the import takes as long as that of all records

    read = (distribution.metadata for distribution in importlib.metadata.distributions())
    # A half-removed package has no metadata left.
    return dict(sorted((metadata["Name"], metadata["Version"]) for metadata in read if metadata["Name"]))


def _keep_environment(store: Store) -> str:
    environment = Environment(
        python=platform.python_version(), platform=platform.platform(), packages=installed_packages()
    )
    data = environment.model_dump_json(indent=1).encode()
    path = environment_path(data)
    store.create(path, data)
    return path


def environment_path(data: bytes) -> str:
    """Return the path of an Environment with these bytes."""
    return f"{ENVIRONMENTS}/{hashlib.sha256(data).hexdigest()[:16]}.json"


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of git, or None without git or a repository, as for an installed recipe."""
    # Without locks: `status` writes its findings to the index, and its lock stays if it is killed.
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="surrogateescape", timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
