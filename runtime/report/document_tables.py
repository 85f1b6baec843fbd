"""Tables of documents: kept and dropped by stage, reasons, and tokens."""

from collections import Counter
from collections.abc import Mapping

from runtime.report.contents import Report, Stage
from runtime.report.markup import NONE, Cell, Markup, element, joined, table
from runtime.report.recipe import bytes_label, counted


def stages_table(report: Report) -> Markup:
    """Return documents and bytes that each stage dropped, edited and left, by source."""
    headings = [
        "source", "stage", "#documents in", "#dropped", "#documents out", "#text dropped", "#text out", "edited",
    ]  # fmt: skip
    rows = []
    for stage in report.stages:
        dropped, size = stage.num_dropped, stage.num_bytes_dropped
        edited = f"{counted(stage.num_edited, 'document')} lost {bytes_label(stage.num_bytes_removed)} and stayed"
        rows.append(
            [
                stage.source,
                stage.stage,
                f"{stage.num_documents + dropped:,}",
                f"{dropped:,}" if dropped else NONE,
                f"{stage.num_documents:,}",
                f"{bytes_label(size)} ({_share(size, size + stage.num_bytes)})" if size else NONE,
                bytes_label(stage.num_bytes),
                edited if stage.num_edited else NONE,
            ]
        )
    return table(headings, rows, "Documents by source and stage", grouped=1)


def rules_table(report: Report) -> Markup:
    """Return the drops of each rule over all sources, most documents first within a stage."""
    headings = ["stage", "rule", "#documents", "#share", "#text", "#share of text", "sources"]
    rows = []
    for name in dict.fromkeys(stage.stage for stage in report.stages):
        stages = [stage for stage in report.stages if stage.stage == name]
        documents_in = sum(stage.num_documents + stage.num_dropped for stage in stages)
        bytes_in = sum(stage.num_bytes + stage.num_bytes_dropped for stage in stages)
        counts: Counter[str] = Counter()
        for stage in stages:
            counts.update(stage.dropped)
        for rule, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            size = sum(stage.dropped_bytes.get(rule, 0) for stage in stages)
            by_source = sorted(((stage.dropped.get(rule, 0), stage.source) for stage in stages), reverse=True)
            sources = ", ".join(f"{source} {number:,}" for number, source in by_source if number)
            text = bytes_label(size).replace(" ", "\u00a0"), _share(size, bytes_in)
            share = _share(count, documents_in)
            rows.append(
                [name, rule, f"{count:,}", share, *(text if size else (NONE, NONE)), Cell(sources, is_quiet=True)]
            )
    return table(headings, rows, "Dropped by rule, over all sources", grouped=1, class_="wrap") if rows else Markup()


def _share(part: int, whole: int) -> str:
    """Return a share with two digits, however small it is."""
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.0f}\u00a0%" if percent >= 9.95 else f"{percent:.2g}\u00a0%"


def hits_table(report: Report) -> Markup:
    """Return overlaps with evaluation items, by source and task."""
    if not any(stage.stage == "decontaminate" for stage in report.stages):
        return Markup()
    rows = [
        [stage.source, task, f"{count:,}"]
        for stage in report.stages
        for task, count in sorted(stage.hits.items(), key=lambda item: (-item[1], item[0]))
    ]
    if not rows:
        return element("p", "Decontamination: no document overlaps with an evaluation item.")
    return table(["source", "task", "#hits"], rows, "Decontamination: overlaps with evaluation items", grouped=1)


def caches_table(report: Report) -> Markup:
    """Return tokens of each source."""
    rows = [
        [
            cache.source,
            f"{cache.num_train_tokens:,}",
            f"{cache.num_validation_tokens:,}",
            f"{cache.num_train_bytes / cache.num_train_tokens:.2f}" if cache.num_train_tokens else NONE,
        ]
        for cache in report.caches
    ]
    headings = ["source", "#train tokens", "#held-out tokens", "#bytes a token"]
    return table(headings, rows, "Token caches") if rows else Markup()


def dropped_details(report: Report) -> Markup:
    """Return a fold for each source and stage, with a fold for each reason, with samples."""
    folds = []
    for stage in report.stages:
        if dropped := {reason: count for reason, count in stage.dropped.items() if count}:
            heading = f"{stage.source}, {stage.stage}: {counted(stage.num_dropped, 'document')} dropped"
            folds.append(element("details", element("summary", heading), *_reasons(stage, dropped)))
    return joined(folds) if folds else element("p", "No stage dropped a document.")


def _reasons(stage: Stage, dropped: Mapping[str, int]) -> list[Markup]:
    found = []
    for reason, count in sorted(dropped.items(), key=lambda item: (-item[1], item[0])):
        shown = []
        for sample in (sample for sample in stage.samples if sample.reason == reason):
            detail = [" — ", element("bdi", sample.detail)] if sample.detail else []
            name = element("div", element("bdi", sample.document), *detail)
            shown.append(element("div", name, element("pre", element("bdi", sample.excerpt)), class_="sample"))
        size = stage.dropped_bytes.get(reason, 0)
        line = f"{reason}: {count:,} ({count / stage.num_dropped:.0%})"
        line += f", {bytes_label(size)} of text" if size else ""
        if shown:
            summary = f"{line}, {counted(len(shown), 'sample')}"
            found.append(element("details", element("summary", summary), *shown))
        else:
            found.append(element("div", line, class_="sample"))
    return found
