"""The report's page: sections from results to how they were made."""

from collections.abc import Sequence

from runtime.report.contents import Phase, Report, leading, mean
from runtime.report.document import document
from runtime.report.document_tables import (
    caches_table,
    dropped_details,
    edits_list,
    hits_table,
    rules_table,
    stages_table,
)
from runtime.report.graph_plot import graph
from runtime.report.labels import counted, tokens_label
from runtime.report.markup import Markup, element, joined
from runtime.report.recipe import side_branches
from runtime.report.result_plots import average_gap, domain_panels, filling_bars, kept_documents, score_panels
from runtime.report.run_plots import branch_groups, branch_loss, loss, loss_range, source_losses, timeline, twins
from runtime.report.sections import (
    domains_table,
    exports_table,
    forks_table,
    phases_table,
    reading_table,
    recipe_table,
    score_warnings,
    scores_table,
    steps_table,
)
from runtime.tracking.stalls import PAGE_FILE


def _section(key: str, title: str, introduction: str, *children: str) -> Markup:
    opening = [element("h2", title, id=key)] + ([element("p", introduction)] if introduction else [])
    return element("section", *opening, *children)


def _folded(summary: str, *children: str, is_printed: bool = True) -> Markup:
    return element("details", element("summary", summary), *children, class_="print" if is_printed else None)


def render(report: Report) -> str:
    """Return the whole page as text: the same report gives the same bytes."""
    sections = [(key, title, made) for key, title, made in _sections(report) if made]
    links = [element("a", title, href=f"#{key}") for key, title, _ in sections]
    shown = element(
        "main",
        element(
            "header", element("h1", report.title), element("p", report.introduction, class_="lead"), _tiles(report)
        ),
        element("nav", *links, aria_label="Sections"),
        *[made for _, _, made in sections],
    )
    return document(report.title, shown)


def _sections(report: Report) -> list[tuple[str, str, Markup]]:
    return [
        ("model", "The model", _model(report)),
        ("graph", "The graph", _graph(report)),
        ("timeline", "Timeline of the run", _timeline(report)),
        ("loss", "Train loss", _loss(report)),
        ("filling", "How full the sequences were", _filling(report)),
        ("stalls", "Data stalls", _stalls(report)),
        ("average", "Weights and EMA weights", _average(report)),
        ("domains", "Bits per byte by domain", _domains(report)),
        ("scores", "Scores", _scores(report)),
        ("forks", "Forks", _forks(report)),
        ("filtered", "What was filtered", _filtered(report)),
        ("recipe", "Recipe", _section("recipe", "Recipe", RECIPE, recipe_table(report))),
    ]


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
STALLS_COMMAND = "{command} stalls --page stalls.html"
CURVES = (
    "Gradients by layer, and held-out text measured while training, may be recorded at other steps in equal runs, so "
    "they are not on this page. This command draws them, with the run's options:"
)
CURVES_COMMAND = "{command} curves --norms norms.html --validation validation.html"
RECIPE = (
    "Each phase and the settings that it changes. It inherits everything else from the phase it starts from, optimizer "
    "state and data position included."
)


def _tile(title: str, value: str, below: str) -> Markup:
    return element("div", element("span", title), element("b", value), element("small", below), class_="tile")


def _tiles(report: Report) -> Markup:
    last = report.main_line[-1]
    num_trainings = sum(phase.same_as is None for phase in report.branches)
    tiles = [
        _tile("tokens trained on", tokens_label(last.consumed_tokens), f"{last.step:,} steps on the main line"),
        _tile("phases", str(len(report.main_line)), f"and {side_branches(num_trainings, len(report.branches))}"),
        _tile("final train loss", f"{last.final_loss:.3f}", f"nats a token, end of {last.name}, {_final_mean(report)}"),
    ]
    evaluation = report.final_evaluation
    if evaluation is not None:
        which = "EMA weights" if evaluation.averages else "weights"
        below = (
            f"bits per byte, mean of {counted(len(evaluation.best), 'held-out domain')}, {which} of {evaluation.phase}"
        )
        tiles.append(_tile("held-out text", f"{mean(evaluation.best):.3f}", below))
    scores = report.final_scores
    if scores:
        accuracy = mean({score.label: score.value for score in scores})
        chance = mean({score.label: score.chance or 0.0 for score in scores})
        below = f"mean accuracy of {counted(len(scores), 'task')}, {scores[0].export}; guessing: {chance:.3f}"
        tiles.append(_tile("harness score", f"{accuracy:.3f}", below))
    return element("div", *tiles, class_="tiles")


