"""Archives and plain files: the members that a format covers, and their bytes, without unpacking to disk."""

import bz2
import contextlib
import fnmatch
import functools
import gzip
import io
import lzma
import shutil
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NamedTuple, cast

from runtime.text.extraction.damage import as_damage, open_stored, store_failures_raised
from runtime.text.extraction.extracted import DamagedFileError, Unreadable
from runtime.text.extraction.formats import Format, Unit
from runtime.text.extraction.guard import Guard
from runtime.text.extraction.limits import DEFAULTS, Limits, Unpacked, memory_bound, unpack_zstd

ZIP_SUFFIXES = (".whl", ".zip")
# tarfile's own decompression ends silently where a stream is cut short; these raise.
_COMPRESSED_TARS: dict[str, Callable[[IO[bytes], str, Limits], Any]] = {
    ".tar.gz": lambda file, *_: gzip.GzipFile(fileobj=file),
    ".tgz": lambda file, *_: gzip.GzipFile(fileobj=file),
    ".tar.bz2": lambda file, *_: bz2.BZ2File(file),
    ".tar.xz": lambda file, *_: lzma.LZMAFile(file),  # noqa: SIM115 -- the caller closes it
    ".tar.zst": unpack_zstd,
}
TAR_SUFFIXES = (".tar", *_COMPRESSED_TARS)

_CHUNK_BYTES = 1 << 20
_SPOOLED_IN_MEMORY_BYTES = 32 << 20
_CURE = "it is cut short, damaged or no archive. Fetch it again, and compare its checksum with the publisher's."
# Besides BadZipFile, zipfile raises these for damaged directories and headers.
_ODD_ZIP = (NotImplementedError, RuntimeError, ValueError, OverflowError, struct.error)
_TAR_ENDS, _NOT_TAR = tarfile.EOFHeaderError, tarfile.ReadError  # type: ignore[attr-defined]  # its stubs lack it
_LONG_HEADERS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
MOST_HEADER_BYTES = 1 << 20
"""Most bytes of a header that holds a long name or attributes; Go's `archive/tar` stops there, too."""
_ODD_TAR = (tarfile.HeaderError, ValueError, IndexError, OverflowError)


class Listing(NamedTuple):
    units: list[Unit]
    damage: str | None
    """The fault of an archive whose members cannot all be read; the units hold the others."""


def is_archive(path: str) -> bool:
    return path.endswith((*ZIP_SUFFIXES, *TAR_SUFFIXES))


def list_units(
    path: str, name: str, formats: Sequence[Format], *, unit_bytes: int, limits: Limits = DEFAULTS
) -> Listing:
    """List the members that the formats cover, in units of about `unit_bytes`.

    A format covers a plain file by `name`. A compressed tar archive is one unit a format: each further unit would
    unpack it from the beginning again.
    """
    if not is_archive(path):
        return Listing([Unit(path, name, i, ()) for i, format_ in enumerate(formats) if covers(format_, name)], None)
    sizes: dict[str, int] = {}
    repeated: dict[str, None] = {}
    damage = None
    try:
        with store_failures_raised(), memory_bound(f"{path}: the names of its members", limits):
            for member, size in _members(path, limits):
                if member in sizes:
                    repeated[member] = None
                sizes[member] = size
    except DamagedFileError as error:
        damage = str(error)
    if damage is None and repeated:
        first = next(iter(repeated))
        damage = f"{path}: {len(repeated)} names stand for several members, such as {first!r}; one of them is read."
    limit = None if path.endswith(tuple(_COMPRESSED_TARS)) else unit_bytes
    units = [
        Unit(path, name, index, tuple(group))
        for index, format_ in enumerate(formats)
        for group in _groups([(member, sizes[member]) for member in sorted(sizes) if covers(format_, member)], limit)
    ]
    return Listing(units, damage)


def list_zip(
    guard: Guard, path: str, name: str, formats: Sequence[Format], *, unit_bytes: int, limits: Limits = DEFAULTS
) -> Listing:
    """List the members of a zip archive as `list_units` does; the guard reads the archive's directory as a whole."""
    (found,) = guard(_listings, path, name, formats, unit_bytes, limits, anchor="", name=path, data=b"")
    if isinstance(found, Unreadable):
        return Listing([], f"{path}: the list of its members {found.reason}. Leave the file out, or raise `limits`.")
    return cast(Listing, found)


def _listings(
    path: str, name: str, formats: Sequence[Format], unit_bytes: int, limits: Limits
) -> Iterator[Listing | Unreadable]:
    yield list_units(path, name, formats, unit_bytes=unit_bytes, limits=limits)


def covers(format_: Format, name: str) -> bool:
    matches = functools.partial(fnmatch.fnmatchcase, name)
    return any(map(matches, format_.members)) and not any(map(matches, format_.exclude))


