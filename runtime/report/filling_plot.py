"""Filling: how much of the sequences of each phase was trained on, a bar each."""

from runtime.report.contents import Report
from runtime.report.markup import Markup, element
from runtime.report.plots import TEXT_SIZE, Frame, drawing, name_column, straight, text
from runtime.report.scales import Scale, counted, fitted, tokens_label
from runtime.report.tables import Cell, Column, table

_ROW, _BAR = 22.0, 13.0


def filling_bars(report: Report, width: float) -> Markup:
    """Return a row for each phase: trained on, of all positions."""
    left, right, top = name_column([filling.phase for filling in report.fillings], width), width - 58, 6.0
    bottom = top + len(report.fillings) * _ROW
    frame = Frame(Scale(0, 1, left, right), Scale(0, 1, bottom, top))
    main_line = {phase.name for phase in report.main_line}
    parts: list[str] = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(straight(frame.x(tick), top, frame.x(tick), bottom, "grid"))
        parts.append(text(f"{tick:.0%}", frame.x(tick), bottom + 14, "middle"))
    for row, filling in enumerate(report.fillings):
        y = top + row * _ROW + (_ROW - _BAR) / 2
        not_trained = filling.num_positions - filling.num_targets
        tip = f"{filling.phase}: {filling.num_targets:,} positions trained on, {not_trained:,} not"
        parts.append(text(fitted(filling.phase, left - 10, TEXT_SIZE), left - 8, y + 10.5, "end", "name"))
        whole = {"x": left, "y": y, "width": right - left, "height": _BAR}
        parts.append(element("rect", style="fill:var(--border)", data_tip=tip, **whole))
        bar = whole | {"width": frame.x(filling.share) - left}
        parts.append(
            element("rect", class_="main-bar" if filling.phase in main_line else "branch-bar", data_tip=tip, **bar)
        )
        parts.append(text(f"{filling.share:.2%}", right + 6, y + 10.5))
    return drawing(width, bottom + 22, f"Share trained on, of {counted(len(report.fillings), 'phase')}", *parts)


def filling_table(report: Report) -> Markup:
    """Return the same in figures."""
    columns = [
        Column("phase"), Column("positions", "number"), Column("trained on", "number"), Column("not", "number"),
        Column("share trained on", "number"),
    ]  # fmt: skip
    rows: list[list[str | Cell]] = [
        [
            filling.phase,
            tokens_label(filling.num_positions),
            f"{filling.num_targets:,}",
            f"{filling.num_positions - filling.num_targets:,}",
            f"{filling.share:.3%}",
        ]
        for filling in report.fillings
    ]
    return table(columns, rows, "Positions of all sequences, by phase")