def summary(report: Report) -> dict[str, object]:
    """Return the headline figures as JSON data, rounded so that the order of a sum does not show."""
    last, evaluation = report.main_line[-1], report.final_evaluation
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
        "scores": {
            item.name: {
                f"{score.label}, {score.metric}": round(score.value, 6)
                for score in report.scores
                if score.export == item.name
            }
            for item in report.exports
        },
        "phases": {phase.name: round(phase.final_loss, 6) for phase in report.phases},
    }  # fmt: skip


def _model(report: Report) -> Markup:
    if not report.exports:
        return Markup()
    text = (
        "Exported models, in the form that transformers loads. Folders lie below the prefix of the run and are "
        "found by the beginning of their digest, which is the same on every machine."
    )
    return _section("model", "The model", text, exports_table(report))


def _graph(report: Report) -> Markup:
    if not report.graph:
        return Markup()
    caption = (
        f"{len(report.graph)} steps. Left, one row a source and its way to a token cache; right, the phases, each "
        "branch below the phase it leaves, with what was made of each. Point at a step to see its inputs and its "
        "readers."
    )
    drawn = graph(report.graph, [phase.name for phase in report.main_line], caption)
    table = _folded("All steps with their inputs", steps_table(report), is_printed=False)
    return _section("graph", "The graph", "", drawn, table)


def _timeline(report: Report) -> Markup:
    caption = (
        "Each branch begins at the tokens at which it leaves the main line and is not part of the axis' total. A rate "
        "of 0 (the first step of a warm-up) is not drawn on a log scale."
    )
    parts = [timeline(report, caption), _folded("The phases in figures", phases_table(report))]
    if report.consumption is not None:
        parts += [element("h3", "How often each source was read"), reading_table(report)]
    return _section("timeline", "Timeline of the run", "", *parts)


def _stalls(report: Report) -> Markup:
    # Bytes of an output: the link may name neither the attempt nor the step, so it goes to the folder of all attempts.
    link = element("a", "the data stalls of this run", href=f"../{PAGE_FILE}")
    paragraph = element("p", STALLS, link, STALLS_ELSEWHERE)
    return _section("stalls", "Data stalls", "", paragraph, _command(STALLS_COMMAND.format(command=report.command)))


def _command(line: str) -> Markup:
    return element("div", element("pre", element("code", line)), class_="scroll", tabindex="0")


def _filling(report: Report) -> Markup:
    if not report.fillings:
        return Markup()
    text = (
        "Positions with a next token to predict, of all that the phase computed. The others are padding (of whole "
        "documents packed into sequences), and the last token of each document and of each sequence."
    )
    return _section("filling", "How full the sequences were", text, filling_bars(report, "Point at a bar for counts."))


def _loss(report: Report) -> Markup:
    _, high, cut = loss_range(report)
    caption = f"Pale: the recorded values; strong: smoothed over neighbours by the slider. {ZOOM}"
    if cut:
        first = float(report.main_line[0].curve.loss[0])
        caption += (
            f" The axis does not begin at 0; losses above {high:.2f}, the last of them at {tokens_label(cut)} tokens, "
            f"are off it (the first step: {first:.2f}); “Fit y” shows them."
        )
    parts: list[str] = [loss(report, caption)]
    if report.source_curves:
        parts += [element("h3", "By source"), source_losses(report, BY_SOURCE)]
    for root, branches in branch_groups(report):
        parts.append(element("h3", f"Branches of {root.name}"))
        parts.append(_branches(report, root, branches))
    parts += [
        element("h3", "Layer by layer, and held-out text on the way"),
        element("p", CURVES),
        _command(CURVES_COMMAND.format(command=report.command)),
    ]
    text = (
        "Cross-entropy on the text that was trained on. A change of mixture changes what is measured: a step there is "
        "not a gain or a loss of the model."
    )
    return _section("loss", "Train loss", text, *parts)


