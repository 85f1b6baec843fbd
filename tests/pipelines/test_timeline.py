"""The timeline command: exact tokens, rates at both ends, what changes and what was meant; drawn without a run."""

import json
import math
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from marin_dag.cli.main import main
from marin_dag.graph.graph import Graph
from marin_dag.plan.config_checks import refusals
from marin_dag.plan.plan import make_plan
from marin_dag.store.prefix import open_store
from pipelines.corpus import eight_b_corpus
from pipelines.scales import EIGHT_B
from pipelines.timeline import document, legs_in, main_line_of, phases_in, render, trained_tokens, twins_in
from pipelines.timeline_plot import draw
from pipelines.tootsie import OWN_COMMANDS, add_arguments, branches, build, phases, variant
from runtime.data.mixture import MixtureSchedule, MixtureSegment
from runtime.optim.ema import Ema
from runtime.report.recipe import shares

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
    legs = legs_in(steps)
    assert [(name, legs[name].end_tokens) for name in main_line_of(legs)] == [
        ("kestrel", 660_001 * 1024 * 4096),
        ("ocelot", 3_781_156_667_392),
        ("jellyfish", 4_781_498_171_392),
        ("phoenix", 11_072_966_754_304),
        ("starling", 12_415_127_257_088),
        ("deeper_starling", 12_750_671_577_088),
    ]
    assert all(leg.tokens_at(leg.settings.until_step) == leg.end_tokens for leg in legs.values())


def test_every_phase_and_branch_has_a_row_and_a_paragraph(steps, text):
    table, *paragraphs = text.split("\n\n")
    assert len(table.splitlines()) == 1 + len(steps)
    assert {paragraph.split()[0] for paragraph in paragraphs[:-1]} == set(steps)
    assert "660,001   2,768,244,834,304  1,024  0 → 1e-3 " in table
    assert paragraphs[-1].startswith(
        "6 phases: 1,420,000 steps, 12,750,671,577,088 tokens. 10 side branches under 11 names: "
    )


def test_updates_that_several_names_share_are_counted_once(steps, text):
    legs = legs_in(steps)
    names = [name for name in steps if name not in main_line_of(legs)]
    own = {name: legs[name].steps * legs[name].tokens_per_step for name in names}
    shared = own["spoonbill_norms_half"] + own["spoonbill_norms"]  # stops on the way of spoonbill_hypnotic
    assert shared == own["spoonbill_hypnotic"]
    assert trained_tokens(steps, names) == sum(own.values()) - shared
    last = text.split("\n\n")[-1].splitlines()
    assert last[0].endswith(f" under 11 names: {sum(own.values()) - shared:,} tokens more.")
    assert last[1:] == ["spoonbill_norms is the same training as spoonbill_hypnotic."]


@pytest.mark.parametrize("names", [None, ("jellyfish", "spoonbill_deeper")], ids=["all", "some"])
def test_a_plan_of_nothing_done_estimates_the_tokens_that_the_timeline_sums_up(steps, tmp_path, names):
    graph = Graph(steps.values() if names is None else [steps[name] for name in names])
    plan = make_plan(graph, open_store(str(tmp_path / "runs")))
    assert plan.cost.tokens == trained_tokens(steps, [name for name in graph.names if name in steps])


def test_a_branch_that_only_goes_on_with_the_main_line_adds_what_is_beyond_it(steps):
    ocelot = steps["ocelot"]
    longer = ocelot.fork("longer", until_step=ocelot.config.until_step + 10)
    phases = phases_in([ocelot, longer])
    beyond = trained_tokens(phases, phases) - trained_tokens(phases, ["kestrel", "ocelot"])
    assert beyond == 10 * legs_in(phases)["longer"].tokens_per_step
    assert twins_in(phases) == {}


def paragraph(text, name):
    return next(part for part in text.split("\n\n")[1:] if part.split()[0] == name)


