"""Adopt: data from elsewhere becomes a committed output, hashed on the way in, that steps take as an input.

The identity of an adopted output is its content: the SHA-256 over path, size and SHA-256 of each file. So the same data
under another name, from another place or on another day are the same output.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import google_crc32c
from pydantic import BaseModel

from marin_dag.errors import UserError
from marin_dag.graph.step import Step, StepContext, step
from marin_dag.ledger.epoch import Epoch
from marin_dag.ledger.lease import ADOPTS, Held, Leases
from marin_dag.ledger.provenance import collect_provenance, now
from marin_dag.ledger.records import FileEntry, Record, Records, attempt_path, make_manifest, new_attempt
from marin_dag.store.store import BLOCK_IN_BYTES, Store


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
    """A file to be adopted, and its content when it was first read."""

    url: str
    file: AdoptedFile
    crc32c: str


class Adoption(NamedTuple):
    """An adopted output: the content to write into a recipe, and the record."""

    content: str
    record: Record
    is_new: bool


def adopt(store: Store, path: str, name: str, *, wanted: str | None = None) -> Adoption:
    """Copy the files at `path`, which fsspec opens, into the store and commit them as the output of an `adopted` step.

    `wanted` is the content in the recipe, if it has one; other content is refused before a byte is written.
    """
    system, sources = _sources_at(path)
    content = _content([source.file for source in sources])
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
        record = _copied(store, system, sources, item, lease.epoch)
    finally:
        lease.release()
        leases.close()
    return Adoption(content, record, is_new=True)


def _sources_at(path: str) -> tuple[Any, list[Source]]:
    """Return the file system, and every file at `path` in the order of their relative paths."""
    import fsspec  # not above: a plan does not need it

    system, root = fsspec.core.url_to_fs(path)
    root = root.rstrip("/")
    if not system.exists(root):
        raise UserError(f"adopt {path}: there is no such file or folder.")
    if system.isfile(root):
        found = {root.rpartition("/")[2]: root}
    else:
        found = {url.removeprefix(root).lstrip("/"): url for url in system.find(root)}
    if not found:
        raise UserError(f"adopt {path}: the folder is empty.")
    return system, [_source(system, url, inside) for inside, url in sorted(found.items())]


def _source(system: Any, url: str, path: str) -> Source:
    sha256, crc32c = hashlib.sha256(), google_crc32c.Checksum()
    size = sum(map(len, _blocks(system, url, sha256, crc32c)))
    return Source(url, AdoptedFile(path=path, size_in_bytes=size, sha256=sha256.hexdigest()), crc32c.digest().hex())


def _copied(store: Store, system: Any, sources: list[Source], item: Step[AdoptedResult], epoch: int) -> Record:
    started, attempt = now(), new_attempt()
    folder = attempt_path(item.name, item.digest, attempt)
    entries = []
    for url, file, crc32c in sources:
        sha256 = hashlib.sha256()
        store.write_blocks(f"{folder}/{file.path}", _blocks(system, url, sha256))
        if sha256.hexdigest() != file.sha256:
            raise UserError(f"adopt: {url} changed while it was read. Adopt it when it no longer changes.")
        entries.append(FileEntry(path=file.path, size_in_bytes=file.size_in_bytes, crc32c=crc32c))
    provenance = collect_provenance(store).model_copy(
        update={"started": started, "finished": now(), "lease_epoch": epoch}
    )
    record = Record(
        key=item.key,
        digest=item.digest,
        name=item.name,
        kind=item.kind.name,
        identity=item.identity,
        result=AdoptedResult(files=tuple(source.file for source in sources)).model_dump(mode="json"),
        output_path=folder,
        attempt=attempt,
        manifest=make_manifest(store, folder, entries),
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


def _blocks(system: Any, url: str, *hashers: Any) -> Iterator[bytes]:
    """Yield the bytes of a file, which the hashers get first."""
    try:
        with system.open(url, "rb") as file:
            while block := file.read(BLOCK_IN_BYTES):
                for hasher in hashers:
                    hasher.update(block)
                yield block
    except OSError as error:
        raise UserError(
            f"adopt: {url} cannot be read: {error.strerror or error}. Make it readable, or adopt a folder "
            "without it (a link to a folder is not a file)."
        ) from error
