"""The cluster that a driver works on: the one of RAY_ADDRESS, which stays as it was, or one of its own on this machine.

One of its own is for this run alone: it listens on this machine only, asks for a token, and ends with the driver.
"""

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from marin_dag.errors import UserError

TOKEN_FILE = Path("~/.ray/auth_token")
NUM_CPUS_LEAST = 2
FIRST_CONTACT_SECONDS = 10.0
OBJECT_STORE_IN_BYTES = 128 * 2**20
OF_ONE_OF_ITS_OWN = {
    # Steps that ask for no accelerator see none, today and after Ray changes its default.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    # Ray gives up after a minute, in which its dashboard has not imported what it needs where the machine is busy.
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "600",
}
LONGEST_FOLDER_OF_SOCKETS = 28
"""Characters of the folder for temporary files: Ray adds up to 79 for sockets, and Linux takes no path above 107."""
OPTIONS: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
JOB_NAME = "job_name"
"""Of a job's metadata: what the dashboard's list shows as its name."""
JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Set by Ray in the driver of a submitted job, which brings its environment with it."""


def is_connected() -> bool:
    """Whether this process is on a cluster already."""
    # Interrupted while it is imported, it is there and has no such function yet.
    return bool(getattr(sys.modules.get("ray"), "is_initialized", lambda: False)())


def join_cluster(job_name: str) -> str:
    """Joins the cluster of RAY_ADDRESS; returns where its dashboard is, for the user."""
    refuse_unreachable(os.environ["RAY_ADDRESS"])
    use_the_token()
    import ray

    options = dict(OPTIONS)
    if JOB_CONFIG not in os.environ:
        # Workers find the recipe's modules where this process does: the same path on each node.
        options["runtime_env"] = {"env_vars": {"PYTHONPATH": python_path()}}
        options["job_config"] = _named(job_name)
    try:
        context = ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise UserError(unreachable(os.environ["RAY_ADDRESS"], first_line(error))) from error
    return dashboard_line(context.dashboard_url)


def start_cluster(largest_num_cpus: int, job_name: str) -> str:
    """Starts one on this machine, for steps that ask for up to so many cores; returns where its dashboard is."""
    require_a_token()
    for name, value in OF_ONE_OF_ITS_OWN.items():  # some of which Ray reads as it is imported
        os.environ.setdefault(name, value)
    import ray

    os.environ["PYTHONPATH"] = python_path()
    folder_of_sockets = _folder_of_sockets()
    try:
        with _in_groups_of_their_own():
            context = ray.init(
                "local",  # a cluster of one's own, whatever else runs on this machine
                # A laptop runs a step that asks for more cores than it has; slower, but it runs.
                num_cpus=max(os.cpu_count() or 1, largest_num_cpus, NUM_CPUS_LEAST),
                include_dashboard=True,
                dashboard_host="127.0.0.1",
                object_store_memory=OBJECT_STORE_IN_BYTES,
                _temp_dir=folder_of_sockets,
                job_config=_named(job_name),
                **OPTIONS,
            )
    except Exception as error:  # Ray has no class of its own for a start that fails
        raise UserError(
            f"Ray did not start on this machine: {_cause(error)}. Where other programs keep it busy, wait for them; "
            "then run the same command again."
        ) from error
    return dashboard_line(context.dashboard_url)


def hear_ray(hear: Callable[[str], None]) -> None:
    """Hands over the first line of each thing that Ray would print in the driver, such as that a worker died.

    Ray has no option for it. It prints before the driver knows which step it is about, and its own log behind it, which
    the dashboard has too.
    """
    import ray._private.worker as worker

    def hand_over(data: dict[str, Any], ignore_prefix: bool) -> None:
        hear("\n".join(data["lines"]).strip().partition("\n")[0])

    worker.print_to_stdstream = hand_over


def host_of_node(node_id: str) -> str:
    """Name of the host of a node that is, or was, in the cluster; "" of any other."""
    import ray

    return next((str(node["NodeManagerHostname"]) for node in ray.nodes() if node["NodeID"] == node_id), "")


def _folder_of_sockets() -> str | None:
    """None is Ray's own choice, below the folder for temporary files; batch systems like to give jobs a long one.

    Raises:
        UserError: a folder is named for Ray alone, and is too long.
    """
    chosen = os.environ.get("RAY_TMPDIR")
    if chosen is None:
        return "/tmp/ray" if len(tempfile.gettempdir()) > LONGEST_FOLDER_OF_SOCKETS else None
    if len(chosen) > LONGEST_FOLDER_OF_SOCKETS:
        raise UserError(
            f"RAY_TMPDIR is {chosen}: {len(chosen)} characters, and Ray's sockets below it have longer paths than "
            f"the system takes; name a folder of at most {LONGEST_FOLDER_OF_SOCKETS}, or unset RAY_TMPDIR."
        )
    return None


def _cause(error: Exception) -> str:
    """The first line, and the last where the first only says that the end of a log follows."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):
        return f"{lines[0]} {lines[-1]}".rstrip(".")
    return first_line(error)


