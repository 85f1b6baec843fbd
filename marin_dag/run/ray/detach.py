"""Detached runs: the driver as a job of the Ray cluster, which goes on when the terminal is gone.

The job gets a copy of the project's folder, without what git ignores: an edit made meanwhile does not reach it.
"""

import contextlib
import dataclasses
import json
import logging
import os
import re
import secrets
import shlex
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marin_dag.errors import UserError
from marin_dag.ledger.provenance import DETACHED_FROM, RUN_NAME, git_state
from marin_dag.run.ray.cluster import JOB_NAME, first_line, refuse_unreachable, unreachable, use_the_token

DRAIN_SECONDS = 3600
"""How long running steps may take to save their work before Ray kills the driver."""
POLL_SECONDS = 0.5
AGENT_SECONDS = 120.0
NO_AGENT = "No available agent"
ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
NOT_SENT = (".git", ".venv")
"""Patterns of .gitignore."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One detached run."""

    name: str
    status: str
    message: str

    @property
    def has_ended(self) -> bool:
        """Whether it is over, well or not."""
        return self.status in ENDED


class DetachedRuns:
    """The detached runs of one pipeline under one prefix, on the cluster of RAY_ADDRESS."""

    def __init__(self, pipeline: str, prefix: str) -> None:
        address = os.environ.get("RAY_ADDRESS")
        if not address:
            raise UserError(
                "a detached run needs a cluster that outlives this terminal: set RAY_ADDRESS to one, or start one on "
                "this machine: `RAY_AUTH_MODE=token ray start --head`, then `export RAY_ADDRESS=auto`."
            )
        refuse_unreachable(address)
        use_the_token()
        logging.getLogger("ray").setLevel(logging.ERROR)  # each file that it does not upload is a line otherwise
        from ray.exceptions import RayError
        from ray.job_submission import JobSubmissionClient

        self._of = {"pipeline": pipeline, "prefix": prefix}
        try:
            self._client: Any = JobSubmissionClient()
        except (ConnectionError, RuntimeError, ValueError, RayError) as error:
            raise UserError(unreachable(address, first_line(error))) from error

    def submit(self, command: Sequence[str], folder: Path, *, not_sent: Sequence[str] = ()) -> str:
        """Starts `command`, whose first word is python, in a copy of `folder`; returns the job's name.

        `not_sent` are prefixes that hold outputs, beside the run's own.
        """
        python, *words = command
        name = f"{self._of['pipeline']}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        self._submit(
            # Its own standard error too, so that the log shows what went wrong where it did.
            entrypoint=self._entrypoint(python, words),
            submission_id=name,
            metadata=self._of | {JOB_NAME: self._of["pipeline"]},
            runtime_env={
                "working_dir": str(folder),
                "excludes": [
                    *NOT_SENT,
                    *(name for prefix in (self._of["prefix"], *not_sent) for name in _outputs_below(folder, prefix)),
                ],
                "env_vars": {
                    "RAY_JOB_STOP_WAIT_TIME_S": str(DRAIN_SECONDS),
                    RUN_NAME: name,
                    DETACHED_FROM: json.dumps(git_state(folder)),
                },
            },
        )
        return name

    def _submit(self, **job: Any) -> None:
        deadline = time.monotonic() + AGENT_SECONDS
        while True:
            try:
                self._client.submit_job(**job)
                return
            except RuntimeError as error:
                # A cluster that has just been started takes a while to have somebody who starts jobs.
                if NO_AGENT not in str(error) or time.monotonic() > deadline:
                    raise UserError(f"the cluster does not take the job: {first_line(error)}.") from error
            time.sleep(POLL_SECONDS)

    def _entrypoint(self, python: str, words: Sequence[str]) -> str:
        """This very interpreter, if the driver will run on this machine; elsewhere what the cluster calls python."""
        if not self._is_here():
            return f"exec {shlex.join([python, '-u', *words])}"
        command = shlex.join([sys.executable, "-u", *words])
        # Ray tells a driver the address of whichever cluster was last started on the machine, not of the job's own.
        address = os.environ["RAY_ADDRESS"]
        return f"exec {command}" if address == "auto" else f"RAY_ADDRESS={shlex.quote(address)} exec {command}"

    def _is_here(self) -> bool:
        if os.environ["RAY_ADDRESS"].startswith("http"):  # a tunnel perhaps
            return False
        host = self._client.get_address().rpartition("://")[2].rpartition(":")[0]
        own = {"127.0.0.1", "localhost", socket.gethostname()}
        with contextlib.suppress(OSError):  # a machine that does not know its own name
            own.add(socket.gethostbyname(socket.gethostname()))
        return host in own

    def newest(self, name: str | None = None) -> Job:
        """The job of that name, else the one that runs, else the one that ended last."""
        found = [job for job in self._client.list_jobs() if job.submission_id is not None]
        if name is None:
            found = [job for job in found if self._of.items() <= (job.metadata or {}).items()]
        else:
            found = [job for job in found if job.submission_id == name]
        if not found:
            what = f"no detached run called {name!r}" if name else f"no detached run of {self._of['pipeline']}"
            others = sorted(job.submission_id for job in self._client.list_jobs() if job.submission_id)
            listed = f"; there are {', '.join(others)}" if others else ""
            raise UserError(f"{what} with --prefix {self._of['prefix']} on this cluster{listed}.")
        newest = max(found, key=lambda job: (job.status.value not in ENDED, job.start_time or 0))
        return Job(newest.submission_id, newest.status.value, newest.message or "")

    def follow(self, name: str) -> Job:
        """Prints what the job says until it has ended."""
        import asyncio  # not above: it costs every plan what it costs here once

        asyncio.run(self._print_log(name))
        while not (job := self.newest(name)).has_ended:
            time.sleep(POLL_SECONDS)
        return job

    async def _print_log(self, name: str) -> None:
        async for text in self._client.tail_job_logs(name):
            print(text, end="", flush=True)

    def stop(self, name: str) -> None:
        """Asks the driver to let running steps save their work, as one Ctrl-C does."""
        self._client.stop_job(name)


def _outputs_below(folder: Path, prefix: str) -> list[str]:
    """Outputs that lie below the project's folder are data, whether git is told to ignore them or not."""
    if "://" in prefix:
        return []
    # By the names they are called by, and by where links lead: what is packed follows links.
    places = [
        (Path(prefix).absolute(), folder.absolute()),
        (Path(prefix).resolve(), folder.resolve()),
    ]
    below = {path.relative_to(top).as_posix() for path, top in places if path != top and path.is_relative_to(top)}
    return ["/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", name) for name in sorted(below)]
