"""The report's page: sections from results to how they were made."""

from collections.abc import Sequence

from runtime.report import result_plots, run_plots, score_noise, tables
from runtime.report.contents import Report, leading, mean
from runtime.report.document import document
from runtime.report.markup import Markup, element, listed
from runtime.report.recipe import counted, side_branches, tokens_label
from runtime.report.score_doubts import doubts
from runtime.tracking.stalls import PAGE_FILE

ZOOM = "Drag to zoom: all figures over tokens follow."
BY_SOURCE = (
    "Main line; nats a token. A source has no line where no phase drew from it. The axis does not begin at 0, and what "
    "lies above it in the first 3 % of the tokens is off it."
)
STALLS = (
    "How long each phase waited for data, the share of its training time, and every stall of more than a second with "
    "its cause: "
)
STALLS_ELSEWHERE = (
    ". That page lies in the folder above this one and is written when a run ends. Times differ between equal runs, so "
    "they are not on this page. If the link is broken (the report was copied alone, or the run was killed), this "
    "command makes the page, with the run's options (--prefix, --scale, --corpus, --set):"
)
STALLS_COMMAND = "stalls --page stalls.html"
CURVES = (
    "Gradients by layer, and held-out text measured while training, may be recorded at other steps in equal runs, so "
    "they are not on this page. This command draws them, with the run's options:"
)
CURVES_COMMAND = "curves --page curves.html"
RECIPE = (
    "Each phase and the settings that it changes. It inherits everything else from the phase it starts from, optimizer "
    "state and data position included."
)
Section = tuple[str, Sequence[str]]
"""Heading and contents; a section without contents is not on the page."""


def render(report: Report) -> str:
    """Return the whole page as text: the same report gives the same bytes."""
    every: dict[str, Section] = {
        "model": _model(report),
        "graph": _graph(report),
        "timeline": _timeline(report),
        "loss": _loss(report),
        "stalls": _stalls(report),
        "domains": _domains(report),
        "scores": _scores(report),
        "forks": _forks(report),
        "filtered": _filtered(report),
        "recipe": ("Recipe", [element("p", RECIPE), tables.recipe_table(report)]),
    }
    shown = {key: section for key, section in every.items() if section[1]}
    links = [element("a", title, href=f"#{key}") for key, (title, _) in shown.items()]
    opening = [_tiles(report), element("nav", *links, aria_label="Sections")]
    sections = [element("section", element("h2", title, id=key), *children) for key, (title, children) in shown.items()]
    return document(report.title, report.introduction, *sections, opening=opening)


def summary(report: Report) -> dict[str, object]:
    """Return the headline figures as JSON data, rounded so that the order of a sum does not show."""
    last, evaluation = report.main_line[-1], report.final_evaluation
    scores: dict[str, dict[str, float]] = {export.name: {} for export in report.exports}
    for score in report.scores:
        scores[score.export][f"{score.label}, {score.metric}"] = round(score.value, 6)
    return {
        "title": report.title,
        "final_phase": last.name,
        "step": last.step,
        "consumed_tokens": last.consumed_tokens,
        "final_loss": round(last.final_loss, 6),
        "bits_per_byte": None if evaluation is None else {
            "phase": evaluation.phase,
            "hot": round(mean(evaluation.hot), 6),
            "averages": {name: round(mean(values), 6) for name, values in evaluation.averages.items()},
        },
        "exports": {item.name: {"weights": item.weights, "digest": item.digest} for item in report.exports},
        "scores": scores,
        "phases": {phase.name: round(phase.final_loss, 6) for phase in report.phases},
    }  # fmt: skip


def _folded(summary: str, *children: str, class_: str | None = None) -> Markup:
    return element("details", element("summary", summary), *children, class_=class_)


def _command(report: Report, words: str) -> Markup:
    line = element("code", f"{report.command} {words}")
    return element("div", element("pre", line), class_="scroll", tabindex="0")


def _tiles(report: Report) -> Markup:
    last = report.main_line[-1]
    branches = side_branches(sum(phase.same_as is None for phase in report.branches), len(report.branches))
    tiles = [
        ("tokens trained on", tokens_label(last.consumed_tokens), f"{last.step:,} steps on the main line"),
        ("phases", str(len(report.main_line)), f"and {branches}"),
        ("final train loss", f"{last.final_loss:.3f}", f"nats a token, end of {last.name}, {_final_mean(report)}"),
    ]
    if (evaluation := report.final_evaluation) is not None:
        which = "EMA weights" if evaluation.averages else "weights"
        domains = counted(len(evaluation.best), "held-out domain")
        below = f"bits per byte, mean of {domains}, {which} of {evaluation.phase}"
        tiles.append(("held-out text", f"{mean(evaluation.best):.3f}", below))
    if scores := report.final_scores:
        accuracy = mean({score.label: score.value for score in scores})
        chance = mean({score.label: score.chance or 0.0 for score in scores})
        below = f"mean accuracy of {counted(len(scores), 'task')}, {scores[0].export}; guessing: {chance:.3f}"
        tiles.append(("harness score", f"{accuracy:.3f}", below))
    made = [
        element("div", element("span", title), element("b", value), element("small", below), class_="tile")
        for title, value, below in tiles
    ]
    return element("div", *made, class_="tiles")


