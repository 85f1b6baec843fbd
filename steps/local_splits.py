"""Local splits: a plan counts the held-out documents of the user's own sources before anything runs."""

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from marin_dag.errors import RefusedConfigError
from marin_dag.values.reference import Reference
from runtime.data.splits import SmallSplit, small_split
from runtime.text.extraction.formats import ChatTable, Format, JsonLines, ParquetTable, PlainText
from runtime.text.extraction.limits import Limits
from runtime.text.filter_rules import C4Lines
from steps.decontaminate import DecontaminateConfig
from steps.dedup import DedupConfig
from steps.documents import DocumentsConfig
from steps.download import DownloadConfig
from steps.extract import ExtractConfig
from steps.fetch import Files
from steps.filter import FilterConfig

if TYPE_CHECKING:
    from runtime.text.drops import DropLedger


def check_local_splits(documents: Reference, validation_share: float) -> None:
    """Raise RefusedConfigError if the source is the user's own and one of its splits has no documents."""
    small = small_local_split(documents, validation_share)
    if small is not None and small.empty:
        share = small.better_share
        cure = {} if share is None else {"validation_share": f"{share:g}"}
        raise RefusedConfigError(small.problem(validation_share), cure)


def small_local_split(documents: Reference, validation_share: float) -> SmallSplit | None:
    """Return the counts of a source if a split is small; count before filters, which only make a split smaller.

    Return None for sources that must be fetched, for web pages (slow to read), and for texts that a filter edits.
    """
    while (cleaned := documents.config_of(DocumentsConfig)) is not None:
        edits = isinstance(cleaned, FilterConfig) and any(isinstance(rule, C4Lines) for rule in cleaned.rules)
        if edits or not isinstance(cleaned, FilterConfig | DedupConfig | DecontaminateConfig):
            return None
        documents = cleaned.documents
    read = documents.config_of(ExtractConfig)
    fetched = None if read is None else read.download.config_of(DownloadConfig)
    if read is None or fetched is None or not isinstance(fetched.fetch, Files):
        return None
    if not all(isinstance(format_, JsonLines | ParquetTable | ChatTable | PlainText) for format_ in read.formats):
        return None
    return _counted(fetched.fetch, fetched.fetch.folder, read.formats, read.limits, validation_share)


@functools.lru_cache
def _counted(
    files: Files, folder: str, formats: tuple[Format, ...], limits: Limits, validation_share: float
) -> SmallSplit | None:
    """Count a source once for all checks of a plan; equal files are those of equal content."""
    from runtime.text.drops import DropLedger
    from runtime.text.extraction.records import UnreadableFileError

    ledger = DropLedger(samples_per_reason=0)
    try:
        small = small_split(_texts(files, folder, formats, limits, ledger), validation_share)
    except (UnreadableFileError, OSError):
        return None  # the steps that fetch and read the files report it
    is_readable = ledger.excluded.issuperset(ledger.counts)
    return small if small is not None and small.num_documents and is_readable else None


def _texts(
    files: Files, folder: str, formats: tuple[Format, ...], limits: Limits, ledger: "DropLedger"
) -> Iterator[bytes]:
    from runtime.text.extraction.archive import list_units
    from runtime.text.extraction.extract import extract

    for file in files.files:
        path = f"{folder}/{file.path or file.name}"
        for unit in list_units(path, file.name, formats, unit_bytes=1, limits=limits).units:
            yield from (document.text.encode() for document in extract(unit, formats, "", ledger, limits=limits))
