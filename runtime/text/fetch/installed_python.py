"""The standard library of the running interpreter, as one archive; needs no download."""

import hashlib
import os
import pathlib
import platform
import sysconfig
import zipfile
from collections.abc import Iterator
from typing import NamedTuple

from runtime.text.fetch.errors import ChecksumError

# Folders that hold other packages or tests, or that some builds of a version lack.
_EXCLUDED = frozenset(
    ("__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo", "lib2to3", "ensurepip")
)
_GENERATED_PREFIXES = ("_sysconfigdata", "config-")
_EPOCH = (1980, 1, 1, 0, 0, 0)


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
