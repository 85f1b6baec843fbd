"""mix: how many tokens and epochs of each source each phase takes, before anything trains."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from marin_dag.cli.session import Command, Session
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Record, Records
from marin_dag.plan.plan import Plan
from marin_dag.plan.planned import Verdict
from marin_dag.quantities import in_short
from pipelines.output import Shown, aligned
from pipelines.output import command as declared
from pipelines.phases import fork_names, main_line_of, phase_before, phases_in, run_phases_in, wanted_phases
from runtime.data.consumption import MANY_EPOCHS, Consumption, PhaseSpan, consumption
from runtime.same_fields import filled_from
from runtime.training.restore import RESTORES_POSITION

Estimate = Callable[[Any], Mapping[str, float]]
"""Tokens by name of the sources that are not tokenized yet, from the parsed arguments."""


@dataclasses.dataclass(frozen=True)
class Mix:
    """A run to the end of one phase, and its consumption."""

    spans: tuple[PhaseSpan, ...]
    labels: Mapping[str, str]
    """Shown name of each source of the mixtures."""
    num_tokens: Mapping[str, int]
    estimated: frozenset[str]
    """Sources whose size is an estimate."""
    found: Consumption


def command(estimate: Estimate) -> Command:
    """Return the command of a pipeline whose sources have these sizes before they are tokenized."""

    @declared("mix [PHASE]", "tokens and epochs of each source by phase, up to PHASE (by default the last)")
    def mix(session: Session) -> Shown:
        names, graph = session.parsed.names, session.graph()
        wanted_phases(session, graph)
        phases = phases_in(graph.steps)
        name = names[0] if names else main_line_of(run_phases_in(phases), fork_names(session))[-1]
        return Shown([rendered(mix_to(phases[name], Records(session.store).find, estimate(session.parsed)))])

    return mix


def repeated_data(session: Session, plan: Plan, estimated_tokens: Mapping[str, float]) -> Iterator[str]:
    """Yield a line of a plan for each source that the main line reads more often than is good."""
    phases = phases_in(planned.step for planned in plan.steps)
    if not phases:
        return
    last = main_line_of(run_phases_in(phases), fork_names(session))[-1]
    done = {planned.step.key for planned in plan.steps if planned.verdict is Verdict.DONE}
    records = Records(session.store)
    mix = mix_to(phases[last], lambda key: records.find(key) if key in done else None, estimated_tokens)
    for finding in mix.found.findings:
        if finding.kind == "over_epochs":
            label = mix.labels.get(finding.source, finding.source)
            size = f"{'~' if finding.source in mix.estimated else ''}{in_short(mix.num_tokens[finding.source])} tokens"
            yield (
                f"data     {label} ({size}): {finding.epochs:.2g} epochs of the main line, more than {MANY_EPOCHS:g} "
                f"from {finding.phase} on. Lower its weight, train on fewer tokens, or add text."
            )


def mix_to(phase: Step[Any], find: Callable[[str], Record | None], estimated_tokens: Mapping[str, float]) -> Mix:
    """Return the consumption of a run to the end of `phase`, from where its data began."""
    phases, ends = [phase], [phase.config.until_step]
    while (start := phase_before(phases[0])) is not None and phases[0].config.restore in RESTORES_POSITION:
        ends.insert(0, phases[0].config.begin_step)
        phases.insert(0, start.step)
    begins = [phases[0].config.begin_step, *ends[:-1]]
    spans = [
        filled_from(step.config, PhaseSpan, name=step.name, start_step=begin, until_step=end)
        for step, begin, end in zip(phases, begins, ends, strict=True)
    ]
    labels, num_tokens, estimated = {}, {}, set()
    for name, cache in {name: cache for step in phases for name, cache in step.config.caches.items()}.items():
        labels[name] = cache.step.name.removeprefix("tokenize/")
        record = find(cache.step.key)
        if record is not None:
            num_tokens[name] = int(record.result["num_train_tokens"])
        elif labels[name] in estimated_tokens:
            num_tokens[name] = round(estimated_tokens[labels[name]])
            estimated.add(name)
    found = consumption(spans, num_tokens=num_tokens)
    return Mix(tuple(spans), labels, num_tokens, frozenset(estimated), found)


def rendered(mix: Mix) -> str:
    """Return a table of tokens and epochs, and the findings."""
    used: dict[str, dict[str, str]] = {}
    total: dict[str, int] = {}
    by_phase = dict.fromkeys((span.name for span in mix.spans), 0)
    for use in mix.found.uses:
        epochs = f"{use.epochs:8.3g}x" if use.source in mix.num_tokens else "       ?x"
        used.setdefault(use.source, {})[use.phase] = f"{in_short(use.num_tokens):>7}{epochs}"
        total[use.source] = total.get(use.source, 0) + use.num_tokens
        by_phase[use.phase] += use.num_tokens
    rows = [["source", "size", *(span.name + ("*" if span.mixing.lag_steps else "") for span in mix.spans), "in all"]]
    for source in sorted(used, key=lambda source: -total[source]):
        size = mix.num_tokens.get(source)
        shown = "?" if size is None else f"{'~' if source in mix.estimated else ''}{in_short(size)}"
        uses = [used[source].get(span.name, "") for span in mix.spans]
        rows.append([mix.labels.get(source, source), shown, *uses, in_short(total[source])])
    sums = [f"{in_short(tokens):>7}{'':9}" for tokens in by_phase.values()]
    rows.append(["", "", *sums, in_short(sum(by_phase.values()))])
    return "\n".join([*aligned(rows), "", *_notes(mix)])


def _notes(mix: Mix) -> list[str]:
    notes = ["Tokens that a phase takes, and how often the source has been read through by its end."]
    if mix.estimated:
        notes.append("~ an estimate, as are the epochs: the source is not tokenized yet.")
    if any(use.source not in mix.num_tokens for use in mix.found.uses):
        notes.append("? an unknown size: the source is not tokenized yet.")
    for span in mix.spans:
        if tokens := span.skip_batches * span.global_batch_size * span.sequence_length:
            skips = f"{span.name} skips {in_short(tokens)} tokens at its start (skip_batches)"
            notes.append(f"{skips}; they count as read.")
    if learned := sorted({span.mixing.kind for span in mix.spans if span.mixing.lag_steps}):
        notes.append(f"* by the written mixture: {', '.join(learned)} will move the shares with what it learns.")
    for finding in mix.found.findings:
        if finding.source in mix.num_tokens:
            label = mix.labels.get(finding.source, finding.source)
            notes.append(f"look at  {dataclasses.replace(finding, source=label)}")
    return notes