def test_the_first_phase_says_everything_and_its_cycles(text):
    kestrel = paragraph(text, "kestrel")
    assert "from scratch, on 2 x v5litepod-256" in kestrel
    assert "from step 0: 20 of 10,000 steps, the last 1,000 of each decaying to 1e-4" in kestrel
    assert "from step 200,000: 23 of 20,000 steps, the last 2,000 of each decaying to 1e-4" in kestrel
    assert "= weight_decay      0.05" in kestrel and "theta 10,000, no scaling" in kestrel


def test_cycles_are_those_that_end_within_the_phase(steps):
    kestrel = steps["kestrel"]
    later = kestrel.then("later", until_step=740_500)
    short = kestrel.fork("short", until_step=155_000)
    text = render(phases_in([later, short]), {})
    said = {
        name: [line.split("cycles  ")[1].strip() for line in paragraph(text, name).splitlines() if "cycles  " in line]
        for name in ("later", "short")
    }
    assert [line.partition(" steps")[0] for line in said["later"]] == ["from step 660,001: 4 of 20,000"]
    assert [line.partition(" steps")[0] for line in said["short"]] == ["from step 0: 15 of 10,000"]


def test_no_line_is_wider_than_a_terminal(text):
    assert [line for line in text.splitlines() if len(line) > 120] == []
    assert text.count("  = learning_rate     cycles from step 0: 10,000 with 1,000 of decay; from step 200,000: ") == 1
    assert text.count("  ~ learning_rate     ->  constant 1.7e-3\n") == 1


def test_every_phase_says_its_rotary_embedding_and_its_mixture(steps, text):
    for name in steps:
        fields = [line.split()[1] for line in paragraph(text, name).splitlines() if line[:4] in ("  = ", "  ~ ")]
        assert fields.count("rope") == 1 and "mixture" in fields, name
    jellyfish, deeper_starling = paragraph(text, "jellyfish"), paragraph(text, "deeper_starling")
    assert "  = rope              theta 500,000, Llama-3 scaling ×8, as in ocelot" in jellyfish
    assert "  = mixture           as in kestrel" in paragraph(text, "ocelot")
    assert "  = mixture           as in starling" in deeper_starling and "nemotron" not in deeper_starling
    # The phase that set it, not the one before.
    assert "  = mixture           as in jellyfish" in paragraph(text, "raccoon_softer")


def test_a_mixture_whose_phase_is_not_shown_too_is_written_out(steps):
    deeper_starling = paragraph(render(steps, {}, names=("deeper_starling",)), "deeper_starling")
    assert "  = mixture           as in starling:\n  = mixture           nemotron_medium 22.1 %, " in deeper_starling


def test_every_phase_of_the_main_line_says_the_slices_it_was_trained_on(steps, text):
    said = {name: paragraph(text, name).splitlines()[0].rpartition(", on ")[2] for name in main_line_of(legs_in(steps))}
    others = ("ocelot", "jellyfish", "phoenix", "starling", "deeper_starling")
    assert said == {"kestrel": "2 x v5litepod-256"} | dict.fromkeys(others, "v4-2048")


def test_a_z_loss_that_begins_is_shown_in_the_phase_that_begins_it(text):
    assert "\n  ~ z_loss            0  ->  1e-4\n" in paragraph(text, "starling")
    assert "~ z_loss" not in paragraph(text, "deeper_starling")


def test_a_jump_is_shown_with_both_rates_and_its_step(text):
    ocelot = paragraph(text, "ocelot")
    assert "acknowledged: a jump from 1e-3 to 1.7e-3 at step 660,001" in ocelot
    assert "~ weight_decay      0.05  ->  0.1\n    acknowledged: a jump at step 660,001" in ocelot
    assert "~ rope              theta 10,000, no scaling  ->  theta 500,000, Llama-3 scaling ×8" in ocelot
    assert "acknowledged" not in paragraph(text, "jellyfish")


def test_a_jump_that_nobody_acknowledged_is_said_to_be_one(steps):
    forked = phases_in([steps["phoenix"].fork("heavier", weight_decay=0.2)])
    said = render(forked, refusals(forked.values()))
    heavier = paragraph(said, "heavier")
    assert "~ weight_decay      0.1  ->  0.2\n    NOT acknowledged: a jump at step 820,000\n" in heavier
    assert "REFUSED by a plan: the phase" in heavier
    assert """--set 'heavier.acknowledge=["weight_decay"]'""" in heavier
    assert said.count("REFUSED") == 1


