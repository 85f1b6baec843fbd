"""Table: what a plan looks like, on a terminal and in a pipe."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.plan.plan import Plan, make_plan
from marin_dag.plan.reasons import Failed, render
from marin_dag.plan.table import MAX_ROOTS, render_plan
from marin_dag.run.driver import Run
from marin_dag.run.live import LineDisplay
from marin_dag.run.local.backend import LocalBackend
from marin_dag.store.prefix import open_store
from tests.marin_dag import toy
from tests.marin_dag.toy_steps import WriteConfig, write
from tests.marin_dag.workbench import Workbench


@pytest.fixture
def plan(tmp_path: Path, bench: Workbench) -> Plan:
    bench()
    bench.edit("rate: float = 0.5", "rate: float = 0.75")
    long_text = ("--set", f"text/web.text={'word ' * 40}")
    return bench.plan(*long_text)


def test_steps_that_share_an_output_are_counted_beside_those_that_would_run(tmp_path: Path) -> None:
    steps = [write(name, WriteConfig(text=text)) for name, text in (("a", "one"), ("b", "one"), ("c", "two"))]
    store = open_store(str(tmp_path))
    last = render_plan(make_plan(Graph(steps), store)).splitlines()[-1]
    assert last == "3 steps: 3 missing. 2 would run; 1 would share the output of another."
    Run(steps, store, LocalBackend(), LineDisplay(Console(quiet=True), Console(quiet=True)), command="").run()
    assert render_plan(make_plan(Graph(steps), store)).splitlines()[-1] == "3 steps: 3 done. Nothing would run."


def test_each_row_stands_below_those_that_its_steps_need(tmp_path: Path) -> None:
    first, late = (toy.text(name, toy.TextConfig(text=name)) for name in ("first", "late"))

    def counted(name: str, *of: Step[Any], least: int = 1) -> Step[Any]:
        return toy.count(name, toy.CountConfig(texts={step.name: step.as_input() for step in of}, least=least))

    counts = [counted("count/0", first), counted("count/1", first, least=2)]
    counts.append(counted("count/2", counted("total", counts[0]), late))  # needs what needs another of its row
    graph = Graph([*counts[:2], counted("all", counts[1]), late, counts[2]])
    table = render_plan(make_plan(graph, open_store(str(tmp_path)))).split("\n\n")[0]
    assert [line.split("  ")[0] for line in table.splitlines()] == [
        "first",
        "total",
        "late",
        "count/* (3 steps)",
        "all",
    ]


def test_on_a_terminal_long_reasons_are_wrapped_and_nothing_is_cut(plan: Plan) -> None:
    table = render_plan(plan, width=80)
    assert max(len(line) for line in table.split("\n\n")[0].splitlines()) <= 80
    assert "…" not in table
    assert table.split("Because of:")[0].count("word") >= 40


def test_what_was_changed_is_said_once_with_all_that_follows(plan: Plan) -> None:
    table = render_plan(plan)
    block = table.split("Because of:\n")[1].split("\n\n")[0].splitlines()
    assert len(block) == 2
    assert block[0].startswith("  text/web: text: 'web' -> 'word word") and block[0].endswith("(5 steps)")
    assert block[1] == "  first: rate: 0.5 -> 0.75  (3 steps)"


def test_a_mass_of_differences_is_counted_in_the_plan_and_listed_by_why(bench: Workbench) -> None:
    bench()
    bench.edit('("web", "code")', "map(str, range(8))")
    bench.edit("until_step=10, data", "until_step=11, rate=0.75, data")
    code, table = bench("--dry-run")
    assert code == 2 and len(table.splitlines()) < 25
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in table.split("\n\n")[0].splitlines()}
    assert rows["count"] == "stale 10 differences: 0, 1, 2 and 5 more new; code, web gone; texts"
    assert rows["first"] == "stale 11 differences: rate; in count 11 k tok"
    assert rows["second"].startswith("stale 12 differences: in count, first")
    because, counted = table.split("\n\n")[1:3]
    assert because.splitlines() == [
        "Because of:",
        "  count: 10 differences: texts  (4 steps)",
        "  first: rate: 0.5 -> 0.75  (3 steps)",
        "  first: until_step: 10 -> 11  (2 steps)",
    ]
    assert "`why STEP` lists them" in counted and "another recipe" not in counted
    assert bench("why", "count")[1].count("(absent)") == 10
    bench.edit("map(str, range(8))", '("web", "code", "prose")')
    assert "counted" not in bench("--dry-run")[1]


def test_many_causes_are_counted_after_the_first(bench: Workbench) -> None:
    bench.edit('("web", "code")', "map(str, range(20))")
    bench()
    bench.edit("TextConfig(text=name)", 'TextConfig(text=f"{name}!")')
    block = bench("--dry-run")[1].split("Because of:\n")[1].split("\n\n")[0].splitlines()
    assert len(block) == MAX_ROOTS + 1
    assert block[-1] == f"  and {20 - MAX_ROOTS} more; `plan --json` has them all"


def test_another_kind_of_step_is_one_difference_and_the_last_to_be_compared_with(bench: Workbench) -> None:
    bench()
    bench.edit('text(f"text/{name}", TextConfig(text=name))', 'text(f"text/{name}", TextConfig(text=name + name))')
    bench.edit("return [third]", 'return [third, count("text/web", CountConfig(texts={}))]')
    bench.edit('("web", "code")', '("code",)')
    plan = bench.plan()
    kinds = "kind: workbench_recipe.text -> workbench_recipe.count"
    assert [render(reason) for reason in plan["text/web"].reasons] == [kinds]
    assert bench("diff", "text/web")[1].splitlines()[2] == f"  {kinds}"
    assert bench("--only", "text/web")[0] == 0
    bench.edit('count("text/web", CountConfig(texts={}))', 'count("text/web", CountConfig(texts={}, least=0))')
    assert [render(reason) for reason in bench.plan()["text/web"].reasons] == ["least: 1 -> 0"]


def test_a_plan_without_changes_names_no_cause(tmp_path: Path) -> None:
    fresh = make_plan(Graph(toy.build(toy.Namespace())), open_store(str(tmp_path)))
    assert "Because of:" not in render_plan(fresh)


@pytest.mark.parametrize(("attempts", "tries"), [(1, ""), (3, "3 attempts; ")])
def test_a_failure_is_told_by_what_failed_and_not_by_its_cure(attempts: int, tries: str) -> None:
    error = "\n3 of 10 files could not be fetched:\n  a.warc: 404\nFetch them anew, or raise max_missing_share."
    assert render(Failed(attempts, "20260101", error, "x.log")) == f"{tries}3 of 10 files could not be fetched:"


def test_a_step_shares_no_row_with_those_of_the_folder_that_is_called_like_it(tmp_path: Path) -> None:
    steps = [write(name, WriteConfig(text=name)) for name in ("web", "web/a", "web/b")]
    plan = make_plan(Graph(steps), open_store(str(tmp_path)))
    assert [line.split()[0] for line in render_plan(plan).splitlines()[:3]] == ["web", "web/a", "web/b"]
