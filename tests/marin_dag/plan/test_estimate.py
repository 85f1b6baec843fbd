"""Estimates: from records of steps of the same kind on the same resources, and from nothing else."""

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


def test_time_is_estimated_only_from_records_on_the_same_resources(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_with_a_minute_each(bench, monkeypatch)
    changed = ("--set", "second.rate=2.0")
    assert seconds(bench.plan(*changed)) == [60, 60]
    # As at another scale of a recipe: the records are from a laptop, and the planned steps run elsewhere.
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


def test_the_work_of_a_record_is_that_of_its_config(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.edit("Cost(tokens=1000.0 * (", "Cost(tokens=1000.0 * config.rate * (")
    run_with_a_minute_each(bench, monkeypatch)
    # `first` took a minute at a rate of 0.5; the records of the stale steps do not count beside it.
    assert seconds(bench.plan("--set", "second.rate=1.0")) == [120, 120]
    assert seconds(bench.plan("--set", "second.rate=2.0")) == [240, 240]


def test_stale_steps_alone_are_estimated_by_their_own_records(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_with_a_minute_each(bench, monkeypatch)
    plan = bench.plan("--set", "text/web.text=webb", "--set", "third.until_step=50")
    estimates = {planned.name: planned.cost.seconds for planned in plan.will_run}
    assert estimates == {"text/web": 60, "count": 60, "first": 60, "second": 60, "third": 180}
    assert all(planned.is_timed for planned in plan.will_run)
