"""Provenance: where and with what software an output was made. Recorded with the output, never part of an identity."""

import datetime
import functools
import getpass
import hashlib
import json
import os
import platform
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from marin_dag.store.redact import redact
from marin_dag.store.store import Store

DETACHED_FROM = "MARIN_DAG_DETACHED_FROM"
"""Environment variable of a detached driver: the `git_state` of the project, whose copy there has no repository."""
RUN_NAME = "MARIN_DAG_RUN"
"""Environment variable of a detached driver: the name of its run."""
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
    """SHA-256 of `git status` and `git diff HEAD`; of untracked files only the names count. None for a clean tree."""
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
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        return f"uid {os.getuid()}"


def collect_provenance(store: Store) -> Provenance:
    """Return the provenance that all steps of this driver share. Write the environment if the store lacks it."""
    folder = Path(sys.argv[0]).absolute().parent if sys.argv and sys.argv[0] else Path.cwd()
    git = json.loads(os.environ[DETACHED_FROM]) if DETACHED_FROM in os.environ else git_state(folder)
    return Provenance(
        **git,
        lock=_lock_of(folder),
        argv=tuple(redact(argument) for argument in sys.argv),
        host=socket.gethostname(),
        user=user_name(),
        environment=_keep_environment(store),
    )


def git_state(folder: Path) -> dict[str, Any]:
    """Return commit, whether files differ from it, and the digest of the difference: three fields of Provenance."""
    commit = _git(folder, "rev-parse", "HEAD")
    changes = None if commit is None else _git(folder, "status", "--porcelain")
    diff = _git(folder, "diff", "HEAD", "--binary") if changes else None
    digest = None if diff is None else hashlib.sha256(f"{changes}\n{diff}".encode(errors="surrogateescape")).hexdigest()
    return {"git_commit": commit, "is_dirty": None if changes is None else bool(changes), "dirty_diff": digest}


def _lock_of(folder: Path) -> str | None:
    """Return the digest of the nearest lock file at or above `folder`."""
    for parent in (folder, *folder.parents):
        for name in LOCK_FILES:
            if (parent / name).is_file():
                return hashlib.sha256((parent / name).read_bytes()).hexdigest()
        if (parent / ".git").exists():
            return None
    return None


@functools.cache
def installed_packages() -> dict[str, str]:
    """Return name and version of every distribution that this interpreter sees."""
    import importlib.metadata  # a plan needs none of it, and the import takes as long as that of all records

    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        # `distribution.metadata` would parse the whole file, which takes ten times as long.
        files = ("METADATA", "PKG-INFO", "")  # "": an old `.egg-info` is one file
        headers = next(filter(None, map(distribution.read_text, files)), "")
        name, version = (re.search(rf"^{field}: *(\S+)", headers, re.MULTILINE) for field in ("Name", "Version"))
        if name and version:  # a half-removed package has no metadata left
            found.setdefault(name[1], version[1])  # an import takes the first, too
    return dict(sorted(found.items()))


def _keep_environment(store: Store) -> str:
    environment = Environment(
        python=platform.python_version(), platform=platform.platform(), packages=installed_packages()
    )
    data = environment.model_dump_json(indent=1).encode()
    path = f"{ENVIRONMENTS}/{hashlib.sha256(data).hexdigest()[:16]}.json"
    store.create(path, data)
    return path


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of git, or None without git or a repository, as for an installed recipe."""
    # Without locks: `status` writes its findings to the index, and its lock stays if it is killed.
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="surrogateescape", timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
