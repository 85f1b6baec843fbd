"""The timeline command: exact tokens, rates at both ends, what changes and what was meant; drawn without a run."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from marin_dag.cli.session import program_words
from marin_dag.graph.graph import Graph
from marin_dag.plan.config_checks import refusals
from marin_dag.plan.plan import make_plan
from marin_dag.store.prefix import open_store
from pipelines import timeline as timelines
from pipelines.corpus import eight_b_corpus
from pipelines.phases import main_line_of, phases_in, run_phases_in, trained_tokens, twins_in
from pipelines.scales import EIGHT_B
from pipelines.timeline_command import draw
from pipelines.tootsie import branches, main, phases
from runtime.data.mixture import MixtureSchedule, MixtureSegment
from runtime.optim.ema import Ema
from runtime.report.recipe import shares
from tests.catalogue import check_message
from tests.runtime.report.drawn import figures


def render(*arguments, **named):
    return timelines.render(timelines.timeline_of(*arguments, **named))


def document(*arguments, **named):
    return timelines.document(timelines.timeline_of(*arguments, **named))


ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def steps():
    corpus = eight_b_corpus(EIGHT_B)
    main_line = phases(EIGHT_B, corpus)
    return phases_in((main_line | branches(EIGHT_B, corpus, main_line)).values())


@pytest.fixture(scope="module")
def text(steps):
    return render(steps, {})


def test_tokens_are_exact_and_agree_with_the_published_ones(steps):
    run_phases = run_phases_in(steps)
    assert [(name, run_phases[name].end_tokens) for name in main_line_of(run_phases)] == [
        ("kestrel", 660_001 * 1024 * 4096),
        ("ocelot", 3_781_156_667_392),
        ("jellyfish", 4_781_498_171_392),
        ("phoenix", 11_072_966_754_304),
        ("starling", 12_415_127_257_088),
        ("deeper_starling", 12_750_671_577_088),
    ]
    assert all(
        run_phase.tokens_at(run_phase.settings.until_step) == run_phase.end_tokens for run_phase in run_phases.values()
    )


def test_every_phase_and_branch_has_a_row_and_a_paragraph(steps, text):
    table, *paragraphs = text.split("\n\n")
    assert len(table.splitlines()) == 1 + len(steps)
    assert {paragraph.split()[0] for paragraph in paragraphs[:-1]} == set(steps)


def test_the_timeline_of_the_whole_recipe_reads_as_in_the_catalogue(text):
    check_message(text)


def test_shared_steps_count_once(steps):
    run_phases = run_phases_in(steps)
    names = [name for name in steps if name not in main_line_of(run_phases)]
    own = {name: run_phases[name].steps * run_phases[name].tokens_per_step for name in names}
    shared = own["spoonbill_norms_half"] + own["spoonbill_norms"]  # stops of spoonbill_hypnotic
    assert shared == own["spoonbill_hypnotic"]
    assert trained_tokens(steps, names) == sum(own.values()) - shared
    assert twins_in(steps) == {"spoonbill_norms": "spoonbill_hypnotic"}


@pytest.mark.parametrize("names", [None, ("jellyfish", "spoonbill_deeper")], ids=["all", "some"])
def test_a_plan_of_nothing_done_estimates_the_tokens_that_the_timeline_sums_up(steps, tmp_path, names):
    graph = Graph(steps.values() if names is None else [steps[name] for name in names])
    plan = make_plan(graph, open_store(str(tmp_path / "runs")))
    assert plan.cost.work["tokens"] == trained_tokens(steps, [name for name in graph.names if name in steps])


def test_a_branch_that_only_goes_on_with_the_main_line_adds_what_is_beyond_it(steps):
    ocelot = steps["ocelot"]
    longer = ocelot.fork("longer", until_step=ocelot.config.until_step + 10)
    phases = phases_in([ocelot, longer])
    beyond = trained_tokens(phases, phases) - trained_tokens(phases, ["kestrel", "ocelot"])
    assert beyond == 10 * run_phases_in(phases)["longer"].tokens_per_step
    assert twins_in(phases) == {}


def paragraph(text, name):
    return next(part for part in text.split("\n\n")[1:] if part.split()[0] == name)


def test_no_line_is_wider_than_a_terminal(text):
    assert [line for line in text.splitlines() if len(line) > 120] == []


def test_an_inherited_mixture_is_written_out_where_its_phase_is_not_shown(steps):
    check_message(render(steps, {}, names=("deeper_starling",)))


def test_an_unacknowledged_jump_is_marked_and_refused(steps):
    forked = phases_in([steps["phoenix"].fork("heavier", weight_decay=0.2)])
    check_message(paragraph(render(forked, refusals(forked.values())), "heavier"))


def test_some_phases_alone_are_shown_as_among_all(steps, text):
    table, *paragraphs = render(steps, {}, names=("raccoon_soft", "jellyfish")).split("\n\n")
    assert [row.split()[0] for row in table.splitlines()] == ["phase", "jellyfish", "raccoon_soft"]
    assert [part.rstrip() for part in paragraphs] == [paragraph(text, "jellyfish"), paragraph(text, "raccoon_soft")]


def timeline(*arguments):
    return main(["timeline", *arguments])


def test_a_refusal_of_the_plan_stands_below_its_phase_and_fails(tmp_path, capsys):
    odd = ("--set", "kestrel.global_batch_size=1000", "--scale", "8b", "--prefix", str(tmp_path / "runs"))
    assert timeline("kestrel", *odd) == 1
    check_message(capsys.readouterr().out)
    assert timeline("kestrel", "ocelot", "--json", *odd) == 1
    found = json.loads(capsys.readouterr().out)
    kestrel, ocelot = found["phases"]
    assert found["schema"] == "marin_dag.timeline/1"
    assert kestrel["refused"] and ocelot["refused"] is None
    assert timeline("ocelot", *odd) == 0
    assert not (tmp_path / "runs").exists()


def test_a_program_reads_exact_tokens_and_changes(steps):
    everything = {item["name"]: item for item in document(steps, {})["phases"]}
    assert list(everything)[:2] == ["kestrel", "ocelot"] and set(everything) == set(steps)
    assert everything["starling"]["end_tokens"] == 12_415_127_257_088
    ocelot = {change["field"]: change for change in everything["ocelot"]["changes"]}
    assert ocelot["weight_decay"] == {
        "field": "weight_decay",
        "before": "0.05",
        "after": "0.1",
        "is_abrupt": True,
        "is_acknowledged": True,
    }
    assert everything["kestrel"]["settings"]["weight_decay"] == 0.05 and everything["kestrel"]["changes"] == []


def test_infinity_is_written_in_the_form_that_a_config_takes(steps):
    never = steps["kestrel"].fork("patient", checkpoint_every_seconds=math.inf)
    (phase,) = json.loads(json.dumps(document({"patient": never}, {}), allow_nan=False))["phases"]
    text = phase["settings"]["checkpoint_every_seconds"]
    assert text == "Infinity" and never.fork("again", checkpoint_every_seconds=text).config == never.config


@pytest.mark.parametrize("arguments", [["phenix"], ["phoenix", "--page", "x.html"]])
def test_a_wrong_call_is_refused(arguments, tmp_path, capsys):
    assert timeline(*arguments, "--prefix", str(tmp_path / "runs")) == 1
    shown = capsys.readouterr()
    assert not shown.out
    check_message(shown.err)


def test_swapped_shares_show_in_the_epochs(tmp_path, capsys):
    """Tootsie's dessert_bad gave flan and pes2o each other's share for 17,000 steps."""
    for name, epochs in (("dessert_bad", "2.02x"), ("dessert", "1.01x")):
        assert main(["mix", name, "--scale", "8b", "--prefix", str(tmp_path)]) == 0
        (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("flan ")]
        assert row[-3] == epochs


def test_a_mixture_fits_a_terminal_of_120_columns_and_loses_no_source(steps, text):
    lines = [line for line in text.splitlines() if line[2:11] in ("= mixture", "~ mixture")]
    assert len(lines) > len(steps) and max(map(len, lines)) <= 120
    shown = [line[22:].strip() for line in paragraph(text, "starling").splitlines() if "mixture" in line]
    now, before = (steps[name].config.mixture.shares_at(1_320_000) for name in ("starling", "phoenix"))
    assert ", ".join(line.removesuffix(",") for line in shown) == shares(now, before)


def test_a_phase_shows_no_earlier_part_of_its_mixture(steps):
    leaves_late = steps["phoenix"].at(step=823_000).then("late", until_step=824_000)
    mixed = steps["phoenix"].config.mixture
    changed = leaves_late.fork(
        "later", mixture=MixtureSchedule((*mixed.segments, MixtureSegment(823_500, {"dclm_baseline": 1})))
    )
    check_message(paragraph(render(phases_in([changed]), {}), "later"))
    alone = MixtureSchedule.constant({"dclm_baseline": 1})
    leaves_there = steps["phoenix"].at(step=822_000).then("there", until_step=823_000, mixture=alone)
    check_message(paragraph(render(phases_in([leaves_there]), {}), "there"))


def test_another_cache_of_a_source_is_a_jump(steps):
    caches = dict(steps["ocelot"].config.caches)
    source, *_ = steps["ocelot"].config.mixture.sources
    caches[source] = next(cache for cache in caches.values() if cache != caches[source])
    (forked,) = document(phases_in([steps["ocelot"].fork("two", caches=caches)]), {}, names=("two",))["phases"]
    (change,) = [change for change in forked["changes"] if change["field"] == "caches"]
    assert change["is_abrupt"] and not change["is_acknowledged"]


def test_several_averages_are_shown_with_their_names(steps):
    ocelot = steps["ocelot"].fork("two", averages=(Ema(0.995), Ema(0.9999, "slow")))
    check_message(render(phases_in([ocelot]), {}, names=("two",)))


def test_it_is_drawn_on_a_page(steps):
    page = draw("Timeline of tootsie", timelines.timeline_of(steps, {}))
    assert "and 10 side branches under 11 names." in page
    assert page.startswith("<!doctype html>") and "learning rate  0 at its first step" in page
    (phases, _, batches), (mixture,) = figures(page)
    assert {"kestrel", "phoenix", "spoonbill_deeper"} <= set(phases.y_range["factors"])
    assert {"starcoderdata", "dclm_baseline"} <= {mark.series for mark in mixture.marks}
    assert {1_024, 4_096} <= {size for mark in batches.marks for size in mark.data["y"]}


def test_the_command_prints_it_without_importing_anything_heavy(tmp_path):
    program = (
        "import sys; sys.argv = ['pipelines/tootsie.py', 'timeline', '--scale', '8b', '--prefix', sys.argv[1]]\n"
        "import runpy\n"
        "try:\n    runpy.run_path('pipelines/tootsie.py', run_name='__main__')\n"
        "except SystemExit as left:\n    assert left.code == 0, left.code\n"
        "print([name for name in ('jax', 'numpy', 'ray') if name in sys.modules])"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "runs")]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.rstrip().endswith("[]")
    assert "12,750,671,577,088 tokens" in found.stdout
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("words", ["timeline --plot x.html", "--plot x.html timeline", "why --plot x.html"])
def test_an_option_of_another_name_is_answered_with_one_that_the_command_takes(tmp_path, capsys, words):
    assert main([*words.split(), "--prefix", str(tmp_path)]) == 1
    check_message(capsys.readouterr().err.replace(" ".join(program_words()), "python RECIPE.py"))
