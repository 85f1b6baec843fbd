"""The standard library of the running interpreter, packed into one archive; costs no download."""

import hashlib
import pathlib
import platform
import sysconfig
import zipfile
from collections.abc import Iterator
from typing import NamedTuple

from runtime.text.fetch.errors import ChecksumError

# Not the library's own text, or not there on every build of the same version.
_LEFT_OUT = frozenset(
    ("__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo", "lib2to3", "ensurepip")
)
_GENERATED_PREFIXES = ("_sysconfigdata", "config-")
_EPOCH = (1980, 1, 1, 0, 0, 0)


class Inventory(NamedTuple):
    """Which standard library this is, by what is in its modules: a patched one may have the sizes of the original.

    Reading them takes a tenth of a second of each plan (575 modules, 11 MB).
    """

    python_version: str
    sha256: str


def inventory() -> Inventory:
    digest = hashlib.sha256()
    for name, path in _modules():
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return Inventory(f"{platform.python_implementation()} {platform.python_version()}", digest.hexdigest())


def refuse_another_python(expected: Inventory) -> None:
    """Raises ChecksumError if this interpreter is not the one that was planned with."""
    found = inventory()
    if found != expected:
        raise ChecksumError(
            f"standard library: the plan was made with {expected.python_version} (inventory {expected.sha256[:12]}), "
            f"this process runs {found.python_version} (inventory {found.sha256[:12]}); run driver and workers with "
            "the same Python, or plan again."
        )


def pack_standard_library(expected: Inventory, destination: pathlib.Path) -> None:
    """Writes the modules as a zip archive; refuses if this interpreter is not the one that was planned with."""
    refuse_another_python(expected)
    with zipfile.ZipFile(destination, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in _modules():
            # The date and mode of a file on this machine must not reach the bytes of the archive.
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)


def _modules() -> Iterator[tuple[str, pathlib.Path]]:
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    yield from sorted((path.relative_to(root).as_posix(), path) for path in _walk(root))


def _walk(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    for path in folder.iterdir():
        if path.name in _LEFT_OUT or path.name.startswith(_GENERATED_PREFIXES):
            continue
        if path.is_dir():
            yield from _walk(path)
        elif path.suffix == ".py":
            yield path