def _branches(report: Report, root: Phase, branches: Sequence[Phase]) -> Markup:
    if all(phase.same_as is not None for phase in branches):
        return element("p", " ".join(twins(branches)))
    text = (
        "The main line over the same tokens is on its own mixture. A mark is the final loss, "
        f"{_final_mean(report)}; of a shorter branch, those before it are among them. The axis does not begin at 0."
    )
    return branch_loss(report, root, branches, " ".join([text, *twins(branches)]))


def _final_mean(report: Report) -> str:
    number = "" if report.final_loss_steps is None else f" {report.final_loss_steps:,}"
    return f"the mean of the last{number} steps"


def _average(report: Report) -> Markup:
    if not report.evaluations:
        return Markup()
    text = (
        "How many bits per byte a running average of the weights is better than the weights themselves, at the end "
        "of each phase. Right of 0 the average is better. At a constant learning rate it should be; after a decay to a "
        "small rate both are nearly the same."
    )
    caption = "Large: mean over domains. Small and grey: each domain."
    if _has_several_averages(report):
        caption += " A phase that keeps several has a row for each; exports take the first by default."
    return _section("average", "Weights and EMA weights", text, average_gap(report, caption))


def _has_several_averages(report: Report) -> bool:
    return any(len(evaluation.averages) > 1 for evaluation in report.evaluations)


def _domains(report: Report) -> Markup:
    if not report.evaluations:
        return Markup()
    text = (
        "Bits that the model needs for each byte of held-out text, at the end of each phase; less is better. Documents "
        "of these sets were never trained on."
    )
    caption = (
        "Filled: EMA weights; open: weights. Lines lead from a phase to those that start from it. "
        + ("Squares: further averages of the phase, of the main line only. " if _has_several_averages(report) else "")
        + "All panels span the same number of bits per byte, at different heights, so slopes can be compared."
    )
    drawn = domain_panels(report, caption)
    return _section("domains", "Bits per byte by domain", text, drawn, domains_table(report))


def _scores(report: Report) -> Markup:
    if not report.scores:
        return Markup()
    text = (
        "lm-eval scores of the exported models. A score within its interval of the dashed line does not differ from "
        "guessing."
    )
    caption = "Dot: score. Bar: 95 % interval (1.96 standard errors). Dashed: chance. Axes differ from panel to panel."
    drawn = score_panels(report, caption) if leading(report.scores) else Markup()
    return _section("scores", "Scores", text, drawn, scores_table(report), score_warnings(report))


def _forks(report: Report) -> Markup:
    if not report.forks:
        return Markup()
    text = "Branches made on the command line, each beside the phase that it repeats with other settings."
    return _section("forks", "Forks", text, forks_table(report))


def _filtered(report: Report) -> Markup:
    if not report.stages:
        return Markup()
    text = "Documents by source, from what extraction found to what was tokenized, and why the others are not there."
    caption = "Share of documents, not of bytes. The table below has both."
    parts: list[str] = [
        kept_documents(report.stages, caption),
        stages_table(report),
        edits_list(report),
        rules_table(report),
        hits_table(report),
    ]
    if report.caches:
        parts.append(caches_table(report))
    parts.append(element("h3", "Why, with samples"))
    parts.append(element("p", "Samples are texts of strangers, shown as they were found, shortened."))
    return _section("filtered", "What was filtered", text, joined(parts), dropped_details(report))