def _groups(members: Sequence[tuple[str, int]], limit: int | None) -> Iterator[list[str]]:
    group: list[str] = []
    num_bytes = 0
    for name, size in members:
        group.append(name)
        num_bytes += size
        if limit is not None and num_bytes >= limit:
            yield group
            group, num_bytes = [], 0
    if group:
        yield group


def open_members(unit: Unit, limits: Limits) -> Iterator[tuple[str, Callable[[], IO[bytes]]]]:
    """Yield the name of each member, unique in the source, and a function that opens it before the next is asked for.

    Raise DamagedFileError if no further member can be read. The function raises it where only its member cannot.
    """
    if not unit.members:
        with open_stored(unit.file) as file:
            yield unit.name, lambda: file
        return
    prefix = f"{unit.name}/" if unit.name else ""
    if unit.file.endswith(ZIP_SUFFIXES):
        with _open_zip(unit.file) as archive:
            for name in unit.members:
                yield prefix + name, functools.partial(_open_zip_member, archive, unit.file, name, limits)
        return
    left = set(unit.members)  # damage after the last of them is the listing's to report
    for member, tar in _tar_members(unit.file, limits):
        name = _printable(member.name)
        if name in left:
            left.remove(name)
            yield prefix + name, functools.partial(cast(Callable[..., IO[bytes]], tar.extractfile), member)
        if not left:
            return


def is_seekable(unit: Unit) -> bool:
    """Return whether members can be read in any order without unpacking them again."""
    return not unit.members or not unit.file.endswith((*ZIP_SUFFIXES, *_COMPRESSED_TARS))


@contextlib.contextmanager
def spooled(file: IO[bytes]) -> Iterator[IO[bytes]]:
    """Copy a file so that it can be read in any order; a large copy lies in a temporary file."""
    with tempfile.SpooledTemporaryFile(_SPOOLED_IN_MEMORY_BYTES) as copy:
        shutil.copyfileobj(file, copy, _CHUNK_BYTES)
        copy.seek(0)
        yield copy


def _members(path: str, limits: Limits) -> Iterator[tuple[str, int]]:
    if path.endswith(ZIP_SUFFIXES):
        with _open_zip(path) as archive:
            yield from ((info.filename, info.file_size) for info in archive.infolist() if not info.is_dir())
    else:
        yield from ((_printable(info.name), info.size) for info, _ in _tar_members(path, limits))


@contextlib.contextmanager
def _open_zip(path: str) -> Iterator[zipfile.ZipFile]:
    """Open an archive. Its directory is bounded where it is listed: a limit here would end the reader of a member."""
    with open_stored(path) as file:
        with as_damage(f"{path}: no readable zip archive", _CURE, *_ODD_ZIP):
            archive = zipfile.ZipFile(file)
        with archive:
            yield archive


def _open_zip_member(archive: zipfile.ZipFile, path: str, name: str, limits: Limits) -> IO[bytes]:
    with as_damage(f"{path}: member {name!r} cannot be opened", _CURE, *_ODD_ZIP):
        size = archive.getinfo(name).compress_size
        return io.BufferedReader(Unpacked(archive.open(name), lambda: size, f"{path}: member {name!r}", limits))


class _TarInfo(tarfile.TarInfo):
    """Headers that raise where they cannot be read; tarfile's own would silently end the archive there."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_TarInfo":
        info = super().frombuf(buf, encoding, errors)
        if info.type in _LONG_HEADERS and info.size > MOST_HEADER_BYTES:
            raise tarfile.HeaderError(f"it claims {info.size:,} bytes of names, more than {MOST_HEADER_BYTES:,}")
        return info

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> "_TarInfo":
        try:
            return super().fromtarfile(tarfile)
        except _TAR_ENDS:
            raise
        except _ODD_TAR as error:
            raise _NOT_TAR(f"no header of a member at byte {tarfile.offset:,}: {error}") from error


def _tar_members(path: str, limits: Limits) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    """Yield the files of a tar archive in its order, without links, devices and folders."""
    decompress = next((opened for suffix, opened in _COMPRESSED_TARS.items() if path.endswith(suffix)), None)
    damage = as_damage(f"{path}: no readable tar archive", _CURE)
    with open_stored(path) as file, damage, contextlib.ExitStack() as stack:
        if decompress is not None:
            file = cast(
                IO[bytes], Unpacked(stack.enter_context(decompress(file, path, limits)), file.tell, path, limits)
            )
        with tarfile.open(fileobj=file, mode="r:" if decompress is None else "r|", tarinfo=_TarInfo) as archive:
            for info in archive:
                if info.isfile():
                    yield info, archive
                archive.members = []  # type: ignore[attr-defined]  # tarfile keeps all of them; its stubs lack it
        while decompress is not None and file.read(_CHUNK_BYTES):
            pass  # up to the checksum after the last member


def _printable(name: str) -> str:
    """Return the name without surrogates, which stand for bytes that are not UTF-8 and have no place in an id."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")
