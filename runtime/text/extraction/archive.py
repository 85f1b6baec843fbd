"""Archives and plain files: which members a format covers, and their bytes, without unpacking to disk."""

import contextlib
import fnmatch
import zipfile
from collections.abc import Iterator, Sequence
from typing import IO, NamedTuple

import fsspec

from runtime.text.extraction.formats import Format

ARCHIVE_SUFFIXES = (".whl", ".zip")


class UnreadableArchiveError(ValueError):
    """An archive that cannot be opened or a member that cannot be unpacked."""


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
    return path.endswith(ARCHIVE_SUFFIXES)


def list_members(path: str) -> list[Member]:
    """Files of an archive in alphabetical order; a plain file is its own and only member."""
    if not is_archive(path):
        with fsspec.open(path, "rb") as file:
            return [Member(path.rsplit("/", 1)[-1], file.seek(0, 2))]
    with _open_zip(path) as archive:
        members = [Member(info.filename, info.file_size) for info in archive.infolist() if not info.is_dir()]
        return sorted(members)


def units(path: str, name: str, formats: Sequence[Format], *, unit_bytes: int) -> list[Unit]:
    """Cuts what the formats cover into units of about `unit_bytes`, by the archive's own table of contents.

    Of a plain file it is `name`, as its publisher has it, that a format covers or not.
    """
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
    with _open_zip(unit.file) as archive:
        for name in unit.members:
            with archive.open(name) as file:
                yield f"{unit.name}/{name}" if unit.name else name, file


def read_member(file: IO[bytes], archive: str, name: str) -> bytes:
    try:
        return file.read()
    except (zipfile.BadZipFile, EOFError, OSError) as error:
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
