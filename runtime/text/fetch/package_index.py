"""Wheels, fetched by pip through whatever index, mirror or folder the user has configured."""

import contextlib
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import IO

from runtime.text.fetch.copy import wrong_checksum
from runtime.text.fetch.errors import FetchError, UnreachableError
from runtime.text.fetch.http_session import OnBytes

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
# How pip says of how much it downloads, of anything that is worth it.
_ANNOUNCED = re.compile(r"Downloading \S+ \((\d+(?:\.\d+)?) (kB|MB)\)")
_UNIT_BYTES = {"kB": 10**3, "MB": 10**6}
POLL_SECONDS = 1.0
_SERVER_ERROR = re.compile(r": 5\d\d Server Error|too many 5\d\d error")


def download_wheel(
    name: str,
    version: str,
    folder: pathlib.Path,
    *,
    sha256: str,
    platform_tags: tuple[str, str, str] | None,
    environment: Mapping[str, str] = os.environ,
    on_bytes: OnBytes | None = None,
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
    status, output = _run([*command, requirement], environment, on_bytes or (lambda done, total: None))
    if status:
        raise _failure(requirement, output)
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


def _run(command: list[str], environment: Mapping[str, str], on_bytes: OnBytes) -> tuple[int, str]:
    """Status and output of pip; while it runs, tells how much of what it downloads lies in its temporary folder."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            command, env={**environment, "TMPDIR": folder}, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            while (status := _status_within(child, POLL_SECONDS)) is None:
                announced = _ANNOUNCED.findall(_all_of(output))
                if announced:
                    number, unit = announced[-1]
                    total = round(float(number) * _UNIT_BYTES[unit])
                    on_bytes(min(_wheel_bytes(folder), total), total)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        return status, _all_of(output)


def _wheel_bytes(folder: str) -> int:
    """Bytes of the wheels in a folder from which they may vanish at any time."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".whl"):
                with contextlib.suppress(FileNotFoundError):
                    size += pathlib.Path(parent, name).stat().st_size
    return size


def _status_within(child: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _all_of(file: IO[bytes]) -> str:
    # By place, since the child writes where the file stands.
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


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
