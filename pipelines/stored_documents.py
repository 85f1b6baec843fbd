"""Stored documents: the documents of finished steps by number, read a row group at a time from any store."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from marin_dag.errors import UserError
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Record
from marin_dag.store.store import Store
from pipelines.finished import finished
from runtime.text.documents import Document, DocumentsError, read_batches
from steps.documents import DocumentsResult

SAMPLE_PLACES, SAMPLE_DOCUMENTS = 8, 1_024
"""Number of places of a source that a sample reads, and most documents of the sample."""


class Numbered(NamedTuple):
    """A document and its number in its source, from 0."""

    number: int
    document: Document


class StoredDocuments:
    """The documents of a finished step, numbered over its shards."""

    def __init__(self, store: Store, step: Step, record: Record) -> None:
        self.name = step.name
        self.result: DocumentsResult = step.kind.result_type.model_validate(record.result)
        self.starts = np.cumsum([0, *(size.num_documents for size in self.result.sizes_by_shard(step.name))])
        """The number of the first document of each shard, with the total at the end."""
        self._folder = store.url(record.output_path)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def url(self, path: str) -> str:
        """Return where a file of the output is."""
        return f"{self._folder}/{path}"

    def shard_of(self, number: int) -> int:
        """Return the place of the shard that has a document."""
        return int(np.searchsorted(self.starts, number, side="right")) - 1

    def read(self, first: int) -> Iterator[list[Numbered]]:
        """Yield the documents from a number on, by row groups; earlier row groups are not read.

        Raises:
            UserError: a shard is damaged or gone.
        """
        for shard in range(self.shard_of(first), len(self.result.shards)):
            number = max(first, int(self.starts[shard]))
            path = self.url(self.result.shards[shard])
            try:
                for batch in read_batches(path, number - int(self.starts[shard])):
                    yield [Numbered(number + row, document) for row, document in enumerate(batch)]
                    number += len(batch)
            except (DocumentsError, OSError) as error:
                raise UserError(f"documents of {self.name}: {error}") from error
            if number != self.starts[shard + 1]:
                raise UserError(
                    f"{path}: ends at document {number:,} of {self.name}, not {self.starts[shard + 1]:,}. "
                    f"Run the step again: --force {self.name}."
                )

    def document(self, number: int) -> Document:
        """Return one document."""
        return next(self.read(number))[0].document

    def sample(self) -> list[Numbered]:
        """Return all documents of a small source, or some of row groups spread over a large one."""
        if len(self) <= SAMPLE_DOCUMENTS:
            return [each for batch in self.read(0) for each in batch]
        firsts = np.linspace(0, len(self), SAMPLE_PLACES, endpoint=False).astype(int).tolist()
        size = SAMPLE_DOCUMENTS // SAMPLE_PLACES
        return [each for first in firsts for each in itertools.islice(next(self.read(first)), size)]


def open_documents(store: Store, step: Step) -> StoredDocuments:
    """Return the documents of a step; raise UserError if it is not done."""
    return StoredDocuments(store, step, finished(store, step, "documents"))
