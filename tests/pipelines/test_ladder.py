"""The ladder: what its rungs share, a small one run for real, and what `predict` and a plan say of it."""

import argparse
import dataclasses
import inspect
import io
import json
import json.decoder
import logging
import random
import re
import textwrap
from types import SimpleNamespace

import pytest
from rich.console import Console

from marin_dag.cli import session
from marin_dag.cli.session import program_words
from marin_dag.graph.graph import Graph
from marin_dag.ledger.records import Records
from marin_dag.plan.plan import make_plan
from marin_dag.run.driver import Run
from marin_dag.run.live import LineDisplay
from marin_dag.run.local.backend import LocalBackend
from marin_dag.store.prefix import open_store
from pipelines import ladder, recipe
from pipelines.predict_command import FittedLaw, above_zero, optimum
from runtime.scaling.bootstrap import Replicate, bootstrap
from runtime.scaling.fit import Fit
from steps.fit_scaling_law import FitScalingLawResult
from tests.catalogue import check_message, expect_error
from tests.runtime.scaling.test_fit import ladder as exact_rungs

SMALL = dataclasses.replace(
    ladder.LAPTOP, widths=(16, 24, 32), tokens_per_parameter=(0.5, 1, 2), vocab_size=300, sequence_length=32,
    global_batch_size=8, warmup_steps=5, evaluation_tokens=8_192,
)  # fmt: skip
LARGEST = "w32/2x"
MODULES = (argparse, dataclasses, json.decoder, logging, random, re, textwrap)
"""Python source, of which larger models learn more."""


