"""Adopt: data from elsewhere becomes a committed output, hashed on the way in, that steps take as an input.

The identity of an adopted output is its content: the SHA-256 over path, size and SHA-256 of each file. So the same data
under another name, from another place or on another day are the same output.
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import google_crc32c
from pydantic import BaseModel

from marin_dag.errors import UserError
from marin_dag.graph.step import Step, StepContext, step
from marin_dag.ledger.epoch import Epoch
from marin_dag.ledger.lease import ADOPTS, Held, Leases
from marin_dag.ledger.provenance import collect_provenance, now
from marin_dag.ledger.records import FileEntry, Record, Records, attempt_path, make_manifest, new_attempt
from marin_dag.store.store import Store

BLOCK_IN_BYTES = 1 << 20


class AdoptedConfig(BaseModel, frozen=True, extra="forbid"):
    """The config that `adopt` prints, which names one content for ever."""

    content: str
    """SHA-256 over the files, in hexadecimal."""


class AdoptedFile(BaseModel, frozen=True, extra="forbid"):
    """A file; `path` is relative to the output."""

    path: str
    size_in_bytes: int
    sha256: str


class AdoptedResult(BaseModel, frozen=True, extra="forbid"):
    """The files, for steps that take `Input[AdoptedResult]`."""

    files: tuple[AdoptedFile, ...]


@step(policy="versioned", version="1")
def adopted(config: AdoptedConfig, context: StepContext) -> AdoptedResult:
    """Stand for data from elsewhere; never runs, since `adopt` commits the output."""
    raise UserError(
        f"{context.name}: no step makes these data. Bring them in with `adopt PATH --as {context.name}`, or use the "
        f"prefix that has them. Wanted: content {config.content}"
    )


class Source(NamedTuple):
    """A file to be adopted."""

    url: str
    path: str


class Adoption(NamedTuple):
    """An adopted output: the content to write into a recipe, and the record."""

    content: str
    record: Record
    is_new: bool


def sources_at(path: str) -> tuple[Any, list[Source]]:
    """Return the file system, and every file at `path` in the order of their relative paths."""
    import fsspec  # not above: a plan does not need it

    files, root = fsspec.core.url_to_fs(path)
    if not files.exists(root):
        raise UserError(f"adopt {path}: there is no such file or folder.")
    if files.isfile(root):
        return files, [Source(root, root.rstrip("/").rpartition("/")[2])]
    found = [Source(name, name.removeprefix(root.rstrip("/")).lstrip("/")) for name in files.find(root)]
    if not found:
        raise UserError(f"adopt {path}: the folder is empty.")
    return files, sorted(found, key=lambda source: source.path)


def adopt(store: Store, path: str, name: str, *, wanted: str | None = None) -> Adoption:
    """Copy the files at `path` into the store and commit them as the output of an `adopted` step.

    Args:
        path: a file, a folder, or a URL that fsspec opens.
        name: label of the step.
        wanted: the content in the recipe, if it has one; other content is refused before a byte is written.
    """
    system, sources = sources_at(path)
    files = [_read(system, source) for source in sources]
    content = _content(files)
    if wanted is not None and wanted != content:
        raise UserError(
            f"adopt {path} --as {name}: its content is {content}, and the recipe wants {wanted}. Find the data of the "
            "recipe, or write the new content into it."
        )
    item = adopted(name, AdoptedConfig(content=content))
    records = Records(store)
    there = records.find(item.key)
    if there is not None:
        records.label(name, item.key)
        return Adoption(content, there, is_new=False)
    leases = Leases(store)
    lease = leases.acquire(item.digest, name, lambda: None, does=ADOPTS)
    if isinstance(lease, Held):
        raise UserError(
            f"adopt {path}: another process works on the same data ({lease.holder.description}). Wait for it."
        )
    try:
        record = _copied(store, system, sources, item, files, lease.epoch)
    finally:
        lease.release()
        leases.close()
    return Adoption(content, record, is_new=True)


def _copied(
    store: Store, system: Any, sources: list[Source], item: Step[AdoptedResult], files: list[AdoptedFile], epoch: int
) -> Record:
    started, attempt = now(), new_attempt()
    folder = attempt_path(item.name, item.digest, attempt)
    entries = []
    for source, file in zip(sources, files, strict=True):
        checksum = google_crc32c.Checksum()
        with store.open(f"{folder}/{file.path}", "wb") as target:
            copied = _read(system, source, checksum.update, target.write)
        if copied != file:
            raise UserError(f"adopt: {source.url} changed while it was read. Adopt it when it no longer changes.")
        crc32c = checksum.digest().hex()
        entries.append(FileEntry(path=file.path, size_in_bytes=file.size_in_bytes, crc32c=crc32c))
    manifest = make_manifest(store, folder, entries)
    provenance = collect_provenance(store).model_copy(
        update={"started": started, "finished": now(), "lease_epoch": epoch}
    )
    record = Record(
        key=item.key,
        digest=item.digest,
        name=item.name,
        kind=item.kind.name,
        identity=item.identity,
        result=AdoptedResult(files=tuple(files)).model_dump(mode="json"),
        output_path=folder,
        attempt=attempt,
        manifest=manifest,
        provenance=provenance,
    )
    return Epoch(store, item.digest, epoch).commit(record)


def _content(files: list[AdoptedFile]) -> str:
    whole = hashlib.sha256()
    for file in files:
        # With the length of the name, no two lists of files give the same bytes.
        name = file.path.encode()
        whole.update(f"{len(name)}:".encode() + name + f":{file.size_in_bytes}:{file.sha256}\n".encode())
    return whole.hexdigest()


def _read(system: Any, source: Source, *sinks: Callable[[bytes], Any]) -> AdoptedFile:
    """Give each block of a file to all of `sinks`; return its size and hash."""
    hasher, size = hashlib.sha256(), 0
    for block in _blocks(system, source):
        size += len(block)
        for sink in (hasher.update, *sinks):
            sink(block)
    return AdoptedFile(path=source.path, size_in_bytes=size, sha256=hasher.hexdigest())


def _blocks(system: Any, source: Source) -> Iterator[bytes]:
    try:
        with system.open(source.url, "rb") as file:
            while block := file.read(BLOCK_IN_BYTES):
                yield block
    except OSError as error:
        raise UserError(
            f"adopt: {source.url} cannot be read: {error.strerror or error}. Make it readable, or adopt a folder "
            "without it (a link to a folder is not a file)."
        ) from error
