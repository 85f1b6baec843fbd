"""Estimates: by what steps of the same kind took on the same resources for what they did, and by nothing else."""

import itertools

import pytest

from marin_dag.plan.plan import Plan
from tests.marin_dag.workbench import Workbench


def seconds(plan: Plan) -> list[float]:
    return [plan[name].cost.seconds for name in ("second", "third")]


def run_with_a_minute_each(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    minutes = itertools.count()
    monkeypatch.setattr("marin_dag.run.attempt.now", lambda: f"2026-01-01T00:{next(minutes):02}:00+00:00")
    assert bench()[0] == 0


def test_time_is_estimated_only_from_attempts_on_the_same_resources(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_with_a_minute_each(bench, monkeypatch)
    changed = ("--set", "second.rate=2.0")
    assert seconds(bench.plan(*changed)) == [60, 60]
    # As for another scale of one recipe: what was there took a laptop's time, and what is planned runs elsewhere.
    bench.edit(
        'second = first.then("second", until_step=20, rate=0.25)',
        'second = first.then("second", until_step=20, rate=0.25).on(Tpu("v4-8"))',
    )
    bench.edit(
        'third = second.then("third", until_step=30)', 'third = second.then("third", until_step=30).on(Tpu("v4-8"))'
    )
    bench.edit(
        "from marin_dag.graph.step import",
        "from marin_dag.graph.resources import Tpu\nfrom marin_dag.graph.step import",
    )
    assert seconds(bench.plan(*changed)) == [0, 0]


def test_what_an_attempt_did_is_counted_from_the_config_that_it_had(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.edit("Cost(tokens=1000.0 * (", "Cost(tokens=1000.0 * config.rate * (")
    run_with_a_minute_each(bench, monkeypatch)
    # A minute at 0.25 each; `third` goes on unchanged, so its record tells of the start of `second`.
    assert seconds(bench.plan("--set", "second.rate=1.0")) == [240, 240]
    assert seconds(bench.plan("--set", "second.rate=2.0")) == [480, 480]


def test_a_step_without_a_size_says_nothing_of_one_that_has_one(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.edit(
        "@step()\ndef text",
        "@step(cost=lambda config, _: Cost(bytes_read=1e12 if config.text == 'lots' else 0))\ndef text",
    )
    run_with_a_minute_each(bench, monkeypatch)
    assert bench.plan("--set", "text/web.text=webb")["text/web"].cost.seconds == 60
    lots = "--set", "text/web.text=lots"
    assert bench.plan(*lots)["text/web"].cost.seconds == 0
    assert "4 min of work in 4 of the 5 steps, by past attempts" in bench("--dry-run", *lots)[1]