def test_some_phases_alone_are_shown_as_among_all(steps, text):
    table, *paragraphs = render(steps, {}, names=("raccoon_soft", "jellyfish")).split("\n\n")
    assert [row.split()[0] for row in table.splitlines()] == ["phase", "jellyfish", "raccoon_soft"]
    assert [part.rstrip() for part in paragraphs] == [paragraph(text, "jellyfish"), paragraph(text, "raccoon_soft")]


def timeline(*arguments):
    argv = ["timeline", *arguments]
    return main(build, add_arguments=add_arguments, name="tootsie", argv=argv, variant=variant, commands=OWN_COMMANDS)


def test_what_a_plan_refuses_is_said_below_its_phase_and_fails(tmp_path, capsys):
    odd = ("--set", "kestrel.global_batch_size=1000", "--scale", "8b", "--prefix", str(tmp_path / "runs"))
    assert timeline(*odd) == 1
    said = capsys.readouterr()
    refused = "REFUSED by a plan: global_batch_size is 1,000, which does not divide over the 512 parts"
    assert refused in paragraph(said.out, "kestrel") and said.out.count("REFUSED") == 1 and not said.err
    assert timeline("kestrel", "ocelot", "--json", *odd) == 1
    told = json.loads(capsys.readouterr().out)
    kestrel, ocelot = told["phases"]
    assert told["schema"] == "marin_dag.timeline/1"
    assert kestrel["refused"].startswith("global_batch_size is 1,000") and ocelot["refused"] is None
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


def test_a_number_that_json_does_not_have_is_told_as_one_that_the_config_takes(steps):
    never = steps["kestrel"].fork("patient", checkpoint_every_seconds=math.inf)
    (told,) = json.loads(json.dumps(document({"patient": never}, {}), allow_nan=False))["phases"]
    text = told["settings"]["checkpoint_every_seconds"]
    assert text == "Infinity" and never.fork("again", checkpoint_every_seconds=text).config == never.config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["phenix"], "timeline phenix: there is no such phase. Did you mean 'phoenix'?"),
        (["phoenix", "--plot", "x.svg"], "--plot draws every phase"),
        (["--json", "--plot", "x.svg"], "--plot draws every phase"),
    ],
)
def test_what_cannot_be_shown_is_refused(arguments, message, tmp_path, capsys):
    assert timeline(*arguments, "--prefix", str(tmp_path / "runs")) == 1
    said = capsys.readouterr()
    assert message in said.err and not said.out


def test_the_mixture_of_a_phase_that_changes_it_midway_has_both_parts(text):
    phoenix = paragraph(text, "phoenix")
    assert "from step 820,000: dclm_baseline 0 % -> 25.7 %" in phoenix
    assert "from step 822,000: nemotron_medium 22.8 % -> 30.8 %" in phoenix
    assert "no longer: dolmino_dclm 67.8 %, pes2o 10.8 %," in phoenix  # of jellyfish
    assert "no longer: dclm_baseline 25.7 %, proofpile_2 0.371 %" in phoenix  # of its own first part


def test_two_shares_that_are_swapped_are_seen_beside_what_they_were_and_beside_the_epochs(text, tmp_path, capsys):
    """Tootsie's bad dessert: a fifth of it for what was meant to have a tenth, for 17,000 updates."""
    before = "pes2o 10.8 %"
    for name, flan, pes2o, epochs in (
        ("dessert_bad", "flan 0 % -> 16 %", f"{before} -> 3.59 %", "2.02x"),
        ("dessert", "flan 0 % -> 8.01 %", f"{before} -> 7.18 %", "1.01x"),
    ):
        said = paragraph(text, name)
        assert f"{flan}," in said and f"{pes2o}," in said
        assert "dolmino_dclm 67.8 %," in said  # as it was
        arguments = ["mix", name, "--scale", "8b", "--prefix", str(tmp_path)]
        assert main(build, name="tootsie", argv=arguments, add_arguments=add_arguments, commands=OWN_COMMANDS) == 0
        (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("flan ")]
        assert row[-3] == epochs


