"""Archives and plain files: which members a format covers, and their bytes, without unpacking to disk."""

import bz2
import contextlib
import fnmatch
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NamedTuple

import fsspec
import pyarrow as pa

from runtime.text.extraction.extracted import DamagedFileError
from runtime.text.extraction.formats import Format

ZIP_SUFFIXES = (".whl", ".zip")
# The standard library's streams say when they are cut short; tarfile's own would only end there.
_COMPRESSED_TARS: dict[str, Callable[[IO[bytes]], Any]] = {
    ".tar.gz": gzip.open,
    ".tgz": gzip.open,
    ".tar.bz2": bz2.open,
    ".tar.xz": lzma.open,
    ".tar.zst": lambda file: pa.CompressedInputStream(pa.PythonFile(file, mode="r"), "zstd"),
}
TAR_SUFFIXES = (".tar", *_COMPRESSED_TARS)


class UnreadableArchiveError(DamagedFileError):
    """An archive that cannot be opened or a member that cannot be unpacked."""


_WHOLE = 1 << 62


class Member(NamedTuple):
    name: str
    size_in_bytes: int


class Unit(NamedTuple):
    """Work for one shard: members of one file, read as one format."""

    file: str
    """Path of the downloaded file."""
    name: str
    """What ids call the file; "" for an archive whose members need no telling from another's."""
    format_index: int
    members: tuple[str, ...]
    """Empty for a file that is no archive."""


def is_archive(path: str) -> bool:
    return path.endswith((*ZIP_SUFFIXES, *TAR_SUFFIXES))


def list_members(path: str) -> list[Member]:
    """Files of an archive in alphabetical order; a plain file is its own and only member."""
    if not is_archive(path):
        with fsspec.open(path, "rb") as file:
            return [Member(path.rsplit("/", 1)[-1], file.seek(0, 2))]
    if path.endswith(ZIP_SUFFIXES):
        with _open_zip(path) as archive:
            return sorted(Member(info.filename, info.file_size) for info in archive.infolist() if not info.is_dir())
    return sorted(Member(info.name, info.size) for info, _ in _tar_members(path))


def units(path: str, name: str, formats: Sequence[Format], *, unit_bytes: int) -> list[Unit]:
    """Cuts what the formats cover into units of about `unit_bytes`, by the archive's own table of contents.

    Of a plain file it is `name`, as its publisher has it, that a format covers or not. A compressed tar archive is one
    unit for each format, since every other would have to be unpacked from the beginning.
    """
    if path.endswith(tuple(_COMPRESSED_TARS)):
        unit_bytes = _WHOLE
    members = [member if is_archive(path) else member._replace(name=name) for member in list_members(path)]
    found = []
    for index, format_ in enumerate(formats):
        group: list[str] = []
        group_bytes = 0
        for member in members:
            if not covers(format_, member.name):
                continue
            group.append(member.name)
            group_bytes += member.size_in_bytes
            if group_bytes >= unit_bytes:
                found.append(Unit(path, name, index, tuple(group)))
                group, group_bytes = [], 0
        if group:
            found.append(Unit(path, name, index, tuple(group)))
    return found if is_archive(path) else [unit._replace(members=()) for unit in found]


def covers(format_: Format, name: str) -> bool:
    def matches(patterns: Sequence[str]) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    return matches(format_.members) and not matches(format_.exclude)


def open_members(unit: Unit) -> Iterator[tuple[str, IO[bytes]]]:
    """Name and stream of each member of a unit, one at a time; names tell the files of a source apart."""
    if not unit.members:
        with fsspec.open(unit.file, "rb") as file:
            yield unit.name, file
        return
    if not unit.file.endswith(ZIP_SUFFIXES):
        wanted = frozenset(unit.members)
        for info, tar in _tar_members(unit.file):
            member = tar.extractfile(info) if info.name in wanted else None
            if member is not None:
                yield f"{unit.name}/{info.name}" if unit.name else info.name, member
        return
    with _open_zip(unit.file) as archive:
        for name in unit.members:
            with archive.open(name) as file:
                yield f"{unit.name}/{name}" if unit.name else name, file


def read_member(file: IO[bytes], archive: str, name: str) -> bytes:
    try:
        return file.read()
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
        raise UnreadableArchiveError(
            f"{archive}: member {name!r} cannot be unpacked ({error}); the archive is damaged: fetch it anew, or leave "
            "the member out with `exclude`."
        ) from error


@contextlib.contextmanager
def _open_zip(path: str) -> Iterator[zipfile.ZipFile]:
    with fsspec.open(path, "rb") as file:
        try:
            archive = zipfile.ZipFile(file)
        except zipfile.BadZipFile as error:
            raise UnreadableArchiveError(
                f"{path}: not a readable zip archive ({error}); it is cut short or not an archive at all: fetch it "
                "anew, and compare its checksum with the publisher's."
            ) from error
        with archive:
            yield archive


def _tar_members(path: str) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    """Files of a tar archive in its own order; a link, a device or a folder is none."""
    decompress = next((opened for suffix, opened in _COMPRESSED_TARS.items() if path.endswith(suffix)), None)
    with fsspec.open(path, "rb") as file, contextlib.ExitStack() as stack:
        try:
            if decompress is not None:
                file = stack.enter_context(decompress(file))
            with tarfile.open(fileobj=file, mode="r:" if decompress is None else "r|") as archive:
                for info in archive:
                    if info.isfile():
                        yield info, archive
        except (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk or the network, not the archive
            raise UnreadableArchiveError(
                f"{path}: not a readable tar archive ({error}); it is cut short or not an archive at all: fetch it "
                "anew, and compare its checksum with the publisher's."
            ) from error
