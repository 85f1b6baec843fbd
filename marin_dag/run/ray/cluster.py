"""Cluster: the Ray cluster of a driver, either the one at RAY_ADDRESS or a private one on this machine.

A private cluster listens on this machine only, asks for a token, and ends with the driver.
"""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from marin_dag.errors import UserError
from marin_dag.run.ray.ray_internals import own_address_only, processes_in_own_groups
from marin_dag.run.supply import usable_cpus

TOKEN_FILE = Path("~/.ray/auth_token")
MIN_CPUS = 2
CONNECT_SECONDS = 10.0
OBJECT_STORE_IN_BYTES = 128 * 2**20
PRIVATE_CLUSTER_VARIABLES = {
    # Steps that ask for no accelerator see none, also after Ray changes its default.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    # Ray's default of a minute is too short for its dashboard to import on a busy machine.
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "600",
}
STARTS = 3
MAX_SESSIONS_FOLDER_LENGTH = 32
"""Characters: Ray adds up to 75 for its sockets, and Linux takes no socket path above 107."""
OPTIONS: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
JOB_NAME = "job_name"
"""Key in a job's metadata that the dashboard shows as the job's name."""
JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Variable that Ray sets in the driver of a submitted job, which has its environment already."""


def is_connected() -> bool:
    # An interrupted import leaves a module `ray` without this function.
    return bool(getattr(sys.modules.get("ray"), "is_initialized", lambda: False)())


def join_cluster(job_name: str) -> str:
    """Join the cluster at RAY_ADDRESS; return a line about its dashboard."""
    address = os.environ["RAY_ADDRESS"]
    check_reachable(address)
    use_token()
    import ray

    options = dict(OPTIONS)
    if JOB_CONFIG not in os.environ:
        # Workers find the recipe's modules where this process does: under the same path on each node.
        options["runtime_env"] = {"env_vars": {"PYTHONPATH": python_path()}}
        options["job_config"] = _job_config(job_name)
    try:
        context = ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise UserError(unreachable(address, first_line(error))) from error
    return dashboard_line(context.dashboard_url)


def start_cluster(largest_num_cpus: int, job_name: str, say: Callable[[str], None] = lambda text: None) -> str:
    """Start a private cluster for steps of up to `largest_num_cpus`; return a line about its dashboard.

    On a busy machine, one of Ray's processes may not be ready in time. Then all are ended, and Ray starts again.
    """
    ensure_token()
    for name, value in PRIVATE_CLUSTER_VARIABLES.items():  # before the import, which reads some of them
        os.environ.setdefault(name, value)
    options: dict[str, Any] = {
        # A step that asks for more CPUs than there are still runs, only slower.
        "num_cpus": max(usable_cpus(), largest_num_cpus, MIN_CPUS),
        "include_dashboard": True,
        "dashboard_host": "127.0.0.1",
        "object_store_memory": OBJECT_STORE_IN_BYTES,
        "_temp_dir": _sessions_folder(),
        **OPTIONS,
    }
    for start in range(1, STARTS + 1):
        try:
            return _start(options, job_name)
        except _FailedStartError as error:
            failure = error
            if start < STARTS:
                say(f"Ray did not start: {error}; attempt {start + 1} of {STARTS}")
    raise UserError(
        f"Ray did not start on this machine in {STARTS} attempts: {failure}. If other programs keep the machine "
        "busy, wait for them and run the same command again, or run in this process, without Ray: --backend local."
    ) from failure


class _FailedStartError(Exception):
    """Ray did not start; the text says what it waited for, and its error."""


def _start(options: dict[str, Any], job_name: str) -> str:
    import ray

    os.environ["PYTHONPATH"] = python_path()
    with own_address_only(), processes_in_own_groups() as started:
        try:
            # "local": a new cluster, whatever else runs on this machine.
            context = ray.init("local", job_config=_job_config(job_name), **options)
        except Exception as error:  # Ray has no class of its own for a failed start
            ray.shutdown()
            for process in started:
                _end_group(process)
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            ends_a_log = len(lines) > 1 and lines[0].endswith(":")
            cause = f"{lines[0]} {lines[-1]}".rstrip(".") if ends_a_log else first_line(error)
            raise _FailedStartError(f"it waited for {_newest(started)}: {cause}") from error
    return dashboard_line(context.dashboard_url)


def _newest(started: Sequence[subprocess.Popen[Any]]) -> str:
    """Return the name of the process that Ray started last; it starts the next one when this one is ready."""
    words = [Path(str(word)).name for process in started[-1:] for word in cast(Sequence[Any], process.args)]
    named = [word for word in words if word in ("gcs_server", "raylet") or word.endswith(".py")]
    return f"its process {named[0]}" if named else "one of its processes"


def _end_group(process: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _sessions_folder() -> str:
    """Return a folder for Ray's sessions inside a private one, since Ray opens logs and sockets in it to all users."""
    own = f"ray-{os.getuid()}/r"
    longest = MAX_SESSIONS_FOLDER_LENGTH - len(own) - 1
    chosen = os.environ.get("RAY_TMPDIR")
    if chosen is not None and len(chosen) > longest:
        raise UserError(
            f"RAY_TMPDIR={chosen}: {len(chosen)} characters are too long for the paths of Ray's sockets below it. "
            f"Name a folder of at most {longest} characters, or unset RAY_TMPDIR."
        )
    folder = Path(chosen or (tempfile.gettempdir() if len(tempfile.gettempdir()) <= longest else "/tmp"), own)
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.parent.chmod(0o700)
    except OSError as error:
        raise UserError(
            f"{folder.parent}: cannot be made private to this user ({error.strerror}), and would hold Ray's logs. Set "
            "RAY_TMPDIR to a short folder of your own."
        ) from error
    return str(folder)


