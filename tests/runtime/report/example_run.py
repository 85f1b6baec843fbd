"""An example of a run, made up but shaped like Tootsie: six phases, ten branches, seven domains, hostile samples.

`python tests/runtime/report/example_run.py PAGE` writes the page, to be looked at after a change of the drawing.
"""

import dataclasses
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from runtime.optim.ema import Ema
from runtime.report.contents import (
    Curve,
    Evaluation,
    Export,
    HeatWindow,
    MixtureSpan,
    Moment,
    Phase,
    Report,
    Score,
    SourceCurve,
    Stage,
)
from runtime.report.recipe import Change

SEQUENCE_LENGTH = 256
HOSTILE = '</pre></div><script>alert(1)</script><img src=https://evil.example/x onerror=alert(1)>\u202e\x00 & "quoted"'
WEB = {"web_pages": 0.93, "code": 0.06, "mathematics": 0.01}
COOLDOWN = {"web_pages": 0.68, "code": 0.02, "encyclopedia": 0.12, "papers": 0.1, "questions": 0.08}
STEADY = {"web_high": 0.33, "web_medium": 0.45, "web_low": 0.2, "code": 0.02}
STARLING = {
    "web_high": 0.24, "web_medium": 0.32, "web_low": 0.14, "code": 0.05, "mathematics": 0.05,
    "encyclopedia": 0.06, "papers": 0.06, "questions": 0.04, "instructions": 0.04,
}  # fmt: skip
DOMAINS = ("web_pages", "code", "mathematics", "encyclopedia", "papers", "questions", "instructions")

_PHASES = (
    # name, parent, until step, batch, first rate, last rate, mixture, has average
    ("kestrel", None, 1200, 8, 1e-3, 1e-3, WEB, False),
    ("ocelot", "kestrel", 1360, 24, 1.7e-3, 1.7e-3, WEB, True),
    ("jellyfish", "ocelot", 1520, 24, 1.7e-3, 1.7e-4, COOLDOWN, True),
    ("phoenix", "jellyfish", 2400, 24, 1.7e-3, 1.7e-3, STEADY, True),
    ("starling", "phoenix", 2560, 32, 1.7e-3, 1.7e-5, STARLING, True),
    ("deeper_starling", "starling", 2600, 32, 1.7e-5, 1.7e-5, STARLING, True),
    ("cooldown_v2", "ocelot", 1520, 24, 1.7e-3, 1.7e-4, COOLDOWN, True),
    ("dessert_bad", "jellyfish", 1554, 24, 1.7e-4, 1.7e-4, COOLDOWN, True),
    ("dessert_v3", "jellyfish", 1554, 24, 1.7e-4, 1.7e-4, COOLDOWN, True),
    ("raccoon_soft", "jellyfish", 1540, 24, 1.7e-4, 1.7e-5, COOLDOWN, True),
    ("raccoon_softer", "raccoon_soft", 1560, 24, 1.7e-5, 1e-6, COOLDOWN, True),
    ("raccoon_softer_no_decay", "raccoon_soft", 1560, 24, 1.7e-5, 1e-6, COOLDOWN, True),
    ("spoonbill_hypnotic", "jellyfish", 1540, 24, 1.7e-4, 2.75e-5, COOLDOWN, True),
    ("spoonbill_norms", "jellyfish", 1540, 24, 1.7e-4, 2.75e-5, COOLDOWN, True),
    ("spoonbill_zloss", "jellyfish", 1540, 24, 1.7e-4, 2.75e-5, COOLDOWN, True),
    ("spoonbill_deeper", "spoonbill_zloss", 1560, 24, 2.75e-5, 2.75e-6, COOLDOWN, True),
)


def _curve(generator: np.random.Generator, row: tuple, first_step: int, first_tokens: int, level: float) -> Curve:
    name, _, until, batch, first, last, _, _ = row
    steps = np.arange(first_step + 1, until + 1)
    elapsed = np.arange(len(steps)) / max(len(steps) - 1, 1)
    rates = first + (last - first) * elapsed
    if name == "kestrel":
        into = np.maximum((steps - 1) % 300 - 270, 0)
        rates = first / (1 + 9 * into / 30) * np.minimum((steps - 1) / 40, 1)
    if name == "phoenix":
        rates = np.minimum(1.7e-4 + (1.7e-3 - 1.7e-4) * (steps - steps[0]) / 30, 1.7e-3)
    fall = 4.5 * np.exp(-(steps - 1) / 60) if name == "kestrel" else 0.0
    trend = level - 0.1 * elapsed - 0.12 * (1 - rates / 1.7e-3)
    losses = trend + fall + generator.normal(0, 0.05, len(steps))
    return Curve(steps, first_tokens + batch * SEQUENCE_LENGTH * np.arange(1, len(steps) + 1), losses, rates,
                 np.full(len(steps), batch))  # fmt: skip


