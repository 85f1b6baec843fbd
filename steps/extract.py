"""Extract: downloaded files in, documents out."""

import functools
import hashlib
import json
from collections.abc import Sequence

from pydantic import BaseModel, Field

from marin_dag.errors import UserError
from marin_dag.graph.step import Input, Runtime, StepContext, step
from runtime.text.extraction.formats import Format, Unit
from runtime.text.extraction.limits import Limits
from steps.documents import DocumentsResult, DocumentsShard, as_text, documents_fields, write_shard
from steps.download import DownloadResult

ID_DIGITS = 12
MAX_NAMED = 3
"""How many damaged files a message names."""


class ExtractConfig(BaseModel, frozen=True, extra="forbid"):
    download: Input[DownloadResult]
    formats: tuple[Format, ...] = Field(min_length=1)
    unit_bytes: int = Field(default=6 << 20, ge=1)
    """About how many bytes of members make one shard."""
    max_unreadable_share: float = Field(default=0.01, ge=0, le=1)
    """A larger share of unreadable pieces is an error: the format or the download is probably wrong."""
    max_damaged_file_share: float = Field(default=0.01, ge=0, le=1)
    """A larger share of damaged files is an error; in a source of a few files, any damaged file is."""
    limits: Limits = Limits()
    """The cost of one document and one file; documents above it are left out."""
    shards_in_flight: Runtime[int] = 64
    origin: Runtime[str] = ""
    """The name in messages of a source's only file, if its author knows it under another name."""


class ExtractedShard(DocumentsShard, frozen=True, extra="forbid"):
    excluded: tuple[str, ...]
    """The reasons in `dropped` that are no fault: pieces that are no documents by their nature."""
    num_damaged: int
    """Files that could not be read to their end."""
    damaged: tuple[str, ...]
    """Messages about the first of them."""


class ListedFile(BaseModel, frozen=True, extra="forbid"):
    """The units of one file."""

    units: tuple[Unit, ...]
    damage: str | None
    """The fault of an archive whose members cannot all be read."""


@step(policy="tracked", packages=("pyarrow", "resiliparse"))
def extract(config: ExtractConfig, context: StepContext) -> DocumentsResult:
    """Write one shard per unit of members, so that the bytes do not depend on the workers."""
    from runtime.text.extraction.archive import is_archive
    from runtime.text.extraction.extract import DAMAGED_FILE

    files = config.download.result.files
    # Ids begin with the digest and not the name: renaming a source must not change its documents.
    source = context.digest[:ID_DIGITS]
    items = [
        (config.download.join(file.path), "" if len(files) == 1 and is_archive(file.path) else file.name)
        for file in files
    ]
    being_read = f"{context.work_path}/being-read"
    listed = _listed(config, context, items, being_read)
    work = [unit for listing in listed for unit in listing.units]
    unlisted = [
        (DAMAGED_FILE, f"{source}/{name}".rstrip("/"), listing.damage)
        for (_, name), listing in zip(items, listed, strict=True)
        if listing.damage is not None
    ]
    if not work and not unlisted:
        patterns = [pattern for format_ in config.formats for pattern in format_.members]
        raise UserError(
            f"{context.name}: empty source: nothing in {[file.name for file in files]} matches {patterns}. Correct "
            "`members` of the source's formats, or leave the source out."
        )
    write = functools.partial(_extract_shard, config.formats, config.limits, source, config.origin, being_read)
    shards = context.map(write, work, in_flight=config.shards_in_flight)
    damaged = [*(detail for _, _, detail in unlisted), *(detail for shard in shards for detail in shard.damaged)]
    num_damaged = len(unlisted) + sum(shard.num_damaged for shard in shards)
    num_files = len(files) + sum(max(len(unit.members) - 1, 0) for unit in work)
    _check_damaged(config, context, damaged, num_damaged, num_files)
    fields = documents_fields(
        context, shards, emptied=_emptied(config, context), dropped_before=unlisted, origin=config.origin
    )
    result = DocumentsResult(**fields)
    _check_unreadable(config, context, result, {reason for shard in shards for reason in shard.excluded})
    return result


def _emptied(config: ExtractConfig, context: StepContext) -> str:
    settings = [
        f"--set {context.name}.formats.{index}.text_field=NAME"
        for index, format_ in enumerate(config.formats)
        if hasattr(format_, "text_field")
    ]
    named = f" (UTF-8; one JSON object a line), and the field with the text ({', '.join(settings)})" if settings else ""
    return f"The source is empty: check the files{named}, or leave it out."


