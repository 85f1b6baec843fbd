"""Extract: downloaded files in, documents out."""

import functools

from pydantic import BaseModel, Field

from marin_dag.errors import UserError
from marin_dag.step import Input, Runtime, StepContext, step
from runtime.text.extraction.formats import Format
from steps.documents import SAMPLES_PER_REASON, SHARD_FILE, DocumentsResult, DocumentsShard, documents_fields
from steps.download import DownloadResult

ID_DIGITS = 12


class ExtractConfig(BaseModel, frozen=True, extra="forbid"):
    download: Input[DownloadResult]
    formats: tuple[Format, ...] = Field(min_length=1)
    unit_bytes: int = Field(default=6 << 20, ge=1)
    """About how many bytes of members make one shard."""
    max_unreadable_share: float = Field(default=0.01, ge=0, le=1)
    """More unreadable pieces than this among all are an error: the format or the download is not what was thought."""
    shards_in_flight: Runtime[int] = 64
    origin: Runtime[str] = ""
    """What messages call the file of a source that has one only, if a person knows it under another name."""


@step(policy="tracked", packages=("pyarrow", "resiliparse"))
def extract(config: ExtractConfig, context: StepContext) -> DocumentsResult:
    """One shard for a run of members, so that the bytes do not depend on the workers."""
    from runtime.text.extraction.archive import is_archive, units
    from runtime.text.extraction.extract import EMPTY

    files = config.download.result.files
    work = []
    for file in files:
        name = "" if len(files) == 1 and is_archive(file.path) else file.name
        work += units(config.download.join(file.path), name, config.formats, unit_bytes=config.unit_bytes)
    if not work:
        names = [file.name for file in files]
        patterns = [pattern for format_ in config.formats for pattern in format_.members]
        raise UserError(
            f"{context.name}: empty source: nothing in {names} matches {patterns}. Correct `members` of the source's "
            "formats, or leave the source out."
        )
    # Ids begin with what the step is and not with what it is called: the sample for the tokenizer hashes them, and
    # renaming a source must not change it.
    write = functools.partial(_extract_shard, config.formats, context.digest[:ID_DIGITS], config.origin)
    shards = context.map(write, work, in_flight=config.shards_in_flight)
    fields = documents_fields(
        context, shards, emptied="The source is empty: check the files and `text_field`, or leave the source out."
    )
    result = DocumentsResult(**fields)
    unreadable = {reason: count for reason, count in result.dropped.items() if reason != EMPTY}
    if unreadable:
        context.log.warning("left out: %s; samples are in %s", _listed(unreadable), result.dropped_samples)
    _refuse_too_many_unreadable(config, context, result, unreadable)
    return result


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason}: {count:,}" for reason, count in counts.items())


def _refuse_too_many_unreadable(
    config: ExtractConfig, context: StepContext, result: DocumentsResult, unreadable: dict[str, int]
) -> None:
    share = sum(unreadable.values()) / (result.num_documents + sum(unreadable.values()))
    if share > config.max_unreadable_share:
        raise UserError(
            f"{context.name}: {share:.1%} of the documents cannot be read ({_listed(unreadable)}); samples are in "
            f"{context.output_path}/{result.dropped_samples}. Correct the format of the source, or raise "
            f"its max_unreadable_share (now {config.max_unreadable_share:g})."
        )


def _extract_shard(
    formats: tuple[Format, ...], source: str, origin: str, item: tuple[str, str, int, tuple[str, ...]], path: str
) -> DocumentsShard:
    from runtime.text.documents import write_documents
    from runtime.text.drops import DropLedger
    from runtime.text.extraction.archive import Unit
    from runtime.text.extraction.extract import extract as extract_unit

    ledger = DropLedger(SAMPLES_PER_REASON)
    documents = extract_unit(Unit(*item), formats, source, ledger, origin=origin)
    num_documents, num_bytes = write_documents(f"{path}/{SHARD_FILE}", documents)
    return DocumentsShard(
        num_documents=num_documents, num_bytes=num_bytes, dropped=dict(ledger.counts), samples=tuple(ledger.samples)
    )
