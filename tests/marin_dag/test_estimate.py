"""Estimates: by what steps of the same kind took on the same resources, and by nothing else."""

import itertools

import pytest

from marin_dag.plan import Plan
from tests.marin_dag.workbench import Workbench


def seconds(plan: Plan) -> list[float]:
    return [plan[name].cost.seconds for name in ("second", "third")]


def test_time_is_estimated_only_from_attempts_on_the_same_resources(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes = itertools.count()
    monkeypatch.setattr("marin_dag.attempt.now", lambda: f"2026-01-01T00:{next(minutes):02}:00+00:00")
    assert bench()[0] == 0
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
    bench.edit("from marin_dag.step import", "from marin_dag.resources import Tpu\nfrom marin_dag.step import")
    assert seconds(bench.plan(*changed)) == [0, 0]
