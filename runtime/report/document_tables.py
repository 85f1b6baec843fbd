"""Tables of documents: kept and dropped by stage, reasons, and tokens."""

from collections import Counter
from collections.abc import Mapping

from runtime.report.contents import Report, Stage
from runtime.report.labels import bytes_label, counted
from runtime.report.markup import Markup, element, joined
from runtime.report.tables import CONTINUED, NONE, Cell, Column, table


def stages_table(report: Report) -> Markup:
    """Return documents and bytes that each stage dropped and left, by source."""
    columns = [
        Column("source"), Column("stage"), Column("documents in", "number"), Column("dropped", "number"),
        Column("documents out", "number"), Column("text dropped", "number"), Column("text out", "number"),
    ]  # fmt: skip
    rows: list[list[str | Cell]] = []
    last = None
    for stage in report.stages:
        dropped, size = sum(stage.dropped.values()), sum(stage.dropped_bytes.values())
        rows.append(
            [
                stage.source if stage.source != last else CONTINUED,
                stage.stage,
                f"{stage.num_documents + dropped:,}",
                f"{dropped:,}" if dropped else NONE,
                f"{stage.num_documents:,}",
                f"{bytes_label(size)} ({_share(size, size + stage.num_bytes)})" if size else NONE,
                bytes_label(stage.num_bytes),
            ]
        )
        last = stage.source
    return table(columns, rows, "Documents by source and stage")


def edits_list(report: Report) -> Markup:
    """Return a list of the edits of kept documents, by source and stage."""
    summary_text = [
        f"{stage.source}, {stage.stage}: {counted(stage.num_edited, 'document')} lost "
        f"{bytes_label(stage.num_bytes_removed)} and stayed."
        for stage in report.stages
        if stage.num_edited
    ]
    return element("ul", *[element("li", line) for line in summary_text]) if summary_text else Markup()


def rules_table(report: Report) -> Markup:
    """Return the drops of each rule over all sources, most documents first within a stage."""
    columns = [
        Column("stage"), Column("rule"), Column("documents", "number"), Column("share", "number"),
        Column("text", "number"), Column("share of text", "number"), Column("sources"),
    ]  # fmt: skip
    rows: list[list[str | Cell]] = []
    for name in dict.fromkeys(stage.stage for stage in report.stages):
        stages = [stage for stage in report.stages if stage.stage == name]
        documents_in = sum(stage.num_documents + sum(stage.dropped.values()) for stage in stages)
        bytes_in = sum(stage.num_bytes + sum(stage.dropped_bytes.values()) for stage in stages)
        counts: Counter[str] = Counter()
        for stage in stages:
            counts.update(stage.dropped)
        for place, (rule, count) in enumerate(sorted(counts.items(), key=lambda item: (-item[1], item[0]))):
            size = sum(stage.dropped_bytes.get(rule, 0) for stage in stages)
            by_source = sorted(((stage.dropped.get(rule, 0), stage.source) for stage in stages), reverse=True)
            sources = ", ".join(f"{source} {number:,}" for number, source in by_source if number)
            rows.append(
                [
                    name if place == 0 else CONTINUED,
                    rule,
                    f"{count:,}",
                    _share(count, documents_in),
                    bytes_label(size).replace(" ", "\u00a0") if size else NONE,
                    _share(size, bytes_in) if size else NONE,
                    Cell(sources, is_quiet=True),
                ]
            )
    return (
        element("div", table(columns, rows, "Dropped by rule, over all sources"), class_="wrap") if rows else Markup()
    )


def _share(part: int, whole: int) -> str:
    """Return a share with two digits, however small it is."""
    percent = 100 * part / whole if whole else 0.0
    return f"{percent:.0f}\u00a0%" if percent >= 9.95 else f"{percent:.2g}\u00a0%"


def hits_table(report: Report) -> Markup:
    """Overlaps with evaluation items, by source and task."""
    found = [stage for stage in report.stages if any(stage.hits.values())]
    if not any(stage.stage == "decontaminate" for stage in report.stages):
        return Markup()
    if not found:
        return element("p", "Decontamination: no document overlaps with an evaluation item.")
    columns = [Column("source"), Column("task"), Column("hits", "number")]
    rows: list[list[str | Cell]] = []
    for stage in found:
        for index, (task, count) in enumerate(sorted(stage.hits.items(), key=lambda item: (-item[1], item[0]))):
            rows.append([stage.source if index == 0 else CONTINUED, task, f"{count:,}"])
    return table(columns, rows, "Decontamination: overlaps with evaluation items")


def caches_table(report: Report) -> Markup:
    """Return tokens of each source."""
    columns = [
        Column("source"),
        *(Column(name, "number") for name in ("train tokens", "held-out tokens", "bytes a token")),
    ]
    rows: list[list[str | Cell]] = [
        [
            cache.source,
            f"{cache.num_train_tokens:,}",
            f"{cache.num_validation_tokens:,}",
            f"{cache.num_train_bytes / cache.num_train_tokens:.2f}" if cache.num_train_tokens else NONE,
        ]
        for cache in report.caches
    ]
    return table(columns, rows, "Token caches")


def dropped_details(report: Report) -> Markup:
    """Return a fold for each source and stage, with a fold for each reason, with samples."""
    folds = []
    for stage in report.stages:
        dropped = {reason: count for reason, count in stage.dropped.items() if count}
        if dropped:
            folds.append(_stage_fold(stage, dropped))
    return joined(folds) if folds else element("p", "No stage dropped a document.")


def _stage_fold(stage: Stage, dropped: Mapping[str, int]) -> Markup:
    total = sum(dropped.values())
    reasons = []
    for reason, count in sorted(dropped.items(), key=lambda item: (-item[1], item[0])):
        samples = [sample for sample in stage.samples if sample.reason == reason]
        shown = [
            element(
                "div",
                element(
                    "div",
                    element("bdi", sample.document),
                    *([" — ", element("bdi", sample.detail)] if sample.detail else []),
                ),
                element("pre", element("bdi", sample.excerpt)),
                class_="sample",
            )
            for sample in samples
        ]
        size = stage.dropped_bytes.get(reason, 0)
        line = f"{reason}: {count:,} ({count / total:.0%})" + (f", {bytes_label(size)} of text" if size else "")
        if shown:
            kept = f", {counted(len(shown), 'sample')}"
            reasons.append(element("details", element("summary", line + kept), *shown))
        else:
            reasons.append(element("div", line, class_="sample"))
    heading = f"{stage.source}, {stage.stage}: {counted(total, 'document')} dropped"
    return element("details", element("summary", heading), *reasons)