def _phases() -> tuple[Phase, ...]:
    generator = np.random.default_rng(0)
    made: dict[str, Phase] = {}
    levels = {
        "kestrel": 3.6,
        "ocelot": 3.5,
        "jellyfish": 3.38,
        "phoenix": 3.45,
        "starling": 3.3,
        "deeper_starling": 3.12,
    }
    for number, row in enumerate(_PHASES):
        name, parent, until, _, first, last, mixture, has_average = row
        before = made[parent] if parent else None
        level = levels.get(name, 3.26 + 0.012 * (number % 4))
        curve = _curve(generator, row, before.step if before else 0, before.consumed_tokens if before else 0, level)
        begin, end = before.consumed_tokens if before else 0, int(curve.consumed_tokens[-1])
        shares = {source: share / math.fsum(mixture.values()) for source, share in mixture.items()}
        spans = [MixtureSpan(begin, end, shares)]
        if name == "phoenix":
            change = float(curve.consumed_tokens[curve.step == 1600][0])
            warm = {"web_pages": 0.3, "web_high": 0.25, "web_medium": 0.3, "web_low": 0.15}
            spans = [MixtureSpan(begin, change, warm), MixtureSpan(change, end, STEADY)]
        averages = (Ema(0.995),) if has_average else ()
        changes = ()
        if before:
            changes = (
                Change("learning_rate", "as before", f"linear {first:g} → {last:g} over {until - before.step} steps"),
                Change("mixture", "web", ", ".join(f"{source} {share:.0%}" for source, share in mixture.items())),
            )
        made[name] = Phase(
            name, parent, number < 6, before.step if before else 0, until, before.consumed_tokens if before else 0,
            int(curve.consumed_tokens[-1]), float(curve.loss[-16:].mean()), averages, curve, tuple(spans), changes,
            num_targets=int((curve.consumed_tokens[-1] - (before.consumed_tokens if before else 0)) * 0.993),
        )  # fmt: skip
    return tuple(made.values())


def _evaluations(phases: tuple[Phase, ...]) -> tuple[Evaluation, ...]:
    found = []
    for phase in phases:
        hot = {
            domain: round(phase.final_loss / math.log(2) / (3.2 + 0.45 * math.sin(2 * index)), 6)
            for index, domain in enumerate(DOMAINS)
        }
        gap = 0.004 + 11 * float(phase.curve.learning_rate[-1])
        averaged = {
            domain: value - gap * (1 + 0.3 * math.cos(index)) for index, (domain, value) in enumerate(hot.items())
        }
        found.append(
            Evaluation(phase.name, phase.consumed_tokens, hot, {"averaged": averaged} if phase.averages else {})
        )
    return tuple(found)


def score(export, task, num_fewshot, metric, value, stderr, chance, num_items=200) -> Score:
    """A score of an export, of which nothing was truncated or not understood."""
    return Score(task, num_fewshot, metric, value, stderr, num_items, chance, "none", 0, 0, None, export=export)


def _scores(exports: tuple[Export, ...]) -> tuple[Score, ...]:
    tasks = (("arc_easy", 10, 0.25), ("arc_challenge", 10, 0.25), ("hellaswag", 0, 0.25), ("piqa", 10, 0.5),
             ("boolq", 10, 0.5), ("mmlu", 5, 0.25))  # fmt: skip
    return tuple(
        score(export.name, task, shots, "acc_norm" if task != "mmlu" else "acc", chance + 0.012 * (place + index % 3),
              0.018 - 0.001 * index, chance, 200)
        for place, export in enumerate(exports)
        for index, (task, shots, chance) in enumerate(tasks)
    )  # fmt: skip