def _check_unreadable(config: ExtractConfig, context: StepContext, result: DocumentsResult, excluded: set[str]) -> None:
    """Log what could not be read; raise UserError if it is more than `max_unreadable_share`."""
    from runtime.text.drops import read_samples

    unreadable = {reason: count for reason, count in result.dropped.items() if reason not in excluded}
    if not unreadable:
        return
    path = f"{context.output_path}/{result.dropped_samples}"
    example = as_text(next(sample for sample in read_samples(path) if sample["reason"] in unreadable), config.origin)
    counts = ", ".join(f"{reason}: {count:,}" for reason, count in unreadable.items())
    context.log.warning("unreadable: %s, such as %s; samples are in %s", counts, example, result.dropped_samples)
    share = sum(unreadable.values()) / (result.num_documents + sum(unreadable.values()))
    if share > config.max_unreadable_share:
        raise UserError(
            f"{context.name}: {share:.1%} of the documents cannot be read ({counts}), such as {example}; samples are "
            f"in {path}. Correct the file or the format of the source, or allow a larger share than "
            f"{config.max_unreadable_share:g}: --set {context.name}.max_unreadable_share=..."
        )


def _check_damaged(
    config: ExtractConfig, context: StepContext, damaged: Sequence[str], num_damaged: int, num_files: int
) -> None:
    """Log damaged files; raise UserError if they are more than `max_damaged_file_share`."""
    for detail in damaged[:MAX_NAMED]:
        context.log.warning("damaged file: %s", detail)
    if num_damaged > config.max_damaged_file_share * num_files:
        rest = f"\nand {num_damaged - MAX_NAMED:,} more" if num_damaged > MAX_NAMED else ""
        others = "".join(f"\n{detail}" for detail in damaged[1:MAX_NAMED])
        raise UserError(  # tables of a run show the first line only
            f"{context.name}: {damaged[0]} ({num_damaged:,} of {num_files:,} files cannot be read){others}{rest}\n"
            f"Fetch or write them again, or allow a larger share than {config.max_damaged_file_share:g}: "
            f"--set {context.name}.max_damaged_file_share=..."
        )


def _listed(
    config: ExtractConfig, context: StepContext, items: Sequence[tuple[str, str]], being_read: str
) -> list[ListedFile]:
    """Return the units of each file; workers list archives, which have to be opened."""
    from runtime.text.extraction.archive import is_archive

    list_one = functools.partial(_list_file, config.formats, config.limits, config.unit_bytes, being_read)
    archives = [item for item in items if is_archive(item[0])]
    listed = iter(context.map(list_one, archives, in_flight=config.shards_in_flight, name="listing"))
    return [next(listed) if is_archive(item[0]) else list_one(item, "") for item in items]


def _list_file(
    formats: tuple[Format, ...], limits: Limits, unit_bytes: int, being_read: str, item: tuple[str, str], path: str
) -> ListedFile:
    from runtime.text.extraction.archive import ZIP_SUFFIXES, list_units, list_zip
    from runtime.text.extraction.guard import guard_after_death

    file, name = item
    if file.endswith(ZIP_SUFFIXES):
        # Python reads the directory of a zip archive as a whole, and may die of it.
        with guard_after_death(f"{being_read}/{_mark(item)}", limits) as guard:
            listing = list_zip(guard, file, name, formats, unit_bytes=unit_bytes, limits=limits)
    else:
        listing = list_units(file, name, formats, unit_bytes=unit_bytes, limits=limits)
    return ListedFile(units=tuple(listing.units), damage=listing.damage)


def _mark(item: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(item).encode()).hexdigest()[:32]


def _extract_shard(
    formats: tuple[Format, ...],
    limits: Limits,
    source: str,
    origin: str,
    being_read: str,
    item: Unit,
    path: str,
) -> ExtractedShard:
    from runtime.text.extraction.extract import DAMAGED_FILE
    from runtime.text.extraction.extract import extract as extract_unit
    from runtime.text.extraction.guard import guard_after_death

    with guard_after_death(f"{being_read}/{_mark(item)}", limits) as guard:
        extract_with = functools.partial(extract_unit, origin=origin, limits=limits, guard=guard)
        fields, ledger = write_shard(path, functools.partial(extract_with, Unit(*item), formats, source))
    return ExtractedShard(
        **fields,
        excluded=tuple(sorted(ledger.excluded)),
        num_damaged=ledger.counts[DAMAGED_FILE],
        damaged=tuple(sample["detail"] for sample in ledger.samples if sample["reason"] == DAMAGED_FILE)[:MAX_NAMED],
    )
