"""The report's page: sections from results to how they were made."""

import statistics
from typing import NamedTuple

from runtime.report import run_plots, tables
from runtime.report.contents import Report, mean
from runtime.report.document import document, figure_scripts
from runtime.report.heat_map import MOST_CELLS_OF_A_REPORT, heat_map
from runtime.report.heat_map import SCRIPT as HEAT_SCRIPT
from runtime.report.markup import Markup, element, folded, listed
from runtime.report.recipe import counted, side_branches, tokens_label
from runtime.report.score_curves import CAPTION as SCORES
from runtime.report.score_doubts import doubts, noise
from runtime.tracking.stalls import PAGE_FILE

MODEL = "In the form that transformers loads. The beginning of the digest finds a folder below the run's prefix."
TIMELINE = "A branch begins at the tokens at which it leaves the main line and is not part of the axis' total."
LOSS = (
    "Pale: the recorded values; strong: smoothed over neighbours by the slider. Drag to zoom: all figures over tokens "
    "follow. The axis does not begin at 0, and what lies above it in the first 3 % of the tokens is off it; “Fit y” "
    "shows it."
)
CROSS_ENTROPY = (
    "Cross-entropy on the text that was trained on. A change of mixture changes what is measured: a step there is not "
    "a gain or a loss of the model."
)
ELSEWHERE = (
    "Times, gradients by layer, and held-out text measured while training differ between equal runs, so they are not "
    "on this page. A run that ends writes them into the folder above this one: "
)
COMMANDS = ". These commands draw them, with the run's options (--prefix, --scale, --corpus, --set):"
STALLS_COMMAND, CURVES_COMMAND = "stalls --page stalls.html", "curves --page curves.html"
DOMAINS = (
    "Bits that the model needs for each byte of held-out text, at the end of each phase; less is better. Documents of "
    "these sets were never trained on."
)
BRANCHES = "Lines join the phases of the main line; branches have a mark each. Axes differ from panel to panel."
FORKS = "Branches made on the command line, each beside the phase that it repeats with other settings."
FILTERED = "Documents by source, from what extraction found to what was tokenized, and why the others are not there."
STRANGERS = "Samples are texts of strangers, shown as they were found, shortened."
RECIPE = (
    "Each phase and the settings that it changes. It inherits everything else from the phase it starts from, optimizer "
    "state and data position included."
)


class Section(NamedTuple):
    """A part of the page, which is shown if it has anything to show."""

    key: str
    title: str
    text: str
    parts: list[Markup]


def render(report: Report) -> str:
    """Return the whole page as text, without sections that show nothing: the same report gives the same bytes."""
    shown = [section for section in _sections(report) if any(section.parts)]
    links = [element("a", section.title, href=f"#{section.key}") for section in shown]
    opening = [_tiles(report), element("nav", *links, aria_label="Sections")]
    sections = [
        element("section", element("h2", title, id=key), *([element("p", text)] if text else []), *parts)
        for key, title, text, parts in shown
    ]
    scripts = (*figure_scripts(), *([HEAT_SCRIPT] if report.windows else []))
    return document(report.title, report.introduction, *sections, opening=opening, scripts=scripts)


def _sections(report: Report) -> list[Section]:
    twins = [f"{phase.name} is the same training as {phase.same_as}." for phase in report.phases if phase.same_as]
    steps = f"{counted(len(report.graph), 'step')} with their inputs, in the order in which they run"
    noisy, doubtful = noise(report.scores), listed(doubts(report))
    return [
        Section("model", "The model", MODEL, [tables.exports_table(report)]),
        Section("graph", "The graph", "", [folded(steps, tables.steps_table(report))]),
        Section("timeline", "Timeline of the run", "", [
            *run_plots.timeline(report, TIMELINE),
            folded("The phases in figures", tables.phases_table(report), class_="print"),
            *_part("How often each source was read", tables.sources_table(report)),
        ]),
        Section("loss", "Train loss", CROSS_ENTROPY, [
            run_plots.loss(report, LOSS),
            listed(twins),
            *_part("By source", run_plots.source_losses(report, "A source has no line where no phase drew from it.")),
        ]),
        Section("stalls", "Stalls, gradients, validation", "", _elsewhere(report)),
        Section("domains", "Bits per byte by domain", DOMAINS, [
            run_plots.domains(report, BRANCHES), tables.domains_table(report)
        ]),
        Section("tokens", "Held-out text, token by token", "", _tokens(report)),
        Section("texts", "Texts that the phases write", "", tables.side_by_side(report.texts)),
        Section("scores", "Scores", "lm-eval scores of the exported models.", [
            run_plots.scores(report, SCORES),
            tables.scores_table(report),
            *([element("p", noisy)] if noisy else []),
            *([element("p", "Not to be trusted as they stand:"), doubtful] if doubtful else []),
        ]),
        Section("forks", "Forks", FORKS, [tables.forks_table(report)]),
        Section("filtered", "What was filtered", FILTERED, [
            tables.stages_table(report),
            tables.rules_table(report),
            tables.hits_table(report),
            *_part("Why, with samples", tables.dropped_details(report), STRANGERS),
        ]),
        Section("recipe", "Recipe", RECIPE, [tables.recipe_table(report)]),
    ]  # fmt: skip


def _part(title: str, shown: Markup, text: str = "") -> list[Markup]:
    """Return a part of a section under a title of its own; nothing if it shows nothing."""
    return [element("h3", title), *([element("p", text)] if text else []), shown] if shown else []


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


def _elsewhere(report: Report) -> list[Markup]:
    # Bytes of an output: the link may name neither the attempt nor the step, so it goes to the folder of all attempts.
    link = element("a", "the data stalls and alarms of this run", href=f"../{PAGE_FILE}")
    commands = [
        element("div", element("pre", element("code", f"{report.command} {words}")), class_="scroll", tabindex="0")
        for words in (STALLS_COMMAND, CURVES_COMMAND)
    ]
    return [element("p", ELSEWHERE, link, COMMANDS), *commands]


def _tokens(report: Report) -> list[Markup]:
    return heat_map(report.moments, report.windows, MOST_CELLS_OF_A_REPORT) if report.windows else []