def _job_config(job_name: str) -> Any:
    from ray.job_config import JobConfig

    return JobConfig(metadata={JOB_NAME: job_name})


def python_path() -> str:
    return os.pathsep.join(dict.fromkeys(str(Path(path).absolute()) for path in sys.path))


def dashboard_line(url: str | None) -> str:
    if not url:
        return "Ray cluster without a dashboard"
    if os.environ.get("RAY_AUTH_TOKEN"):
        token = "the token is in RAY_AUTH_TOKEN"
    else:
        token = f"cat {os.environ.get('RAY_AUTH_TOKEN_PATH') or TOKEN_FILE} prints its token"
    return f"Ray dashboard http://{url}  ({token})"


def ensure_token() -> None:
    """Make a token if the user has none: without one, anyone who reaches the cluster runs code as this user."""
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    # Otherwise Ray has read the variable, and turns tokens on by itself.
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return
    path = _token_file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Not by Ray, which would make the file readable by all users of the machine.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    except FileExistsError:
        return
    except OSError as error:
        raise UserError(
            f"cannot write {path} ({error.strerror}), which would hold the token of the Ray dashboard. Set "
            "RAY_AUTH_TOKEN to a secret of your own."
        ) from error


def use_token() -> None:
    """Make Ray show the user's token to the cluster, if there is one; call it before Ray is imported."""
    known = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if "ray" not in sys.modules and (known or _token_file().exists()):
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _token_file() -> Path:
    try:
        return TOKEN_FILE.expanduser()
    except RuntimeError as error:
        raise UserError(
            f"{TOKEN_FILE}: this user has no home folder for the token of the Ray dashboard. Set HOME, or set "
            "RAY_AUTH_TOKEN to a secret of your own."
        ) from error


def check_reachable(address: str) -> None:
    """Raise UserError if no process listens at `address`. Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not port.isdigit():
        return  # "auto" or a folder: Ray finds out at once
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(unreachable(address, str(error))) from error


def unreachable(address: str, why: str) -> str:
    return (
        f"RAY_ADDRESS={address}: {why}. Check that the cluster is up (`ray status`) and that RAY_AUTH_TOKEN or "
        "~/.ray/auth_token holds its token; unset RAY_ADDRESS to run on this machine."
    )


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__qualname__).splitlines()[0].rstrip(".")
