"""Detached runs: the driver as a job of the Ray cluster, which continues when the terminal is gone.

The job gets a copy of the project's folder, without what git ignores, so that later edits do not reach it.
"""

import contextlib
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
from typing import Any, NamedTuple

from marin_dag.errors import UserError
from marin_dag.ledger.provenance import DETACHED_FROM, RUN_NAME, git_state
from marin_dag.run.ray.cluster import JOB_NAME, check_reachable, first_line, unreachable, use_token

DRAIN_SECONDS = 3600
"""How long running steps may take to save their work before Ray kills the driver."""
POLL_SECONDS = 0.5
AGENT_SECONDS = 120.0
NO_AGENT = "No available agent"
ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
NOT_SENT = (".git", ".venv")
"""Patterns of .gitignore."""


class Job(NamedTuple):
    """A detached run."""

    name: str
    status: str
    message: str
    has_ended: bool


class DetachedRuns:
    """The detached runs of one pipeline under one prefix, on the cluster at RAY_ADDRESS."""

    def __init__(self, pipeline: str, prefix: str) -> None:
        address = os.environ.get("RAY_ADDRESS")
        if not address:
            raise UserError(
                "RAY_ADDRESS is not set, and a detached run needs a cluster that outlives this terminal. Set it to a "
                "cluster, or start one on this machine: `RAY_AUTH_MODE=token ray start --head`, then "
                "`export RAY_ADDRESS=auto`."
            )
        check_reachable(address)
        use_token()
        logging.getLogger("ray").setLevel(logging.ERROR)  # below that it logs each file that it does not send
        from ray.exceptions import RayError
        from ray.job_submission import JobSubmissionClient

        self._metadata = {"pipeline": pipeline, "prefix": prefix}
        try:
            self._client: Any = JobSubmissionClient()
        except (ConnectionError, RuntimeError, ValueError, RayError) as error:
            raise UserError(unreachable(address, first_line(error))) from error

    def submit(self, command: Sequence[str], folder: Path, *, not_sent: Sequence[str] = ()) -> str:
        """Start a driver as a job in a copy of `folder`, without the prefixes `not_sent`; return the job's name."""
        python, *words = command
        name = f"{self._metadata['pipeline']}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
        outputs = (path for prefix in (self._metadata["prefix"], *not_sent) for path in _outputs_below(folder, prefix))
        job = {
            "entrypoint": self._entrypoint(python, words),
            "submission_id": name,
            "metadata": self._metadata | {JOB_NAME: self._metadata["pipeline"]},
            "runtime_env": {
                "working_dir": str(folder),
                "excludes": [*NOT_SENT, *outputs],
                "env_vars": {
                    "RAY_JOB_STOP_WAIT_TIME_S": str(DRAIN_SECONDS),
                    RUN_NAME: name,
                    DETACHED_FROM: json.dumps(git_state(folder)),
                },
            },
        }
        deadline = time.monotonic() + AGENT_SECONDS
        while True:
            try:
                self._client.submit_job(**job)
                return name
            except RuntimeError as error:
                # A cluster takes a while after its start until it has an agent that starts jobs.
                if NO_AGENT not in str(error) or time.monotonic() > deadline:
                    raise UserError(
                        f"RAY_ADDRESS: the cluster does not take the job: {first_line(error)}. Check it with "
                        "`ray status`, then run the same command again."
                    ) from error
            time.sleep(POLL_SECONDS)

    def _entrypoint(self, python: str, words: Sequence[str]) -> str:
        """Return the command of the job: with this interpreter if the driver runs here, else with the cluster's."""
        address = os.environ["RAY_ADDRESS"]
        own = {"127.0.0.1", "localhost", socket.gethostname()}
        with contextlib.suppress(OSError):  # the machine does not know its own name
            own.add(socket.gethostbyname(socket.gethostname()))
        # An address of HTTP may be a tunnel.
        is_here = self._client.get_address().rpartition("://")[2].rpartition(":")[0] in own
        if address.startswith("http") or not is_here:
            return f"exec {shlex.join([python, '-u', *words])}"
        command = f"exec {shlex.join([sys.executable, '-u', *words])}"
        # Ray gives a driver the address of the cluster that was started last on the machine, not of the job's own.
        return command if address == "auto" else f"RAY_ADDRESS={shlex.quote(address)} {command}"

    def newest(self, name: str | None) -> Job:
        """Return the job with that name; without a name the running one, else the one that ended last."""
        jobs = {job.submission_id: job for job in self._client.list_jobs() if job.submission_id}
        own = [job for job in jobs.values() if self._metadata.items() <= (job.metadata or {}).items()]
        found = own if name is None else [jobs[name]] if name in jobs else []
        if not found:
            what = f"no detached run called {name!r}" if name else f"no detached run of {self._metadata['pipeline']}"
            listed = f"; there are {', '.join(sorted(jobs))}" if jobs else ""
            raise UserError(
                f"{what} with --prefix {self._metadata['prefix']} on this cluster{listed}. Name another one, or "
                "start one with --detach."
            )
        newest = max(found, key=lambda job: (job.status.value not in ENDED, job.start_time or 0))
        status = newest.status.value
        return Job(newest.submission_id, status, newest.message or "", status in ENDED)

    def follow(self, name: str) -> Job:
        import asyncio  # not above: every plan would pay for the import

        async def print_log() -> None:
            async for text in self._client.tail_job_logs(name):
                print(text, end="", flush=True)

        asyncio.run(print_log())
        while not (job := self.newest(name)).has_ended:
            time.sleep(POLL_SECONDS)
        return job

    def stop(self, name: str) -> None:
        """Ask the driver to let running steps save their work, as one Ctrl-C does."""
        self._client.stop_job(name)


def _outputs_below(folder: Path, prefix: str) -> list[str]:
    """Return patterns of outputs below the project's folder: they are data, whether git ignores them or not."""
    if "://" in prefix:
        return []
    # By their names and by where links lead: packing follows links.
    places = [(Path(prefix).absolute(), folder.absolute()), (Path(prefix).resolve(), folder.resolve())]
    below = {path.relative_to(top).as_posix() for path, top in places if path != top and path.is_relative_to(top)}
    return ["/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", name) for name in sorted(below)]
