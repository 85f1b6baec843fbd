"""The report's page: sections from results to how they were made."""

import statistics

from runtime.report import run_plots, tables
from runtime.report.contents import Report, mean
from runtime.report.document import document, figure_scripts
from runtime.report.heat_map import MOST_CELLS_OF_A_REPORT, heat_map
from runtime.report.heat_map import SCRIPT as HEAT_SCRIPT
from runtime.report.markup import Markup, element, listed
from runtime.report.recipe import counted, side_branches, tokens_label
from runtime.report.score_curves import CAPTION as SCORES
from runtime.report.score_doubts import doubts, noise
from runtime.tracking.stalls import PAGE_FILE

LOSS = (
    "Pale: the recorded values; strong: smoothed over neighbours by the slider. Drag to zoom: all figures over tokens "
    "follow. The axis does not begin at 0, and what lies above it in the first 3 % of the tokens is off it; “Fit y” "
    "shows it."
)
ELSEWHERE = (
    "Times, gradients by layer, and held-out text measured while training differ between equal runs, so they are not "
    "on this page. A run that ends writes them into the folder above this one: "
)
ELSEWHERE_COMMANDS = ". These commands draw them, with the run's options (--prefix, --scale, --corpus, --set):"
STALLS_COMMAND, CURVES_COMMAND = "stalls --page stalls.html", "curves --page curves.html"
RECIPE = (
    "Each phase and the settings that it changes. It inherits everything else from the phase it starts from, optimizer "
    "state and data position included."
)


def render(report: Report) -> str:
    """Return the whole page as text, without sections that show nothing: the same report gives the same bytes."""
    every = (
        ("model", "The model", _model(report)),
        ("graph", "The graph", _graph(report)),
        ("timeline", "Timeline of the run", _timeline(report)),
        ("loss", "Train loss", _loss(report)),
        ("stalls", "Stalls, gradients, validation", _elsewhere(report)),
        ("domains", "Bits per byte by domain", _domains(report)),
        ("tokens", "Held-out text, token by token", _tokens(report)),
        ("texts", "Texts that the phases write", tables.side_by_side(report.texts)),
        ("scores", "Scores", _scores(report)),
        ("forks", "Forks", _forks(report)),
        ("filtered", "What was filtered", _filtered(report)),
        ("recipe", "Recipe", [element("p", RECIPE), tables.recipe_table(report)]),
    )
    shown = [section for section in every if section[2]]
    links = [element("a", title, href=f"#{key}") for key, title, _ in shown]
    opening = [_tiles(report), element("nav", *links, aria_label="Sections")]
    sections = [element("section", element("h2", title, id=key), *children) for key, title, children in shown]
    scripts = (*figure_scripts(), *([HEAT_SCRIPT] if report.windows else []))
    return document(report.title, report.introduction, *sections, opening=opening, scripts=scripts)


def _tiles(report: Report) -> Markup:
    last = report.main_line[-1]
    branches = side_branches(sum(phase.same_as is None for phase in report.branches), len(report.branches))
    final = f"the mean of the last {counted(report.final_loss_steps, 'step')}"
    tiles = [
        ("tokens trained on", tokens_label(last.consumed_tokens), f"{last.step:,} steps on the main line"),
        ("phases", str(len(report.main_line)), f"and {branches}"),
        ("final train loss", f"{last.final_loss:.3f}", f"nats a token, end of {last.name}, {final}"),
    ]
    if (evaluation := report.final_evaluation) is not None:
        which = "EMA weights" if evaluation.averages else "weights"
        domains = counted(len(evaluation.best), "held-out domain")
        below = f"bits per byte, mean of {domains}, {which} of {evaluation.phase}"
        tiles.append(("held-out text", f"{mean(evaluation.best):.3f}", below))
    if scores := report.final_scores:
        accuracy = statistics.fmean(score.value for score in scores)
        chance = statistics.fmean(score.chance or 0.0 for score in scores)
        below = f"mean accuracy of {counted(len(scores), 'task')}, {scores[0].export}; guessing: {chance:.3f}"
        tiles.append(("harness score", f"{accuracy:.3f}", below))
    made = [
        element("div", element("span", title), element("b", value), element("small", below), class_="tile")
        for title, value, below in tiles
    ]
    return element("div", *made, class_="tiles")


