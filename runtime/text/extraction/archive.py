"""Archives and plain files: which members a format covers, and their bytes, without unpacking to disk."""

import bz2
import contextlib
import fnmatch
import functools
import gzip
import lzma
import struct
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NamedTuple, cast

import pyarrow as pa

from runtime.text.extraction.damage import damage_told, open_stored, store_failures_raised
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


_CHUNK_BYTES = 1 << 20
_SPOOLED_IN_MEMORY_BYTES = 32 << 20
MAX_SPOOLED_BYTES = 16 << 30
"""What a member may take of the machine's temporary folder while it is read."""
_WHOLE = 1 << 62
_FETCH_ANEW = (
    "it is cut short, damaged or not an archive at all: fetch it anew, and compare its checksum with the publisher's."
)
# Besides BadZipFile, what the standard library raises for directories and headers that are no such thing: versions and
# methods that nobody has, names that are no text, places before the file begins, a password.
_ODD_ZIP = (NotImplementedError, RuntimeError, ValueError, OverflowError, struct.error)
_TAR_ENDS, _NOT_TAR = tarfile.EOFHeaderError, tarfile.ReadError  # type: ignore[attr-defined]  # its stubs lack it
_ODD_TAR = (tarfile.HeaderError, ValueError, IndexError, OverflowError)


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
    outdated: tuple[tuple[str, int], ...] = ()
    """How many times a member of a tar lies before its last: who appends to a tar replaces what was there."""


class Listing(NamedTuple):
    units: list[Unit]
    damage: str | None
    """What is wrong with the archive, if its members cannot all be had; those that can are in the units."""


def is_archive(path: str) -> bool:
    return path.endswith((*ZIP_SUFFIXES, *TAR_SUFFIXES))


def list_units(path: str, name: str, formats: Sequence[Format], *, unit_bytes: int) -> Listing:
    """Cuts what the formats cover into units of about `unit_bytes`, by the archive's own table of contents.

    Of a plain file it is `name`, as its publisher has it, that a format covers or not. A compressed tar archive is one
    unit for each format, since every other would have to be unpacked from the beginning.
    """
    if path.endswith(tuple(_COMPRESSED_TARS)):
        unit_bytes = _WHOLE
    damage = None
    members = [Member(name, 0)]
    numbers: Counter[str] = Counter()
    if is_archive(path):
        members = []
        try:
            with store_failures_raised():
                members.extend(_members(path))
        except DamagedFileError as error:
            damage = str(error)
        numbers = Counter(member.name for member in members)
        if damage is None and (twice := [name for name, number in numbers.items() if number > 1]):
            damage = (
                f"{path}: members that are there more than once: {len(twice)}, such as {twice[0]!r}; the last is read."
            )
        members = list({member.name: member for member in members}.values())
    found = []

    def unit_of(index: int, names: list[str]) -> Unit:
        outdated = [(name, numbers[name] - 1) for name in names if numbers[name] > 1]
        return Unit(path, name, index, tuple(names), tuple(outdated))

    for index, format_ in enumerate(formats):
        group: list[str] = []
        group_bytes = 0
        for member in sorted(members):
            if not covers(format_, member.name):
                continue
            group.append(member.name)
            group_bytes += member.size_in_bytes
            if group_bytes >= unit_bytes:
                found.append(unit_of(index, group))
                group, group_bytes = [], 0
        if group:
            found.append(unit_of(index, group))
    return Listing(found if is_archive(path) else [unit._replace(members=(), outdated=()) for unit in found], damage)


def covers(format_: Format, name: str) -> bool:
    def matches(patterns: Sequence[str]) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    return matches(format_.members) and not matches(format_.exclude)


def open_members(unit: Unit) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    """Name of each member of a unit, and what opens it until the next is asked for; one at a time.

    Names tell the files of a source apart. What opens a member raises DamagedFileError where it cannot; so does the
    iterator, where no member behind can be had.
    """
    if not unit.members:
        with open_stored(unit.file) as file:
            yield unit.name, lambda: file
        return
    prefix = f"{unit.name}/" if unit.name else ""
    if unit.file.endswith(ZIP_SUFFIXES):
        with _open_zip(unit.file) as archive:
            for name in unit.members:
                yield prefix + name, functools.partial(_open_zip_member, archive, unit.file, name)
        return
    # No further than to the last: what is wrong behind it is the listing's to tell, once.
    left = set(unit.members)
    outdated = Counter(dict(unit.outdated))
    for member, tar in _tar_members(unit.file):
        name = _printable(member.name)
        if outdated[name]:
            outdated[name] -= 1
        elif name in left:
            left.remove(name)
            yield prefix + name, functools.partial(_open_tar_member, tar, member)
        if not left:
            return