def test_a_mixture_fits_a_terminal_of_120_columns_and_loses_no_source(steps, text):
    lines = [line for line in text.splitlines() if line[2:11] in ("= mixture", "~ mixture")]
    assert len(lines) > len(steps) and max(map(len, lines)) <= 120
    told = [line[22:].strip() for line in paragraph(text, "starling").splitlines() if "mixture" in line]
    now, before = (steps[name].config.mixture.shares_at(1_320_000) for name in ("starling", "phoenix"))
    assert ", ".join(line.removesuffix(",") for line in told) == shares(now, before)


def test_what_has_passed_when_a_phase_begins_is_not_shown(steps):
    leaves_late = steps["phoenix"].at(step=823_000).then("late", until_step=824_000)
    mixed = steps["phoenix"].config.mixture
    changed = leaves_late.fork(
        "later", mixture=MixtureSchedule((*mixed.segments, MixtureSegment(823_500, {"dclm_baseline": 1})))
    )
    said = paragraph(render(phases_in([changed]), {}), "later")
    assert "from step 823,000: nemotron_medium 30.8 %" in said
    assert "from step 823,500: dclm_baseline 0 % -> 100 %" in said
    assert "822,000" not in said and "820,000" not in said
    alone = {"dclm_baseline": 1}
    leaves_there = (
        steps["phoenix"].at(step=822_000).then("there", until_step=823_000, mixture=MixtureSchedule.constant(alone))
    )
    said = paragraph(render(phases_in([leaves_there]), {}), "there")
    assert "~ mixture           dclm_baseline 25.7 % -> 100 %" in said  # as drawn last, not as it would have been


def test_a_phase_cut_in_two_changes_nothing_and_a_change_of_precision_is_shown(text):
    assert "= everything as in the phase before" in paragraph(text, "spoonbill_norms")
    assert "~ compute_dtype     bfloat16  ->  float32" in paragraph(text, "spoonbill_focused_fp32")


def test_moments_that_begin_anew_are_a_jump_that_is_acknowledged(text):
    assert (
        "~ restore           everything  ->  everything_but_optimizer\n    acknowledged: a jump at step 830,000"
    ) in paragraph(text, "raccoon_softer")


def test_another_cache_of_a_source_is_a_jump_to_its_beginning(steps):
    caches = dict(steps["ocelot"].config.caches)
    source, *_ = steps["ocelot"].config.mixture.sources
    caches[source] = next(cache for cache in caches.values() if cache != caches[source])
    (forked,) = [
        line
        for line in render(phases_in([steps["ocelot"].fork("two", caches=caches)]), {}).splitlines()
        if "NOT" in line
    ]
    assert forked == "    NOT acknowledged: a jump to the beginning of each at step 660,001"


def test_several_averages_are_told_with_their_names(steps):
    ocelot = steps["ocelot"].fork("two", averages=(Ema(0.995), Ema(0.9999, "slow")))
    said = render(phases_in([ocelot]), {})
    assert "  0.995, 0.9999  " in said
    assert "~ averages          none  ->  average, decay 0.995; average slow, decay 0.9999" in paragraph(said, "two")


def test_it_is_drawn_on_a_page_and_alone(steps):
    page = draw("Timeline of tootsie", steps, {}, is_page=True)
    assert "tokens, and 10 side branches under 11 names.</p>" in page
    assert page.startswith("<!doctype html>") and "cycles         from step 0: 20 of 10,000" in page
    drawn = ElementTree.fromstring(draw("Timeline of tootsie", steps, {}, is_page=False))
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    words = {element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert {"kestrel", "phoenix", "spoonbill_deeper", "1,024", "4,096"} <= words
    assert {"starcoderdata", "dclm_baseline"} <= words, "the sources by colour"


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
