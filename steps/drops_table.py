"""Drops table: the steps of one corpus as one page of Markdown: what each step dropped, why, and samples.

Documents and bytes add up: the output of a step is the input of the next, and the table counts what edits removed.
"""

import re
from collections.abc import Iterator, Sequence

from pydantic import BaseModel, Field

from marin_dag.graph.step import Input, StepContext, step
from steps.documents import DocumentsResult
from steps.filter import FilterResult

TABLE_FILE = "drops.md"


class DropsTableConfig(BaseModel, frozen=True, extra="forbid"):
    stages: tuple[Input[DocumentsResult], ...] = Field(min_length=1)
    """The steps, in the order in which documents pass them; drops of the first were no documents yet."""
    names: tuple[str, ...]
    """The names of the steps on the page."""
    samples_per_reason: int = Field(default=3, ge=0)


class DropsTableResult(BaseModel, frozen=True, extra="forbid"):
    table: str
    num_documents_in: int
    num_documents: int
    """Documents left after the last step."""
    num_bytes: int


def _check(config: DropsTableConfig) -> None:
    if len(config.names) != len(config.stages):
        raise ValueError(f"drops_table: {len(config.names)} names for {len(config.stages)} stages. Give one for each.")


@step(policy="tracked", check=_check)
def drops_table(config: DropsTableConfig, context: StepContext) -> DropsTableResult:
    """Write a table of the steps, one of the reasons, and a few dropped documents for each reason."""
    import fsspec

    results = [stage.result for stage in config.stages]
    lines = [*_steps(config.names, results), "", *_reasons(config.names, results)]
    for name, stage in zip(config.names, config.stages, strict=True):
        lines += _samples(name, stage, config.samples_per_reason)
        lines += _removed_samples(name, stage, config.samples_per_reason)
    with fsspec.open(f"{context.output_path}/{TABLE_FILE}", "wb", auto_mkdir=True) as file:
        file.write("\n".join([*lines, ""]).encode())
    first, last = results[0], results[-1]
    return DropsTableResult(
        table=TABLE_FILE,
        num_documents_in=first.num_documents + sum(first.dropped.values()),
        num_documents=last.num_documents,
        num_bytes=last.num_bytes,
    )


def _steps(names: Sequence[str], results: Sequence[DocumentsResult]) -> Iterator[str]:
    yield "| step | in | dropped | out | edited | kept | KB of text in | dropped | cut | out |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for name, result in zip(names, results, strict=True):
        dropped, dropped_bytes = sum(result.dropped.values()), sum(result.dropped_bytes.values())
        edited, cut = _edited(result)
        total = result.num_documents + dropped
        sizes = (result.num_bytes + dropped_bytes + cut, dropped_bytes, cut, result.num_bytes)
        yield (
            f"| {name} | {total:,} | {dropped:,} | {result.num_documents:,} | {edited:,} "
            f"| {result.num_documents / total:.1%} | {' | '.join(f'{size / 1e3:,.3f}' for size in sizes)} |"
        )


def _edited(result: DocumentsResult) -> tuple[int, int]:
    """Return how many documents lost text and stayed, and the bytes that they lost."""
    if isinstance(result, FilterResult):
        return result.num_edited, result.num_bytes_removed
    return 0, 0


def _reasons(names: Sequence[str], results: Sequence[DocumentsResult]) -> Iterator[str]:
    yield "| step | reason | documents | KB of text |"
    yield "|---|---|---:|---:|"
    for name, result in zip(names, results, strict=True):
        for reason, count in sorted(result.dropped.items(), key=lambda item: (-item[1], item[0])):
            yield f"| {name} | {_cell(reason)} | {count:,} | {result.dropped_bytes.get(reason, 0) / 1e3:.1f} |"


def _samples(name: str, stage: Input[DocumentsResult], samples_per_reason: int) -> Iterator[str]:
    from runtime.text.drops import read_samples

    if stage.result.dropped_samples is None:
        return
    shown = dict.fromkeys(stage.result.dropped, 0)
    for sample in read_samples(stage.join(stage.result.dropped_samples)):
        reason = sample["reason"]
        if shown[reason] == samples_per_reason:
            continue
        if shown[reason] == 0:
            yield from ("", f"## {name}: {_cell(reason)}", "")
        shown[reason] += 1
        yield f"- {_code(sample['id'])}, {_cell(sample['detail'])}: {_cell(sample['excerpt'])}"


def _removed_samples(name: str, stage: Input[DocumentsResult], num_samples: int) -> Iterator[str]:
    from runtime.text.drops import read_samples

    result = stage.result
    if not isinstance(result, FilterResult) or result.removed_samples is None or not num_samples:
        return
    yield from ("", f"## {name}: cut, and the rest kept", "")
    for sample in read_samples(stage.join(result.removed_samples))[:num_samples]:
        removed = " / ".join(map(_cell, sample["removed"]))
        yield f"- `{_cell(sample['id'])}`, {sample['left']} left: {removed}"


def _cell(text: str) -> str:
    """Return a foreign text in one line, without active Markdown or HTML."""
    line = " ".join(text.split()).replace("\\", "\\\\")
    for character in "|<>[]*_`#!&~$":
        line = line.replace(character, f"\\{character}")
    return line


def _code(text: str) -> str:
    """Return a foreign text in one line as code, where Markdown escapes nothing.

    Code ends at as many backticks as it begins with (CommonMark 0.31, section 6.1), so it begins with more than the
    text has in a row. A space on either side separates backticks at the ends of the text, and is not shown.
    """
    line = " ".join(text.split())
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    return f"{fence} {line} {fence}" if not line or "`" in (line[0], line[-1]) else f"{fence}{line}{fence}"
