"""Python packages: wheels, which pip downloads as the user has configured it, and the interpreter's own library."""

import hashlib
import os
import pathlib
import platform
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from runtime.text.fetch.errors import ChecksumError, FetchError, UnreachableError
from runtime.text.fetch.verified import Written, check_sha256

# Folders that hold other packages or tests, or that some builds of a version lack.
_EXCLUDED = frozenset(
    ("__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo", "lib2to3", "ensurepip")
)
_GENERATED_PREFIXES = ("_sysconfigdata", "config-")
_EPOCH = (1980, 1, 1, 0, 0, 0)


# Words of pip (23 to 26) and urllib3. Only -vv shows them: without it pip says that no version was found.
_NO_CONNECTION = re.compile(
    "connection error|NewConnectionError|ConnectTimeoutError|ReadTimeoutError|NameResolutionError|ProxyError"
    "|Temporary failure in name resolution|Failed to establish a new connection|Connection refused"
    "|Network is unreachable"
)
_SERVER_ERROR = re.compile(r"Could not fetch URL.*(: 5\d\d Server Error|too many 5\d\d error)")


class Inventory(NamedTuple):
    """Version of the interpreter, and a checksum over the names and contents of its modules."""

    python_version: str
    sha256: str


def inventory() -> Inventory:
    """Return the inventory of the running interpreter; takes 0.1 s (575 modules, 11 MB)."""
    digest = hashlib.sha256()
    for name, path in _modules():
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return Inventory(f"{platform.python_implementation()} {platform.python_version()}", digest.hexdigest())


def check_inventory(expected: Inventory) -> None:
    """Raise ChecksumError if this interpreter is not the planned one."""
    found = inventory()
    if found != expected:
        raise ChecksumError(
            f"standard library: the plan was made with {expected.python_version} (inventory {expected.sha256[:12]}), "
            f"this process runs {found.python_version} (inventory {found.sha256[:12]}). Run driver and workers with "
            "the same Python, or plan again."
        )


def pack_standard_library(expected: Inventory, destination: pathlib.Path) -> None:
    """Write the modules as a zip archive; raise ChecksumError if this interpreter is not the planned one."""
    check_inventory(expected)
    with zipfile.ZipFile(destination, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in _modules():
            # Dates and modes of this machine's files must not reach the bytes of the archive.
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)


def _modules() -> Iterator[tuple[str, pathlib.Path]]:
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not _is_excluded(name)]
        found += [pathlib.Path(folder, name) for name in files if name.endswith(".py") and not _is_excluded(name)]
    yield from sorted((path.relative_to(root).as_posix(), path) for path in found)


def _is_excluded(name: str) -> bool:
    return name in _EXCLUDED or name.startswith(_GENERATED_PREFIXES)


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