def _stages() -> tuple[Stage, ...]:
    stages = []
    for index, source in enumerate(DOMAINS):
        left = 4000 + 900 * index
        for stage, reasons in (
            ("extract", ("no main text",)),
            ("filter", ("too short", "too many symbols", "repeats its lines")),
            ("dedup", ("exact copy", "near copy")),
            ("decontaminate", ("13-gram of hellaswag",)),
        ):
            rate = {"extract": 0.02, "filter": 0.05, "dedup": 0.03 * (index + 1), "decontaminate": 0.0008}[stage]
            dropped = {reason: int(left * rate / (place + 1)) for place, reason in enumerate(reasons)}
            left -= sum(dropped.values())
            samples = [
                {
                    "reason": reason,
                    "id": f"{source}/{place}.html",
                    "detail": f"{HOSTILE[:20]} detail",
                    "excerpt": f"{HOSTILE}\nsecond line " + "word " * 60,
                }
                for reason in reasons
                for place in range(2)
            ]
            hits = {"hellaswag": 2 + index, "arc_easy": 1} if stage == "decontaminate" else {}
            sizes = {reason: 0 if stage == "extract" else 1_700 * count for reason, count in dropped.items()}
            stages.append(Stage(source, stage, left, left * 2600, dropped, sizes, samples, hits))
    return tuple(stages)


def _source_curves(phases: tuple[Phase, ...]) -> tuple[SourceCurve, ...]:
    """Each source a little above or below the loss of all, the last of them only drawn by the later half."""
    main_line = [phase for phase in phases if phase.is_main]
    step = np.concatenate([phase.curve.step for phase in main_line])
    loss = np.concatenate([phase.curve.loss for phase in main_line])
    half = len(step) // 2
    return (
        *(SourceCurve(domain, step, loss + 0.2 * (index - 2)) for index, domain in enumerate(DOMAINS[:5])),
        SourceCurve(DOMAINS[5], step[half:], loss[half:]),
    )


def _windows(phases: tuple[Phase, ...]) -> tuple[HeatWindow, ...]:
    """A window of each domain; another token is the hardest after each phase."""
    generator = np.random.default_rng(5)
    texts = [*f"A hostile text {HOSTILE} and the rest".split(" ")]

    def moment() -> Moment:
        log_prob = np.append(np.nan, -generator.exponential(3, len(texts) - 1)).astype(np.float32)
        rank = np.where(np.isfinite(log_prob), np.round(-log_prob), -1).astype(np.int32)
        likely = np.full((len(texts), 2), -0.7, np.float32)
        return Moment(log_prob, rank, np.full(len(texts), 1.5, np.float32), [("a", HOSTILE)] * len(texts), likely)

    return tuple(HeatWindow(domain, f"{domain:.4}", texts, [moment() for _ in phases]) for domain in DOMAINS)


def example_report() -> Report:
    """The whole example; every call gives the same."""
    phases = _phases()
    exports = tuple(
        Export(
            name,
            name,
            "hot" if name == "kestrel" else "averaged",
            f"{index:x}3f29ac0",
            f"outputs/**/*-{index:x}3f29ac0/*/model",
        )
        for index, name in enumerate(("jellyfish", "starling", "deeper_starling"))
    )
    sizes = {"num_validation_tokens": 12_000, "num_train_bytes": 3_100_000}
    caches = [
        (domain, SimpleNamespace(num_train_tokens=800_000 + 7 * index, **sizes)) for index, domain in enumerate(DOMAINS)
    ]
    return Report(
        "Tootsie, laptop scale",
        "A Llama of 1.1 million parameters, trained through the phases of Tootsie 8B on ten sources of real text.",
        "python pipelines/tootsie.py",
        phases, _evaluations(phases), exports, _scores(exports), _stages(), caches,
        source_curves=_source_curves(phases), moments=tuple(phase.name for phase in phases), windows=_windows(phases),
    )  # fmt: skip


def with_two_averages(report: Report, name: str) -> Report:
    """The example with a slower average beside the first of one phase, twice as good."""
    found = next(item for item in report.evaluations if item.phase == name)
    slow = {domain: 2 * value - found.hot[domain] for domain, value in found.averages["averaged"].items()}
    changed = dataclasses.replace(found, averages={**found.averages, "slow": slow})
    evaluations = tuple(changed if item is found else item for item in report.evaluations)
    two = (Ema(0.995), Ema(0.9999, "slow"))
    return dataclasses.replace(with_phase(report, name, averages=two), evaluations=evaluations)


def with_phase(report: Report, name: str, **changes: object) -> Report:
    """The example with one phase changed."""
    phases = tuple(dataclasses.replace(p, **changes) if p.name == name else p for p in report.phases)
    return dataclasses.replace(report, phases=phases)


if __name__ == "__main__":
    from runtime.report.page import render

    Path(sys.argv[1]).write_text(render(example_report()), encoding="utf-8")