def _final_mean(report: Report) -> str:
    return f"the mean of the last {counted(report.final_loss_steps, 'step')}"


def _model(report: Report) -> Section:
    text = (
        "Exported models, in the form that transformers loads. Folders lie below the prefix of the run and are "
        "found by the beginning of their digest, which is the same on every machine."
    )
    return "The model", [element("p", text), tables.exports_table(report)] if report.exports else []


def _graph(report: Report) -> Section:
    text = (
        f"{counted(len(report.graph), 'step')}, one row a source or phase, in the order in which they run. Point at a "
        "step to see its inputs and its readers."
    )
    folded = _folded("All steps with their inputs", tables.steps_table(report))
    return "The graph", [element("p", text), tables.graph_table(report), folded] if report.graph else []


def _timeline(report: Report) -> Section:
    caption = (
        "Each branch begins at the tokens at which it leaves the main line and is not part of the axis' total. A rate "
        "of 0 (the first step of a warm-up) is not drawn on a log scale."
    )
    table = _folded("The phases in figures", tables.phases_table(report), class_="print")
    parts = [run_plots.timeline(report, caption), table]
    if report.consumption is not None:
        parts += [element("h3", "How often each source was read"), tables.reading_table(report)]
    return "Timeline of the run", parts


def _loss(report: Report) -> Section:
    text = (
        "Cross-entropy on the text that was trained on. A change of mixture changes what is measured: a step there is "
        "not a gain or a loss of the model."
    )
    ends, cut = run_plots.loss_range(report)
    caption = f"Pale: the recorded values; strong: smoothed over neighbours by the slider. {ZOOM}"
    if report.branches:
        caption += f" A mark is the final loss of a branch, {_final_mean(report)}."
    if cut:
        first = float(report.main_line[0].curve.loss[0])
        caption += (
            f" The axis does not begin at 0; losses above {ends.high:.2f}, the last of them at {tokens_label(cut)} "
            f"tokens, are off it (the first step: {first:.2f}); “Fit y” shows them."
        )
    twins = [f"{phase.name} is the same training as {phase.same_as}." for phase in report.phases if phase.same_as]
    parts = [element("p", text), run_plots.loss(report, caption), listed(twins)]
    if report.source_curves:
        parts += [element("h3", "By source"), run_plots.source_losses(report, BY_SOURCE)]
    heading = element("h3", "Layer by layer, and held-out text on the way")
    return "Train loss", [*parts, heading, element("p", CURVES), _command(report, CURVES_COMMAND)]


def _stalls(report: Report) -> Section:
    # Bytes of an output: the link may name neither the attempt nor the step, so it goes to the folder of all attempts.
    link = element("a", "the data stalls of this run", href=f"../{PAGE_FILE}")
    return "Data stalls", [element("p", STALLS, link, STALLS_ELSEWHERE), _command(report, STALLS_COMMAND)]


def _has_several_averages(report: Report) -> bool:
    return any(len(evaluation.averages) > 1 for evaluation in report.evaluations)


def _domains(report: Report) -> Section:
    if not report.evaluations:
        return "Bits per byte by domain", []
    text = (
        "Bits that the model needs for each byte of held-out text, at the end of each phase; less is better. Documents "
        "of these sets were never trained on."
    )
    caption = (
        "Filled: EMA weights; open: weights. Lines lead from a phase to those that start from it. "
        + ("Squares: further averages of the phase, of the main line only. " if _has_several_averages(report) else "")
        + "All panels span the same number of bits per byte, at different heights, so slopes can be compared."
    )
    drawn = result_plots.domain_panels(report, caption)
    return "Bits per byte by domain", [element("p", text), drawn, tables.domains_table(report)]


def _scores(report: Report) -> Section:
    text = (
        "lm-eval scores of the exported models. A score within its interval of the dashed line does not differ from "
        "guessing."
    )
    caption = "Dot: score. Bar: 95 % interval (1.96 standard errors). Dashed: chance. Axes differ from panel to panel."
    parts = [element("p", text)] if report.scores else []
    if leading(report.scores):
        parts.append(result_plots.score_panels(report, caption))
    parts += [tables.scores_table(report)] if report.scores else []
    if noise := score_noise.noise_note(report.scores):
        parts.append(element("p", noise))
    if found := doubts(report):
        parts += [element("p", "Not to be trusted as they stand:"), listed(found)]
    return "Scores", parts


def _forks(report: Report) -> Section:
    text = "Branches made on the command line, each beside the phase that it repeats with other settings."
    table = tables.forks_table(report)
    return "Forks", [element("p", text), table] if table else []


def _filtered(report: Report) -> Section:
    if not report.stages:
        return "What was filtered", []
    text = "Documents by source, from what extraction found to what was tokenized, and why the others are not there."
    return "What was filtered", [
        element("p", text),
        tables.stages_table(report),
        tables.rules_table(report),
        tables.hits_table(report),
        tables.caches_table(report),
        element("h3", "Why, with samples"),
        element("p", "Samples are texts of strangers, shown as they were found, shortened."),
        tables.dropped_details(report),
    ]