def is_seekable(unit: Unit) -> bool:
    """Whether members can be read in any order as they lie, without unpacking them again from their beginning."""
    return not unit.members or not unit.file.endswith((*ZIP_SUFFIXES, *_COMPRESSED_TARS))


@contextlib.contextmanager
def spooled(file: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    """A copy that can be read in any order; what does not fit into memory lies in a temporary file.

    Raises:
        DamagedFileError: the member unpacks to more than `MAX_SPOOLED_BYTES`.
    """
    with tempfile.SpooledTemporaryFile(_SPOOLED_IN_MEMORY_BYTES) as copy:
        size = 0
        while data := file.read(_CHUNK_BYTES):
            size += len(data)
            if size > MAX_SPOOLED_BYTES:
                raise DamagedFileError(
                    f"{name}: unpacks to more than {MAX_SPOOLED_BYTES:,} bytes, and cannot be read in the order in "
                    "which it lies; take it out of its archive, or leave it out with `exclude`."
                )
            copy.write(data)
        copy.seek(0)
        yield copy


def read_member(file: IO[bytes], archive: str, name: str) -> bytes:
    cure = "the archive is damaged: fetch it anew, or leave the member out with `exclude`."
    with damage_told(f"{archive}: member {name!r} cannot be unpacked", cure):
        return file.read()


def _members(path: str) -> Iterator[Member]:
    """Files of an archive."""
    if path.endswith(ZIP_SUFFIXES):
        with _open_zip(path) as archive:
            yield from (Member(info.filename, info.file_size) for info in archive.infolist() if not info.is_dir())
    else:
        yield from (Member(_printable(info.name), info.size) for info, _ in _tar_members(path))


@contextlib.contextmanager
def _open_zip(path: str) -> Iterator[zipfile.ZipFile]:
    with open_stored(path) as file:
        what = f"{path}: not a readable zip archive"
        try:
            with damage_told(what, _FETCH_ANEW):
                archive = zipfile.ZipFile(file)
        except DamagedFileError:
            raise
        except _ODD_ZIP as error:
            raise DamagedFileError(f"{what} ({error}); {_FETCH_ANEW}") from error
        with archive:
            yield archive


def _open_zip_member(archive: zipfile.ZipFile, path: str, name: str) -> IO[bytes]:
    what = f"{path}: member {name!r} cannot be opened"
    try:
        with damage_told(what, _FETCH_ANEW):
            return archive.open(name)
    except DamagedFileError:
        raise
    except _ODD_ZIP as error:
        raise DamagedFileError(f"{what} ({error}); {_FETCH_ANEW}") from error


def _open_tar_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    file = archive.extractfile(member)
    assert file is not None, f"{member.name} is a file"
    return file


class _Promptly:
    """Gives what is unpacked as it comes: a reader that waits for more loses it where the stream is cut short."""

    def __init__(self, file: Any) -> None:
        self.read = file.read1 if hasattr(file, "read1") else file.read


class _TarInfo(tarfile.TarInfo):
    """Python's own takes a header that cannot be read for the end of the archive, and loses what is behind it."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> "_TarInfo":
        try:
            return super().fromtarfile(tarfile)
        except _TAR_ENDS:
            raise
        except _ODD_TAR as error:
            raise _NOT_TAR(f"no header of a member at byte {tarfile.offset:,}: {error}") from error


def _tar_members(path: str) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    """Files of a tar archive in its own order; a link, a device or a folder is none."""
    decompress = next((opened for suffix, opened in _COMPRESSED_TARS.items() if path.endswith(suffix)), None)
    told = damage_told(f"{path}: not a readable tar archive", _FETCH_ANEW)
    with open_stored(path) as file, told, contextlib.ExitStack() as stack:
        if decompress is not None:
            file = cast(IO[bytes], _Promptly(stack.enter_context(decompress(file))))
        with tarfile.open(fileobj=file, mode="r:" if decompress is None else "r|", tarinfo=_TarInfo) as archive:
            for info in archive:
                if info.isfile():
                    yield info, archive
        while decompress is not None and file.read(_CHUNK_BYTES):
            pass  # to the checksum behind the last member


def _printable(name: str) -> str:
    """The name without the surrogates that stand for bytes that are no UTF-8: they have no form in an id."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")
