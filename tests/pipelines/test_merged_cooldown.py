"""The merges of pipelines/merged_cooldown.py have the same steps, and so the same tokens, as the cooldown."""

import argparse
from pathlib import Path

import pytest

from marin_dag.graph.graph import Graph
from marin_dag.plan.config_checks import check_configs
from pipelines import merged_cooldown, recipe
from pipelines.scales import LAPTOP
from steps.merge_checkpoints import merge_checkpoints


def test_merges_are_of_the_last_milestones_at_a_constant_rate_and_end_where_the_cooldown_does():
    graph = Graph(merged_cooldown.build(argparse.Namespace()))
    check_configs(graph.steps)
    starling, stable = graph.step("starling").config, graph.step("stable").config
    assert (stable.mixture, stable.until_step) == (starling.mixture, starling.until_step)
    assert stable.begin_step == starling.begin_step == LAPTOP.boundaries.phoenix
    assert len({stable.learning_rate(step) for step in range(stable.begin_step, stable.until_step)}) == 1
    merges = {step.name: step.config for step in graph.steps if step.kind is merge_checkpoints}
    assert {name: len(config.checkpoints) for name, config in merges.items()} == {
        "merge/last_25": 5,
        "merge/last_50": 10,
        "merge/last_100": 20,
    }
    for config in merges.values():
        milestones = [each.milestone for each in config.checkpoints]
        assert milestones[-1] == starling.until_step and min(milestones) > stable.begin_step
        assert {each.name for each in config.checkpoints} == {"stable"}


def test_a_fork_of_a_merge_is_evaluated_like_the_merge(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["fork", "merge/last_25", "--as", "m3", "--set", "coefficients=0.3,0.2,0.2,0.2,0.1"]
    options = {"name": "merged_cooldown", "argv": [*words, "--prefix", str(tmp_path)]}
    assert recipe.main(merged_cooldown.build, **options) == 0
    assert "with it    ema_eval/m3\n" in capsys.readouterr().out