@contextlib.contextmanager
def _in_groups_of_their_own() -> Iterator[None]:
    """Processes that are started meanwhile get no signal that is sent to this one's group.

    `timeout`, SLURM and others send SIGTERM to the whole group. Ray blocks SIGINT for its servers and has no option for
    SIGTERM: they would end, and the steps with them, while the driver asks these to save their work. They still end
    with a driver that is killed, the last within a minute: the kernel tells them, on Linux alone. Elsewhere Ray needs
    them in the driver's group to find them.
    """
    if sys.platform != "linux":
        yield
        return
    begin, here = subprocess.Popen.__init__, threading.get_ident()

    def begin_in_a_group(self: subprocess.Popen[Any], *arguments: Any, **options: Any) -> None:
        if threading.get_ident() == here and not options.get("start_new_session"):
            options.setdefault("process_group", 0)
        begin(self, *arguments, **options)

    setattr(subprocess.Popen, "__init__", begin_in_a_group)  # noqa: B010 -- a type checker refuses the assignment
    try:
        yield
    finally:
        setattr(subprocess.Popen, "__init__", begin)  # noqa: B010


def _named(job_name: str) -> Any:
    """What the dashboard's list of jobs calls this driver; else it shows a number and a long command."""
    from ray.job_config import JobConfig

    return JobConfig(metadata={JOB_NAME: job_name})


def python_path() -> str:
    """Where this process finds modules, for others to find them too."""
    return os.pathsep.join(dict.fromkeys(str(Path(path).absolute()) for path in sys.path))


def dashboard_line(url: str | None) -> str:
    """Where to look on, and how to get in."""
    if not url:
        return "Ray cluster without a dashboard"
    return f"Ray dashboard http://{url}  (it asks for a token; {_where_the_token_is()})"


def require_a_token() -> None:
    """Whoever may reach the cluster may run code as this user: so it always asks for a token."""
    if "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    # Else Ray has read the variable already, and would start a server that asks and a client that does not answer;
    # left alone it turns tokens on by itself.
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"):
        return
    path = _token_file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Ray would make the file readable by all users of the machine.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    except FileExistsError:
        return
    except OSError as error:
        raise UserError(
            f"the token that guards the Ray dashboard cannot be kept in {path} ({error.strerror}); set RAY_AUTH_TOKEN "
            "to a secret of your own."
        ) from error


def refuse_unreachable(address: str) -> None:
    """Ray itself knocks for minutes, and then fills the screen."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not port.isdigit():
        return  # "auto", or a folder: Ray finds out at once
    try:
        socket.create_connection((host, int(port)), FIRST_CONTACT_SECONDS).close()
    except OSError as error:
        raise UserError(unreachable(address, str(error))) from error


def unreachable(address: str, why: str) -> str:
    """What to tell the user of a cluster that cannot be joined."""
    return (
        f"RAY_ADDRESS={address}: {why}. Check that the cluster is up (`ray status`) and that RAY_AUTH_TOKEN or "
        "~/.ray/auth_token holds its token; unset RAY_ADDRESS to run on this machine."
    )


def first_line(error: BaseException) -> str:
    """What an error says, without what it goes on to say."""
    return (str(error).strip() or type(error).__qualname__).splitlines()[0].rstrip(".")


def use_the_token() -> None:
    """Before Ray is imported: a client that has a token shows it."""
    known = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if "ray" not in sys.modules and (known or _token_file().exists()):
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def _token_file() -> Path:
    try:
        return TOKEN_FILE.expanduser()
    except RuntimeError as error:
        raise UserError(
            f"this user has no home folder, where {TOKEN_FILE} would keep the token that guards the Ray dashboard; set "
            "HOME, or set RAY_AUTH_TOKEN to a secret of your own."
        ) from error


def _where_the_token_is() -> str:
    if os.environ.get("RAY_AUTH_TOKEN"):
        return "the one in RAY_AUTH_TOKEN"
    return f"to see it: cat {os.environ.get('RAY_AUTH_TOKEN_PATH') or TOKEN_FILE}"
