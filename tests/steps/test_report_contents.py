"""The page's content for each phase, source, fork and step, from results and files of the inputs."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, decoders, models

from runtime.evaluation.stored_predictions import PREDICTIONS_FILE
from runtime.report import page as report_page
from runtime.report.heat_map import FEWEST_TOKENS
from runtime.report.page import render
from runtime.scaling.curves import Interval, IsoFlopCurve
from steps import report_contents
from steps.fit_scaling_law import FitScalingLawResult, RungResult
from steps.phase_result import FINAL_LOSS_STEPS
from steps.report_contents import contents_of, page_order
from steps.tokenizer import TokenizerResult
from tests.catalogue import expect_error
from tests.runtime.report.drawn import figures
from tests.steps.report_inputs import evaluation, example, made, phase


def prediction(weights, domain, window, log_prob):
    likely = {"likely": [1, 0], "likely_log_prob": [-0.5, -3.0]}
    of_token = {"log_prob": log_prob, "token": 1, "rank": 0, "entropy": 0.5, **likely}
    place = {"step": 1, "consumed_tokens": 100, "position": 1}
    return {**place, "weights": weights, "domain": domain, "window": window, **of_token}


def test_phases_come_in_the_order_of_the_run_with_their_branches_last(tmp_path):
    contents = contents_of(example(tmp_path))
    assert [phase.name for phase in contents.phases] == ["kestrel", "ocelot", "spoonbill"]
    assert [phase.is_main for phase in contents.phases] == [True, True, False]
    assert contents.phases[1].start_tokens == contents.phases[0].consumed_tokens
    assert contents.final_loss_steps == FINAL_LOSS_STEPS
    shares = [phase.num_targets / (phase.consumed_tokens - phase.start_tokens) for phase in contents.phases]
    assert shares == [250 / 256] * len(contents.phases)


def test_a_branch_of_a_branch_stands_right_behind_it():
    parents = {"ocelot": "kestrel", "dessert": "ocelot", "raccoon": "ocelot", "softer": "raccoon", "apple": "softer"}
    parents |= {"zebra": "raccoon", "early": "kestrel"}
    names = ["kestrel", *parents, "from scratch"]
    config = SimpleNamespace(main_line=("kestrel", "ocelot"), phases=dict.fromkeys(names), parents=parents)
    branches = ["from scratch", "early", "dessert", "raccoon", "softer", "apple", "zebra"]
    assert page_order(config) == ["kestrel", "ocelot", *branches]
    with expect_error(ValueError):
        page_order(SimpleNamespace(**vars(config) | {"parents": parents | {"raccoon": "softer"}}))


def test_every_average_that_was_measured_is_in_the_report_by_its_name(tmp_path):
    config = example(tmp_path)
    measured = {"quick": {"code": 1.4, "web": 1.2}, "slow": {"code": 1.3, "web": 1.1}}
    both = {**config.evaluations, "ocelot": evaluation(tmp_path, "ocelot", **measured)}
    found = contents_of(config.model_copy(update={"evaluations": both, "labels": {"web": "My notes"}})).evaluations
    assert found[0].averages == {}
    assert found[1].averages == {
        "quick": {"code": 1.4, "My notes": 1.2}, "slow": {"code": 1.3, "My notes": 1.1},
    }  # fmt: skip


def test_merged_weights_have_their_row_in_each_table_and_their_point_in_each_plot(tmp_path):
    config, names = example(tmp_path), ("merged", "lent")
    changes = {
        kind: {**(of_kind := getattr(config, kind)), **dict.fromkeys(names, of_kind["ocelot"])}
        for kind in ("exports", "scores", "texts")
    }
    changes["evaluations"] = {**config.evaluations, "merged": evaluation(tmp_path, "merged")}
    contents = contents_of(config.model_copy(update={"others": names, **changes}))
    assert [(each.name, each.step) for each in contents.others] == [("merged", 1), ("lent", 60)]
    assert [each.phase for each in contents.evaluations] == ["kestrel", "ocelot", "merged"]
    assert [(each.name, each.phase) for each in contents.exports] == [(each, each) for each in ("ocelot", *names)]
    assert [phase for phase, _ in contents.texts] == ["ocelot", *names]
    page = render(contents)
    assert '<th scope="row">↳ merged</th><td>weights</td>' in page and "merged after step 1: 1.2500" in page
    assert "lent, averaged after step 60" in page


def test_two_names_of_one_record_are_shown_as_one_run(tmp_path):
    config = example(tmp_path)
    twice = {**config.phases, "spoonbill_again": config.phases["spoonbill"]}
    config = config.model_copy(update={"phases": twice, "parents": {**config.parents, "spoonbill_again": "ocelot"}})
    found = {phase.name: phase.same_as for phase in contents_of(config).phases}
    assert found == {"kestrel": None, "ocelot": None, "spoonbill": None, "spoonbill_again": "spoonbill"}


def test_sources_are_called_what_a_person_calls_them(tmp_path):
    contents = contents_of(example(tmp_path, labels={"web": "My notes"}))
    assert contents.caches[0][0] == "My notes"
    assert {stage.source for stage in contents.stages} == {"My notes"}
    assert set(contents.evaluations[0].hot) == {"My notes", "code"}
    assert set(contents.phases[0].mixture[0].shares) == {"My notes", "code"}


def test_each_phase_says_how_often_it_has_read_a_source_on_its_way_by_the_log_of_draws(tmp_path):
    """The mixture says three of four from the web; a policy drew otherwise, and code beyond its limit."""
    drew = {"kestrel": {"web": 7, "code": 1}, "ocelot": {"web": 4, "code": 20}, "spoonbill": {"web": 24, "code": 0}}
    on_the_way = [(40, drew["kestrel"]), (50, drew["ocelot"])]  # spoonbill leaves ocelot before the end of it
    phases = {
        "kestrel": phase(tmp_path, "kestrel", 1, 40, drawn=drew["kestrel"]),
        "ocelot": phase(tmp_path, "ocelot", 41, 60, 24, drawn=drew["ocelot"], batches=on_the_way[:1]),
        "spoonbill": phase(tmp_path, "spoonbill", 51, 70, 24, drawn=drew["spoonbill"], batches=on_the_way),
    }
    caches = example(tmp_path / "other").caches
    code = caches["web"].result.model_copy(update={"num_train_tokens": 100 * 256})
    web = code.model_copy(update={"num_train_tokens": 1_000 * 256 + 255})
    caches = {"web": made(tmp_path, "tokenize/web", web), "code": made(tmp_path, "tokenize/code", code)}
    contents = contents_of(example(tmp_path / "other", phases=phases, caches=caches))
    taken = {(use.phase, use.source): (use.num_tokens // 256, use.epochs) for use in contents.consumption.uses}
    assert taken == {
        ("kestrel", "web"): (280, 0.28),
        ("kestrel", "code"): (40, 0.4),
        ("ocelot", "web"): (80, 0.36),
        ("ocelot", "code"): (400, 4.4),
        ("spoonbill", "web"): (480, 0.28 + 0.04 + 0.48),
        ("spoonbill", "code"): (0, 2.4),
    }
    (finding,) = contents.consumption.findings
    assert (finding.kind, finding.source, finding.phase) == ("over_epochs", "code", "ocelot")
    assert finding.epochs == pytest.approx(4.4)
    kestrel, ocelot, _ = contents.phases
    assert [span.shares for span in kestrel.mixture] == [{"code": 0.125, "web": 0.875}]
    assert [span.shares for span in ocelot.mixture] == [{"code": 20 / 24, "web": 4 / 24}]


def test_a_source_that_only_a_branch_rereads_is_found_beside_the_main_lines_count(tmp_path):
    first, second, third = {"web": 7, "code": 1}, {"web": 12, "code": 12}, {"web": 4, "code": 20}
    on_the_way = [(40, first), (50, second)]
    phases = {
        "kestrel": phase(tmp_path, "kestrel", 1, 40, drawn=first),
        "ocelot": phase(tmp_path, "ocelot", 41, 60, 24, drawn=second, batches=on_the_way[:1]),
        "spoonbill": phase(tmp_path, "spoonbill", 51, 70, 24, drawn=third, batches=on_the_way),
    }
    cache = example(tmp_path / "other").caches["web"].result.model_copy(update={"num_train_tokens": 100 * 256})
    caches = {name: made(tmp_path, f"tokenize/{name}", cache) for name in ("web", "code")}
    contents = contents_of(example(tmp_path / "other", phases=phases, caches=caches))
    reported = {finding.source: (round(finding.epochs, 9), finding.phase) for finding in contents.consumption.findings}
    assert reported == {"web": (5.2, "ocelot"), "code": (5.6, "spoonbill")}


def test_skipped_updates_change_no_count_of_tokens(tmp_path):
    def reported(folder, skipped):
        changed = {"kestrel": phase(folder, "kestrel", 1, 40, skipped=skipped)}
        contents = contents_of(example(folder, phases=example(folder).phases | changed))
        spans = [(item.name, item.start_tokens, item.consumed_tokens, item.num_targets) for item in contents.phases]
        return spans, contents.consumption

    expected = reported(tmp_path / "all", ())
    assert expected[0][0] == ("kestrel", 0, 40 * 8 * 256, 40 * 8 * 250)
    assert reported(tmp_path / "first", (1, 2)) == reported(tmp_path / "second", (2,)) == expected


@pytest.mark.parametrize(("begin_step", "until"), [(50, 55), (50, 60), (0, 55)], ids=["branch", "to its end", "stop"])
def test_a_branch_that_trains_as_its_parent_does_begins_where_its_result_says(tmp_path, begin_step, until):
    """A fork that only keeps another average has the figures of the phase that it leaves, update by update."""
    tokens = 40 * 8 * 256
    config = example(tmp_path)
    made_of = phase(tmp_path, "osprey", 41, until, 24)
    reported = made_of.result.model_copy(update={"begin_step": begin_step})
    osprey = made(tmp_path, "osprey", reported)
    config = config.model_copy(
        update={"phases": {**config.phases, "osprey": osprey}, "parents": {**config.parents, "osprey": "ocelot"}}
    )
    contents = contents_of(config)
    (found,) = [item for item in contents.phases if item.name == "osprey"]
    first = begin_step or 40  # the same training to an earlier stop: the updates of its parent
    assert (found.start_step, found.step, found.start_tokens) == (first, until, tokens + (first - 40) * 24 * 256)
    assert found.curve.step.tolist() == list(range(first + 1, until + 1))
    assert render(contents)


def test_a_phase_none_of_whose_own_updates_was_taken_is_refused_by_its_name(tmp_path):
    config = example(tmp_path)
    reported = phase(tmp_path, "osprey", 41, 52, 24, skipped=(51, 52)).result.model_copy(update={"begin_step": 50})
    phases = {**config.phases, "osprey": made(tmp_path, "osprey", reported)}
    config = config.model_copy(update={"phases": phases, "parents": {**config.parents, "osprey": "ocelot"}})
    with expect_error(ValueError):
        contents_of(config)


def test_a_source_that_was_never_drawn_is_a_finding_though_the_mixture_names_it(tmp_path):
    drawn = {"web": 8, "code": 0}
    phases = {"kestrel": phase(tmp_path, "kestrel", 1, 40, drawn=drawn)}
    caches = {name: made(tmp_path, f"tokenize/{name}", example(tmp_path / "other").caches["web"].result.model_copy(
        update={"num_train_tokens": 400 * 256})) for name in ("web", "code")}  # fmt: skip
    fields = {"main_line": ("kestrel",), "parents": {}, "recipe": {}, "exports": {}, "scores": {}, "evaluations": {}}
    contents = contents_of(example(tmp_path / "other", phases=phases, caches=caches, **fields))
    found = [(finding.kind, finding.source) for finding in contents.consumption.findings]
    assert found == [("never_drawn", "code")]


def test_a_fork_names_the_phase_that_it_repeats(tmp_path):
    contents = contents_of(example(tmp_path, forks={"spoonbill": "ocelot"}))
    assert [(fork.name, fork.fork_of) for fork in contents.phases if fork.fork_of] == [("spoonbill", "ocelot")]
    assert [evaluation.windows for evaluation in contents.evaluations] == [{}, {}]
    rows = [prediction(which, "web", "a", -2.0) for which in ("hot", "averaged")]
    table = pa.Table.from_pylist([*rows, rows[1] | {"log_prob": -4.0}, rows[1] | {"log_prob": None}])
    config = example(tmp_path, forks={"spoonbill": "ocelot"})
    pq.write_table(table, config.evaluations["ocelot"].join(PREDICTIONS_FILE))
    found = contents_of(config).evaluations[1]
    assert found.windows == {("web", "a"): (3.0, 2)}
    assert found.num_tokens == config.evaluations["ocelot"].result.num_tokens


def test_the_tokens_of_a_window_of_each_domain_are_in_the_report_after_each_phase(tmp_path, monkeypatch):
    vocabulary = Tokenizer(models.WordLevel({"a": 0, " sea": 1}, unk_token="a"))
    vocabulary.decoder = decoders.Fuse()
    result = TokenizerResult(
        tokenizer="tokenizer.json", vocab_size=2, eos_token_id=0, bos_token_id=None, digest="d"
    )  # fmt: skip
    tokenizer = made(tmp_path, "tokenizer", result)
    vocabulary.save(f"{tokenizer.path}/tokenizer.json")
    evaluations = example(tmp_path).evaluations | {"spoonbill": evaluation(tmp_path, "spoonbill")}
    config = example(tmp_path, tokenizer=tokenizer, labels={"web": "the web"}, evaluations=evaluations)
    assert contents_of(config).windows == ()
    monkeypatch.setattr(report_contents, "MOST_CELLS_OF_A_REPORT", 0)  # each window shows as few tokens as possible
    length = FEWEST_TOKENS + 1
    for name, weights, loss in (("kestrel", "hot", 2.0), ("ocelot", "averaged", 1.0), ("spoonbill", "hot", 3.0)):
        rows = [
            prediction(which, domain, window, -loss if which == weights else -9.0)
            for which in ("hot", "averaged")
            for domain, window in (("web", "b"), ("web", "a"), ("code", "c"))
            for _ in range(length)
        ]
        pq.write_table(pa.Table.from_pylist(rows), config.evaluations[name].join(PREDICTIONS_FILE))
    contents = contents_of(config)
    assert contents.moments == ("spoonbill", "kestrel", "ocelot, averaged weights"), "a branch comes first"
    assert [(window.domain, window.digest, window.texts) for window in contents.windows] == [
        ("code", "c", [" sea"] * length), ("the web", "a", [" sea"] * length),
    ]  # fmt: skip
    log_probs = [[float(moment.log_prob[0]) for moment in window.moments] for window in contents.windows]
    assert log_probs == [[-3, -2, -1]] * 2
    moments = [moment for window in contents.windows for moment in window.moments]
    assert {len(moment.log_prob) for moment in moments} == {length}
    assert {len(moment.likely) for moment in moments} == {FEWEST_TOKENS}
    monkeypatch.setattr(report_page, "MOST_CELLS_OF_A_REPORT", 0)
    assert "Held-out text, token by token" in render(contents)


def test_hits_and_samples_reach_their_stage(tmp_path):
    filtered, clean = contents_of(example(tmp_path)).stages
    assert filtered.samples[0]["detail"] == "7 < 50"
    assert (clean.stage, clean.hits) == ("decontaminate", {"piqa": 3})


def test_the_loss_of_each_source_on_the_main_line_is_under_the_name_a_person_gave_it(tmp_path):
    contents = contents_of(example(tmp_path, labels={"web": "the web"}))
    code, web = contents.source_curves
    assert (code.source, web.source) == ("code", "the web")
    assert web.step.tolist() == list(range(1, 61)), "of the main line, from the start of the run, and of no branch"
    np.testing.assert_allclose(web.loss, 5 - 0.01 * web.step)
    np.testing.assert_allclose(code.loss, 2.0)


def test_a_ladder_shows_its_law_each_rungs_prediction_and_the_curves_at_equal_flops(tmp_path):
    def estimate(value):
        return Interval(value=value, low=0.9 * value, high=1.2 * value)

    rungs = tuple(
        RungResult(
            name=f"w{size}/{tokens}x", num_parameters=size, num_tokens=1_000 * tokens, loss=2.0,
            predicted=estimate(2.1 if size == 48 else 2.0), is_held_out=size == 48,
        )
        for size in (16, 48) for tokens in (1, 2)
    )  # fmt: skip
    curve = IsoFlopCurve(flops=6e9, num_parameters=(16.0, 32.0, 48.0), losses=(2.2, 2.0, 2.1), optimum=33.0)
    coefficients = ("irreducible", "parameter_factor", "token_factor", "alpha", "beta", "size_exponent")
    found = FitScalingLawResult(
        **{name: estimate(0.5) for name in coefficients}, isoflop_size_exponent=0.48, isoflop_curves=(curve,),
        rungs=rungs, tasks={}, confidence=0.95, share_at_bounds=0.0,
    )  # fmt: skip
    page = render(contents_of(example(tmp_path, law=made(tmp_path, "law", found))))
    section = page[page.index('id="law"') : page.index('id="domains"')]
    assert '>w48/1x</th><td class="number">48</td><td class="number">1.00k</td>' in section
    assert section.count(">+5.00%<") == 2 == section.count("the other rungs<")
    assert ">0.45 – 0.6<" in section and ">0.48<" in section
    small, large, equal = (panel for shown in figures(section) for panel in shown)
    assert small.title == "16 parameters (bits per byte)" and large.of("Scatter", "predicted, held out")
    (bars,) = large.of("Segment", "predicted, held out")
    assert bars.data["y0"] == pytest.approx([1.89, 1.89]) and bars.data["y1"] == pytest.approx([2.52, 2.52])
    assert "w48/1x: 2.1000 (1.8900 – 2.5200)" in large.tips
    assert "6.00e+09 FLOPs: least at 33 parameters" in equal.tips
    assert 'id="law"' not in render(contents_of(example(tmp_path / "other")))
