"""mix: how many tokens and epochs of each source each phase takes, before anything trains."""

import dataclasses
import math
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marin_dag.cli.session import NOTHING_WOULD_RUN, Command, Session
from marin_dag.errors import UserError
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records
from marin_dag.quantities import in_short
from marin_dag.values.changes import nearest
from pipelines.picture_file import DRAWING, check_writable, write_picture
from pipelines.timeline import phase_before
from runtime.data.consumption import Consumption, Leg, consumption
from runtime.training.restore import RESTORES_POSITION
from steps.phase_config import TrainPhaseConfig

Estimate = Callable[[Any], Mapping[str, float]]
"""From the parsed arguments: tokens of each source, by name, for those that are not tokenized yet."""


@dataclasses.dataclass(frozen=True)
class Mix:
    """A run to the end of one phase, and what it takes."""

    legs: tuple[Leg, ...]
    labels: Mapping[str, str]
    """Name of the source by its name in the mixtures."""
    num_tokens: Mapping[str, int]
    estimated: frozenset[str]
    """Sources whose size is not known yet."""
    found: Consumption


def command(estimate: Estimate = lambda arguments: {}) -> Command:
    """The command of a pipeline whose sources have these sizes before they are tokenized."""

    def run(session: Session) -> int:
        if session.parsed.chart is not None:
            check_writable("--chart", session.parsed.chart, (DRAWING,))
        mix = mix_to(_phase(session), Records(session.store), estimate(session.parsed))
        print(rendered(mix, shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
        if session.parsed.chart is not None:
            _draw(session.parsed.chart, mix)
        return NOTHING_WOULD_RUN

    said = "tokens and epochs of each source by phase, up to PHASE (by default the last)"
    return Command("mix", "[PHASE]", said, run, 0, 1, _add_arguments, ("--set",))


def _add_arguments(parser: Any) -> None:
    parser.add_argument("--chart", metavar="FILE.svg", help="(mix) draw it too")


def _phase(session: Session) -> Step[Any]:
    phases = {step.name: step for step in session.graph().steps if isinstance(step.config, TrainPhaseConfig)}
    if not phases:
        raise UserError(f"mix: the pipeline {session.pipeline!r} trains nothing.")
    if not session.parsed.names:
        forks = {fork.name for fork in session.forks.all()}
        written = [step for name, step in phases.items() if name not in forks]
        return max(written, key=lambda step: step.config.until_step)
    if session.step not in phases:
        raise UserError(f"mix {session.step}: there is no such training phase.{nearest(session.step, phases)}")
    return phases[session.step]


def mix_to(phase: Step[Any], records: Records, estimated_tokens: Mapping[str, float]) -> Mix:
    """What a run to the end of `phase` takes since its data began."""
    way, ends = [phase], [phase.config.until_step]
    while (start := phase_before(way[0])) is not None and way[0].config.restore in RESTORES_POSITION:
        way.insert(0, start.step)
        ends.insert(0, way[1].config.begin_step)
    begin = way[0].config.begin_step
    legs = []
    for step, end in zip(way, ends, strict=True):
        config = step.config
        legs.append(
            Leg(
                name=step.name,
                start_step=begin,
                until_step=end,
                global_batch_size=config.global_batch_size,
                sequence_length=config.sequence_length,
                mixture=config.mixture,
                mixing=config.mixing,
                skip_batches=config.skip_batches,
            )
        )
        begin = end
    labels, num_tokens, estimated = {}, {}, set()
    for name, cache in {name: cache for step in way for name, cache in step.config.caches.items()}.items():
        labels[name] = cache.step.name.removeprefix("tokenize/")
        record = records.find(cache.step.key)
        if record is not None:
            num_tokens[name] = int(record.result["num_train_tokens"])
        elif labels[name] in estimated_tokens:
            num_tokens[name] = round(estimated_tokens[labels[name]])
            estimated.add(name)
    found = consumption(legs, num_tokens=num_tokens)
    return Mix(tuple(legs), labels, num_tokens, frozenset(estimated), found)


def rendered(mix: Mix, width: int | None = None) -> str:
    """A table of tokens and epochs, and what is wrong with them.

    Args:
        width: characters of the terminal, in which the table stands in parts, one below the other, each with the names
            of the sources; None has no end.
    """
    names = [leg.name + ("*" if leg.mixing.lag_steps else "") for leg in mix.legs]
    used: dict[str, dict[str, str]] = {}
    total: dict[str, int] = {}
    last: dict[str, float] = {}
    for use in mix.found.uses:
        epochs = f"{use.epochs:8.3g}x" if use.source in mix.num_tokens else "       ?x"
        used.setdefault(use.source, {})[use.leg] = f"{in_short(use.num_tokens):>7}{epochs}"
        total[use.source] = total.get(use.source, 0) + use.num_tokens
        last[use.source] = use.epochs
    order = sorted(used, key=lambda source: -total[source])
    rows = [["source", "size", *names, "in all"]]
    for source in order:
        size = mix.num_tokens.get(source)
        shown = "?" if size is None else f"{'~' if source in mix.estimated else ''}{in_short(size)}"
        of_legs = [used[source].get(leg.name, "") for leg in mix.legs]
        rows.append([mix.labels.get(source, source), shown, *of_legs, in_short(total[source])])
    sums = [sum(use.num_tokens for use in mix.found.uses if use.leg == leg.name) for leg in mix.legs]
    rows.append(["", "", *(f"{in_short(tokens):>7}{'':9}" for tokens in sums), in_short(sum(sums))])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    parts = [
        "\n".join("  ".join([row[0].ljust(widths[0]), *(row[at].rjust(widths[at]) for at in columns)]) for row in rows)
        for columns in _parts(widths, width)
    ]
    return "\n\n".join([*parts, "\n".join(_notes(mix))])


def _parts(widths: Sequence[int], width: int | None) -> list[list[int]]:
    """The columns behind the first in parts, each as wide as the terminal at most beside the first, or one column."""
    parts: list[list[int]] = [[]]
    room = left = math.inf if width is None else width - widths[0]
    for column in range(1, len(widths)):
        if parts[-1] and widths[column] + 2 > left:
            parts.append([])
            left = room
        parts[-1].append(column)
        left -= widths[column] + 2
    return parts


def _notes(mix: Mix) -> list[str]:
    notes = ["Tokens that a phase takes, and how often the source has been read through by its end."]
    if mix.estimated:
        notes.append("~ and the epochs of such a source: estimated, it is not tokenized yet.")
    if any(use.source not in mix.num_tokens for use in mix.found.uses):
        notes.append("? of a source whose size nothing tells: it is not tokenized yet.")
    for leg in mix.legs:
        if tokens := leg.skip_batches * leg.global_batch_size * leg.sequence_length:
            said = "tokens are left out as it begins (skip_batches): they count as read, and nobody reads them"
            notes.append(f"Of those of {leg.name}, {in_short(tokens)} {said}.")
    learned = sorted({leg.mixing.kind for leg in mix.legs if leg.mixing.lag_steps})
    if learned:
        notes.append(f"* as the mixture is written: {', '.join(learned)} will move the shares with what it learns.")
    missing = [finding for finding in mix.found.findings if finding.source in mix.num_tokens]
    return [*notes, *(f"look at  {_named(str(finding), mix)}" for finding in missing)]


def _named(message: str, mix: Mix) -> str:
    for name, label in mix.labels.items():
        message = message.replace(repr(name), repr(label))
    return message


def _draw(path: str, mix: Mix) -> None:
    from runtime.report.mix_chart import mix_chart

    chart = mix_chart(mix.found.uses, mix.labels, f"Tokens by source, to {mix.legs[-1].name}")
    write_picture("--chart", path, chart)
    print(f"drawn    {path}")
