"""Provenance: where and with what an output was made. Recorded once with the output, never part of an identity."""

import datetime
import getpass
import hashlib
import importlib.metadata
import json
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from marin_dag.redact import redact
from marin_dag.store import Store

DETACHED_FROM = "MARIN_DAG_DETACHED_FROM"
"""Environment variable of a detached driver, whose copy of the project has no repository: the `git_state` it left."""
LOCK_FILES = ("requirements.lock", "uv.lock", "pylock.toml", "poetry.lock")


class Environment(BaseModel, frozen=True, extra="forbid"):
    """Interpreter and every installed package; kept once under its own digest, since most steps share one."""

    python: str
    platform: str
    packages: dict[str, str]


class Provenance(BaseModel, frozen=True, extra="forbid"):
    """`environment` is the path, below the prefix, of an Environment."""

    git_commit: str | None
    is_dirty: bool | None
    dirty_diff: str | None = None
    """SHA-256 of `git diff HEAD`; None for a clean tree, or where there is no git."""
    lock: str | None = None
    """SHA-256 of the lock file of the environment, where the repository has one."""
    argv: tuple[str, ...]
    host: str
    environment: str
    started: str = ""
    finished: str = ""
    lease_epoch: int = 0
    resources: str = ""
    """What the attempt ran on, by the resources' own words; "" in records from before it was kept."""


def now() -> str:
    """The time in UTC, for people."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def user_name() -> str:
    """Who is at the keyboard."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        return f"uid {os.getuid()}"


def collect_provenance(store: Store) -> Provenance:
    """What is true of this driver for all the steps it runs. Writes the environment if the store has not got it."""
    folder = Path(sys.argv[0]).absolute().parent if sys.argv and sys.argv[0] else Path.cwd()
    git = GitState(*json.loads(os.environ[DETACHED_FROM])) if DETACHED_FROM in os.environ else git_state(folder)
    return Provenance(
        git_commit=git.commit,
        is_dirty=git.is_dirty,
        dirty_diff=git.dirty_diff,
        lock=_lock_of(folder),
        argv=tuple(redact(argument) for argument in sys.argv),
        host=socket.gethostname(),
        environment=_keep_environment(store),
    )


class GitState(NamedTuple):
    """Of the repository of the code; all None where there is none. See Provenance."""

    commit: str | None
    is_dirty: bool | None
    dirty_diff: str | None


def git_state(folder: Path) -> GitState:
    """The commit, whether anything differs from it, and the digest of what does."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return GitState(None, None, None)
    changes = _git(folder, "status", "--porcelain")
    diff = _sha256(_git(folder, "diff", "HEAD", "--binary")) if changes else None
    return GitState(commit, None if changes is None else bool(changes), diff)


def _lock_of(folder: Path) -> str | None:
    """The digest of the nearest lock file at or above `folder`."""
    for parent in (folder, *folder.parents):
        for name in LOCK_FILES:
            if (parent / name).is_file():
                return hashlib.sha256((parent / name).read_bytes()).hexdigest()
        if (parent / ".git").exists():
            return None
    return None


def _sha256(text: str | None) -> str | None:
    return None if text is None else hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def installed_packages() -> dict[str, str]:
    """Every distribution that this interpreter sees, and its version."""
    # Parsed once each: a distribution's own `name` and `version` parse its file anew, and a run would wait for it.
    read = (distribution.metadata for distribution in importlib.metadata.distributions())
    # A half-removed package has no metadata left.
    return dict(sorted((metadata["Name"], metadata["Version"]) for metadata in read if metadata["Name"]))


def _keep_environment(store: Store) -> str:
    environment = Environment(
        python=platform.python_version(), platform=platform.platform(), packages=installed_packages()
    )
    data = environment.model_dump_json(indent=1).encode()
    path = f"environments/{hashlib.sha256(data).hexdigest()[:16]}.json"
    store.create(path, data)
    return path


def _git(folder: Path, *arguments: str) -> str | None:
    """Git's answer, or None where there is no git or no repository: an installed recipe has neither."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, errors="surrogateescape", timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