def _model(report: Report) -> list[Markup]:
    text = (
        "Exported models, in the form that transformers loads. Folders lie below the prefix of the run and are "
        "found by the beginning of their digest, which is the same on every machine."
    )
    return [element("p", text), tables.exports_table(report)] if report.exports else []


def _graph(report: Report) -> list[Markup]:
    summary = f"{counted(len(report.graph), 'step')} with their inputs, in the order in which they run"
    return [element("details", element("summary", summary), tables.steps_table(report))] if report.graph else []


def _timeline(report: Report) -> list[Markup]:
    caption = (
        "Each branch begins at the tokens at which it leaves the main line and is not part of the axis' total. The "
        "mixture is that of the main line."
    )
    figures = element("summary", "The phases in figures"), tables.phases_table(report)
    parts = [run_plots.timeline(report, caption), element("details", *figures, class_="print")]
    if report.caches:
        parts += [element("h3", "How often each source was read"), tables.sources_table(report)]
    return parts


def _loss(report: Report) -> list[Markup]:
    text = (
        "Cross-entropy on the text that was trained on. A change of mixture changes what is measured: a step there is "
        "not a gain or a loss of the model."
    )
    twins = [f"{phase.name} is the same training as {phase.same_as}." for phase in report.phases if phase.same_as]
    parts = [element("p", text), run_plots.loss(report, LOSS), listed(twins)]
    if report.source_curves:
        caption = "Main line. A source has no line where no phase drew from it."
        parts += [element("h3", "By source"), run_plots.source_losses(report, caption)]
    return parts


def _elsewhere(report: Report) -> list[Markup]:
    # Bytes of an output: the link may name neither the attempt nor the step, so it goes to the folder of all attempts.
    link = element("a", "the data stalls and alarms of this run", href=f"../{PAGE_FILE}")
    commands = [
        element("div", element("pre", element("code", f"{report.command} {words}")), class_="scroll", tabindex="0")
        for words in (STALLS_COMMAND, CURVES_COMMAND)
    ]
    return [element("p", ELSEWHERE, link, ELSEWHERE_COMMANDS), *commands]


def _domains(report: Report) -> list[Markup]:
    if not report.evaluations:
        return []
    text = (
        "Bits that the model needs for each byte of held-out text, at the end of each phase; less is better. Documents "
        "of these sets were never trained on."
    )
    caption = "Lines join the phases of the main line; branches have a mark each. Axes differ from panel to panel."
    return [element("p", text), run_plots.domains(report, caption), tables.domains_table(report)]


def _tokens(report: Report) -> list[Markup]:
    return heat_map(report.moments, report.windows, MOST_CELLS_OF_A_REPORT) if report.windows else []


def _scores(report: Report) -> list[Markup]:
    parts = []
    if report.scores:
        parts = [element("p", "lm-eval scores of the exported models."), run_plots.scores(report, SCORES)]
        parts.append(tables.scores_table(report))
    if inside := noise(report.scores):
        parts.append(element("p", inside))
    if found := doubts(report):
        parts += [element("p", "Not to be trusted as they stand:"), listed(found)]
    return parts


def _forks(report: Report) -> list[Markup]:
    text = "Branches made on the command line, each beside the phase that it repeats with other settings."
    table = tables.forks_table(report)
    return [element("p", text), table] if table else []


def _filtered(report: Report) -> list[Markup]:
    if not report.stages:
        return []
    text = "Documents by source, from what extraction found to what was tokenized, and why the others are not there."
    return [
        element("p", text),
        tables.stages_table(report),
        tables.rules_table(report),
        tables.hits_table(report),
        element("h3", "Why, with samples"),
        element("p", "Samples are texts of strangers, shown as they were found, shortened."),
        tables.dropped_details(report),
    ]
