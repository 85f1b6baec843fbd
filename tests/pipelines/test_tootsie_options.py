"""Options of the flagship: length and machines of a plan, what the plan says of them, and which runs share forks."""

import argparse
import re
from types import SimpleNamespace
from typing import Any

import pytest

from marin_dag.graph.graph import Graph
from marin_dag.graph.resources import Gpu
from pipelines import machine_choice, tootsie
from tests.catalogue import check_message
from tests.pipelines.test_identity import digests_of


@pytest.fixture(autouse=True)
def _no_kept_choices(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_choice, "CHOICES", str(tmp_path / "choices"))


def parsed(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    tootsie.add_arguments(parser)
    return argparse.Namespace(
        build=tootsie.build, compile=False, compile_all=False, json=False, **vars(parser.parse_args(argv))
    )


def plan_text(capsys, *argv):
    session: Any = SimpleNamespace(parsed=parsed(*argv))
    plan: Any = None
    tootsie.plan_notes(session, plan)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("place", "length"),
    [
        (("--scale", "125m", "--on", "H100:1"), ("--hours", "1")),
        (("--scale", "125m", "--on", "H100:1"), ("--tokens", "1.2341B")),
        (("--scale", "30m", "--on", "v6e-8"), ()),
    ],
    ids=["hours", "tokens", "neither"],
)
def test_a_plan_says_length_time_and_machines(place, length, capsys):
    shown = plan_text(capsys, *place, *length)
    check_message(shown)
    tokens = re.search(r"--tokens (\S+) repeats", shown)
    assert (tokens is None) == (not length)
    if tokens is not None:
        repeated = parsed(*place, "--tokens", tokens[1])
        assert tootsie.chosen_scale(repeated) == tootsie.chosen_scale(parsed(*place, *length))


@pytest.mark.parametrize(("argv", "num_lines"), [(("--scale", "3b", "--tokens", "1T"), 1), (("--scale", "8b"), 0)])
def test_a_plan_names_data_that_the_run_reads_too_often(argv, num_lines, tmp_path, capsys):
    assert tootsie.main([*argv, "--dry-run", "--prefix", str(tmp_path / "runs")]) == 2
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("data ")]
    assert len(lines) == num_lines
    check_message("\n".join(lines))


@pytest.mark.parametrize("argv", [("--hours", "1"), ("--hours", "1", "--tokens", "3B"), ("--tokens", "lots")])
def test_a_length_that_cannot_be_meant_is_refused(argv, tmp_path, capsys):
    assert tootsie.main([*argv, "--dry-run", "--prefix", str(tmp_path / "runs")]) == 1
    check_message(capsys.readouterr().err)


def test_machines_are_those_of_every_step_and_no_identity():
    machines = Gpu("H200", 8)
    placed = Graph(tootsie.build(parsed("--scale", "125m", "--on", "H200:8")))
    assert {step.resources for step in placed.steps if step.kind.name in ("train_phase", "ema_eval")} == {machines}
    assert {step.name: step.key for step in placed.steps} == digests_of(parsed("--scale", "125m"))


def test_each_length_has_forks_of_its_own_and_hours_those_of_their_tokens():
    names = [(), ("--scale", "125m"), ("--tokens", "3M")]
    names += [("--scale", "125m", "--tokens", tokens) for tokens in ("1B", "1.2341B", "1.2344B")]
    variants = [tootsie.variant(parsed(*argv)) for argv in names]
    assert variants[0] == "" and len(set(variants)) == len(names)
    by_hours = tootsie.variant(parsed("--scale", "125m", "--hours", "1", "--on", "H100:1"))
    tokens = by_hours.rpartition("-")[2]
    assert by_hours == tootsie.variant(parsed("--scale", "125m", "--tokens", tokens))
