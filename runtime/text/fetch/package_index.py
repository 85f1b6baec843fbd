"""Wheels, downloaded by pip from the index, mirror or folder that the user has configured."""

import hashlib
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Mapping

from runtime.text.fetch.errors import FetchError, UnreachableError
from runtime.text.fetch.verified import Written, check_sha256

# Words of pip (23 to 26) and urllib3. Only -vv shows them: without it pip says that no version was found.
_NO_CONNECTION = re.compile(
    "connection error|NewConnectionError|ConnectTimeoutError|ReadTimeoutError|NameResolutionError|ProxyError"
    "|Temporary failure in name resolution|Failed to establish a new connection|Connection refused"
    "|Network is unreachable"
)
_SERVER_ERROR = re.compile(r"Could not fetch URL.*(: 5\d\d Server Error|too many 5\d\d error)")


def download_wheel(
    name: str,
    version: str,
    folder: pathlib.Path,
    *,
    sha256: str,
    platform_tags: tuple[str, str, str] | None,
    environment: Mapping[str, str] = os.environ,
) -> pathlib.Path:
    """Download one wheel into `folder` and return its path.

    `platform_tags` are (platform, Python version, ABI) of a wheel with compiled code. Naming them gives the same file
    on every machine: nothing is installed, only its texts are read.
    """
    command = [sys.executable, "-m", "pip", "download", "-vv", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar=off", "--no-deps", "--only-binary=:all:", f"--dest={folder}"]
    if platform_tags is not None:
        platform, python_version, abi = platform_tags
        command += [f"--platform={platform}", "--implementation=cp"]
        command += [f"--python-version={python_version}", f"--abi={abi}"]
    requirement = f"{name}=={version}"
    pip = subprocess.run([*command, requirement], env=environment, capture_output=True, text=True, errors="replace")
    if pip.returncode:
        raise _failure(requirement, pip.stdout + pip.stderr)
    (wheel,) = folder.glob("*.whl")
    data = wheel.read_bytes()
    cure = (
        f"The package index served another file than the recipe pins. If {wheel.name} was rebuilt on purpose, put "
        "its checksum into the recipe; otherwise do not use that index."
    )
    check_sha256(requirement, expected=sha256, found=Written(hashlib.sha256(data).hexdigest(), len(data)), cure=cure)
    return wheel


def _failure(requirement: str, output: str) -> FetchError:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if "No module named pip" in output:
        return FetchError(
            f"{requirement}: this Python has no pip ({sys.executable}). Make the environment with `python -m venv`, or "
            "run `python -m ensurepip`."
        )
    if reason := next(filter(_NO_CONNECTION.search, lines), None):
        return UnreachableError(
            f"{requirement}: no network: pip cannot reach the package index.\n  {reason}\nCheck the connection, the "
            "proxy and `pip config list`, then run the same command again; finished steps stay finished."
        )
    if reason := next(filter(_SERVER_ERROR.search, lines), None):
        return UnreachableError(f"{requirement}: the package index answers an error.\n  {reason}\nTry again later.")
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")] or lines[-1:]
    return FetchError(
        f"{requirement}: pip cannot download it: {' '.join(errors)}\nThe index answered but has no such wheel. Check "
        f"that it has this version (`pip download --no-deps {requirement}`), or configure an index that does."
    )