def small(folder):
    texts = [text for module in MODULES for text in inspect.getsource(module).split("\n\n\n") if len(text) > 100]
    folder.mkdir()
    (folder / "web.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    documents = {"web": recipe.documents("web", f"{folder}/web.jsonl")}
    tokenizer = recipe.tokenizer(documents, vocab_size=SMALL.vocab_size)
    caches = recipe.token_caches(documents, tokenizer, validation_share=0.1)
    return ladder.law(SMALL, ladder.rungs(SMALL, caches, {"web": 1.0}), held_out=[LARGEST])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the law of a small ladder that has run, and its prefix."""
    folder = tmp_path_factory.mktemp("ladder")
    law, prefix = small(folder / "texts"), str(folder / "runs")
    store, shown = open_store(prefix), io.StringIO()
    plan = make_plan(Graph([law]), store)
    display = LineDisplay(Console(file=shown), Console(file=shown))
    code = Run(plan.graph.steps, store, LocalBackend(), display, command="", wanted=plan.wanted_milestones).run()
    assert code == 0, shown.getvalue()
    return law, prefix


@pytest.fixture
def call(finished, monkeypatch, capsys):
    """Return a function that runs a command on the small ladder, and returns its code and output without numbers."""
    law, prefix = finished
    monkeypatch.setattr(ladder, "build", lambda arguments: [law])

    def run(*words, prefix=prefix):
        code = ladder.main([*words, "--prefix", prefix])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def without_numbers(text):
    return re.sub(r"  +", "  ", re.sub(r"[-+]?\d[\d.,]*(e[-+]?\d+)?%?( [kMBT]\b)?", "#", text))


def test_the_largest_rung_is_predicted_from_the_others(finished):
    law, prefix = finished
    result = FitScalingLawResult.model_validate(Records(open_store(prefix)).get(law.key).result)
    (largest,) = [rung for rung in result.rungs if rung.is_held_out]
    assert largest.name == LARGEST and len(result.rungs) == 9
    assert abs(largest.error) < 0.05
    assert result.alpha.value > 0 and result.beta.value > 0


def test_each_size_is_trained_once(finished):
    law, prefix = finished
    records, graph = Records(open_store(prefix)), Graph([law])
    for width in SMALL.widths:
        lengths = [SMALL.num_steps(width, multiple) for multiple in SMALL.tokens_per_parameter]
        starts = [SMALL.cooldown_start(length) for length in lengths]
        stable, *cooldowns = [step for step in graph.steps if step.name.split("/")[0] == f"w{width}"]
        assert stable.config.until_step == starts[-1]
        assert [(step.config.begin_step, step.config.until_step) for step in cooldowns] == [
            *zip(starts, lengths, strict=True)
        ]
        assert all(records.find(f"{stable.digest}@{at}") is not None for at in starts)
    check_message(ladder.savings(graph))


def test_models_and_rates_follow_from_the_width():
    models = {width: ladder.LAPTOP.model(width) for width in ladder.LAPTOP.widths}
    assert all(model.num_attention_heads * model.head_dim == width for width, model in models.items())
    sizes = [ladder.num_parameters(model) for model in models.values()]
    assert sizes == sorted(set(sizes)) and sizes[-1] > 4 * sizes[0]
    rates = [ladder.LAPTOP.learning_rate(width) for width in models]
    assert [width * rate for width, rate in zip(models, rates, strict=True)] == pytest.approx(
        [64 * ladder.LAPTOP.rate] * 5
    )


def test_an_embedding_that_is_also_the_head_counts_as_a_parameter_of_the_law():
    model = ladder.LAPTOP.model(32)
    tied = dataclasses.replace(model, tie_word_embeddings=True)
    assert ladder.num_parameters(tied) == tied.num_parameters == ladder.num_parameters(model)


def test_predict_shows_the_law_a_larger_run_and_the_best_size_for_a_budget(call):
    for words in ((), ("1m:2e6",), ("--flops", "1e12"), ("--money", "10", "--price", "4", "--on", "gpu:H100:1")):
        code, shown = call("predict", *words)
        assert code == 0
        check_message(without_numbers(shown))


def test_a_law_whose_exponents_are_determined_names_the_best_size_for_a_budget():
    result = SimpleNamespace(confidence=0.95, rungs=exact_rungs())
    exact = bootstrap(Fit(exact_rungs()), num_replicates=20, confidence=result.confidence, seed=0)
    assert exact.determines_optimum
    check_message("\n".join(optimum(FittedLaw(result, exact, None), 1e21)))


def test_no_size_is_named_where_its_interval_spans_more_than_a_factor_of_100():
    result = SimpleNamespace(confidence=0.95, rungs=exact_rungs())
    exact = bootstrap(Fit(exact_rungs()), num_replicates=20, confidence=result.confidence, seed=0)
    other = Replicate(dataclasses.replace(exact.law, alpha=2 * exact.law.alpha), 0.0)
    wide = dataclasses.replace(exact, replicates=(*exact.replicates, other, other))
    check_message("\n".join(optimum(FittedLaw(result, wide, None), 1e30)))


def test_a_plan_shows_what_is_shared_and_the_target(call, tmp_path):
    for prefix in ({}, {"prefix": str(tmp_path / "empty")}):
        _, shown = call("--dry-run", "--target", "1M:2M", **prefix)
        shown = shown.replace(" ".join(program_words()), "python RECIPE.py").replace(str(tmp_path), "FOLDER")
        check_message(without_numbers("".join(shown.partition("9 rungs")[1:])))
    assert " predict 1M:2M " in shown


@pytest.mark.parametrize(
    "words",
    [
        ("12:",),
        ("--flops", "1e12", "--money", "3"),
        ("--money", "3", "--on", "gpu:H100:1"),
        ("--money", "3", "--price", "1", "--on", "cpu:4"),
        ("--money", "3", "--price", "1", "--on", "gpu:Abacus:1"),
    ],
    ids=" ".join,
)
def test_a_target_or_a_budget_that_says_nothing_is_refused(call, words):
    code, shown = call("predict", *words)
    assert code != 0
    check_message(shown)


@pytest.mark.parametrize("text", ["none", "0", "inf"])
def test_an_option_that_takes_a_number_above_0_refuses_others(text):
    with expect_error(argparse.ArgumentTypeError):
        above_zero(text)


def test_predict_before_the_ladder_has_run_names_the_command(call, tmp_path, monkeypatch):
    monkeypatch.setattr(session, "program_words", lambda: ["python", "ladder.py"])
    code, shown = call("predict", "1M:2M", prefix=str(tmp_path / "empty"))
    assert code == 1
    check_message(shown)
