"""Wheels, fetched by pip through whatever index, mirror or folder the user has configured."""

import hashlib
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Mapping

from runtime.text.fetch.copy import wrong_checksum
from runtime.text.fetch.errors import FetchError, UnreachableError

# What pip (23 to 26) and urllib3 write when nobody answers; asked for by -vv, since pip keeps the reason of an
# unreachable index to itself otherwise and says only that no version was found.
_NO_CONNECTION = (
    "connection error",
    "NewConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "NameResolutionError",
    "Temporary failure in name resolution",
    "Failed to establish a new connection",
    "Connection refused",
    "Network is unreachable",
    "ProxyError",
)
_SERVER_ERROR = re.compile(r": 5\d\d Server Error|too many 5\d\d error")


def download_wheel(
    name: str,
    version: str,
    folder: pathlib.Path,
    *,
    sha256: str,
    platform_tags: tuple[str, str, str] | None,
    environment: Mapping[str, str] = os.environ,
) -> pathlib.Path:
    """Downloads one wheel into `folder` and returns its path.

    `platform_tags` are (platform, Python version, ABI) of a wheel with compiled code: naming them gives the same
    file on every machine, since nothing is installed and only its texts are read.
    """
    command = [sys.executable, "-m", "pip", "download", "-vv", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar=off", "--no-deps", "--only-binary=:all:", f"--dest={folder}"]
    if platform_tags is not None:
        platform, python_version, abi = platform_tags
        command += [
            f"--platform={platform}",
            "--implementation=cp",
            f"--python-version={python_version}",
            f"--abi={abi}",
        ]
    requirement = f"{name}=={version}"
    run = subprocess.run([*command, requirement], env=dict(environment), capture_output=True, text=True, check=False)
    if run.returncode:
        raise _failure(requirement, run.stdout + run.stderr)
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"{requirement}: pip left {[path.name for path in wheels]} in the folder; expected one wheel.")
    found = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if found != sha256:
        cure = (
            f"The package index served another file than the one this recipe was written for. If {wheels[0].name} was "
            "rebuilt on purpose, put its checksum into the recipe; otherwise do not use that index."
        )
        raise wrong_checksum(
            requirement, expected=sha256, found=found, size_in_bytes=wheels[0].stat().st_size, cure=cure
        )
    return wheels[0]


def _failure(requirement: str, output: str) -> FetchError:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")] or lines[-1:]
    if "No module named pip" in output:
        return FetchError(
            f"{requirement}: this Python has no pip ({sys.executable}); make the environment with `python -m venv`, or "
            "run `python -m ensurepip`."
        )
    reason = next((line for line in lines if any(mark in line for mark in _NO_CONNECTION)), None)
    if reason is not None:
        return UnreachableError(
            f"{requirement}: no network: pip cannot reach the package index.\n  {reason}\nCheck the connection, the "
            "proxy and `pip config list`, then run the same command again; what is finished stays finished."
        )
    trouble = next((line for line in lines if "Could not fetch URL" in line and _SERVER_ERROR.search(line)), None)
    if trouble is not None:
        return UnreachableError(f"{requirement}: the package index is in trouble.\n  {trouble}\nTry again later.")
    return FetchError(
        f"{requirement}: pip cannot download it: {' '.join(errors)}\nThe index answered, but has no such wheel; check "
        "that it carries this version (`pip download --no-deps "
        f"{requirement}`) or point pip at one that does."
    )
