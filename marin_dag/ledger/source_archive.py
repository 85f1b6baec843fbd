"""Source archive: the normalized source of each code fingerprint, stored once.

A later plan shows from it which lines changed, without the old code. It explains a record and is never part of one.
"""

import difflib
import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import TypeAdapter, ValidationError

from marin_dag.identity.diff import CodeChanged
from marin_dag.store.redact import redact
from marin_dag.store.store import Store, StoreError

SOURCES = "sources"
TEXTS = TypeAdapter(dict[str, str])


class SourceArchive:
    """The sources of one prefix, as `sources/<fingerprint>.json.gz`: the text of each definition by name.

    Those of `steps` are at hand.
    """

    def __init__(self, store: Store, steps: Iterable[Any] = ()) -> None:
        self._store = store
        self._steps = {step.identity["code"]["fingerprint"]: step for step in steps}
        self._known: dict[str, dict[str, str] | None] = {}

    def keep(self) -> None:
        """Write the sources of the steps that are not in the archive, without what looks like a secret."""
        known = {entry.path for entry in self._store.list(SOURCES)} if self._steps else set()
        for fingerprint in self._steps:
            if source_path(fingerprint) not in known:
                text = json.dumps(self._texts(fingerprint), sort_keys=True, indent=0)
                self._store.create(source_path(fingerprint), gzip.compress(text.encode(), mtime=0))

    def find(self, fingerprint: str) -> dict[str, str] | None:
        """Return the text of each definition, or None if they were not kept."""
        try:
            data = self._store.read(source_path(fingerprint))
        except FileNotFoundError:
            return None
        try:
            return TEXTS.validate_json(gzip.decompress(data))
        except (OSError, EOFError, zlib.error, ValidationError) as error:
            reason = f"{error.error_count()} errors" if isinstance(error, ValidationError) else error
            url = self._store.url(source_path(fingerprint))
            raise StoreError(f"{url}: not an archive of sources ({reason}). Delete it.") from None

    def diff(self, code: CodeChanged) -> Iterator[str]:
        """Yield the lines of a unified diff of changed code, or one line that names the source that was not kept."""
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
            found = self.find(fingerprint) if step is None else {n: redact(text) for n, text in step.source().items()}
            self._known[fingerprint] = found
        return self._known[fingerprint]


def source_path(fingerprint: str) -> str:
    return f"{SOURCES}/{fingerprint}.json.gz"
