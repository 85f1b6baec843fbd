"""Sources: the normalised source behind each code fingerprint, kept once in the store, so that a later plan can show
what changed without the code of that day. They explain a record and are never part of one."""

import difflib
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from marin_dag.identity.diff import CodeChanged
from marin_dag.store.redact import redact
from marin_dag.store.store import Store, StoreError

SOURCES = "sources"
TEXTS = TypeAdapter(dict[str, str])
"""Name of a definition to its text."""


class Coded(Protocol):
    """A step, as far as its source is kept."""

    @property
    def identity(self) -> dict[str, Any]: ...
    def source(self) -> dict[str, str]: ...


class SourceArchive:
    """The sources of one prefix: `sources/<fingerprint>.json.gz`, name of a definition to its text."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def keep(self, steps: Iterable[Coded]) -> None:
        """Keeps the sources of these steps, each fingerprint once; reads and writes nothing for those known."""
        by_fingerprint = {step.identity["code"]["fingerprint"]: step for step in steps}
        known = {entry.path for entry in self._store.list(SOURCES)} if by_fingerprint else set()
        for fingerprint, step in by_fingerprint.items():
            if _path(fingerprint) not in known:
                text = json.dumps(texts_of(step), sort_keys=True, indent=0)
                self._store.create(_path(fingerprint), gzip.compress(text.encode(), mtime=0))

    def find(self, fingerprint: str) -> dict[str, str] | None:
        """Definitions and their texts, or None where nobody kept them."""
        try:
            data = self._store.read(_path(fingerprint))
        except FileNotFoundError:
            return None
        try:
            return TEXTS.validate_json(gzip.decompress(data))
        except (OSError, EOFError, zlib.error, ValidationError) as error:
            said = f"{error.error_count()} errors" if isinstance(error, ValidationError) else error
            raise StoreError(
                f"{self._store.url(_path(fingerprint))}: not an archive of sources ({said}); delete it."
            ) from None


class SourceDiffs:
    """Unified diffs of changed code: from the store where it was kept, from the steps at hand where it is in use."""

    def __init__(self, store: Store, steps: Iterable[Coded]) -> None:
        self._archive = SourceArchive(store)
        self._steps = {step.identity["code"]["fingerprint"]: step for step in steps}
        self._known: dict[str, dict[str, str] | None] = {}

    def of(self, code: CodeChanged) -> Iterator[str]:
        """Lines of the diff; a line that says so where a side was not kept."""
        old, new = self._texts(code.old_fingerprint), self._texts(code.new_fingerprint)
        if old is None or new is None:
            missing = code.old_fingerprint if old is None else code.new_fingerprint
            yield f"(the source of fingerprint {missing[:12]} was not kept)"
            return
        for name in (*code.changed, *code.added, *code.removed):
            before, after = (texts.get(name, "").splitlines() for texts in (old, new))
            yield from difflib.unified_diff(before, after, f"{name} (then)", f"{name} (now)", lineterm="")

    def _texts(self, fingerprint: str) -> dict[str, str] | None:
        if fingerprint not in self._known:
            step = self._steps.get(fingerprint)
            self._known[fingerprint] = self._archive.find(fingerprint) if step is None else texts_of(step)
        return self._known[fingerprint]


def texts_of(step: Coded) -> dict[str, str]:
    """The sources of `step` as they are kept: without what looks like a secret."""
    return {name: redact(text) for name, text in step.source().items()}


def _path(fingerprint: str) -> str:
    return f"{SOURCES}/{fingerprint}.json.gz"
