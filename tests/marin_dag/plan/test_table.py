"""Table: a plan as text, on a terminal and in a pipe."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.identity.diff import DeclarationChanged, FieldChanged
from marin_dag.plan.plan import Plan, make_plan
from marin_dag.plan.reasons import MAX_CHANGES, Changed, Failed, render_all
from marin_dag.plan.table import MAX_ROOTS, render_plan
from marin_dag.run.driver import Run
from marin_dag.run.live import LineDisplay
from marin_dag.run.local.backend import LocalBackend
from marin_dag.store.prefix import open_store
from tests.catalogue import check_message
from tests.marin_dag import toy
from tests.marin_dag.toy_steps import WriteConfig, write
from tests.marin_dag.workbench import Workbench


@pytest.fixture
def plan(tmp_path: Path, bench: Workbench) -> Plan:
    bench()
    bench.edit("rate: float = 0.5", "rate: float = 0.75")
    long_text = ("--set", f"text/web.text={'word ' * 40}")
    return bench.plan(*long_text)


def test_steps_that_share_an_output_are_counted(tmp_path: Path) -> None:
    steps = [write(name, WriteConfig(text=text)) for name, text in (("a", "one"), ("b", "one"), ("c", "two"))]
    store = open_store(str(tmp_path))
    check_message(render_plan(make_plan(Graph(steps), store)))
    Run(steps, store, LocalBackend(), LineDisplay(Console(quiet=True), Console(quiet=True)), command="").run()
    check_message(render_plan(make_plan(Graph(steps), store)))


def test_a_shared_row_stands_below_everything_that_its_steps_need(tmp_path: Path) -> None:
    first, late = (toy.text(name, toy.TextConfig(text=name)) for name in ("first", "late"))

    def counted(name: str, *of: Step[Any], least: int = 1) -> Step[Any]:
        return toy.count(name, toy.CountConfig(texts={step.name: step.as_input() for step in of}, least=least))

    counts = [counted("count/0", first), counted("count/1", first, least=2)]
    counts.append(counted("count/2", counted("total", counts[0]), late))  # needs what needs another of its row
    graph = Graph([*counts[:2], counted("all", counts[1]), late, counts[2]])
    table = render_plan(make_plan(graph, open_store(str(tmp_path)))).split("\n\n")[0]
    assert [line.split("  ")[0] for line in table.splitlines()] == [
        "first",
        "all",
        "late",
        "total",
        "count/* (3 steps)",
    ]


def test_a_terminal_wraps_long_reasons_and_cuts_nothing(plan: Plan) -> None:
    table = render_plan(plan, width=80)
    assert max(len(line) for line in table.split("\n\n")[0].splitlines()) <= 80
    assert "…" not in table
    assert table.split("\n\n")[0].count("word") >= 40


def test_a_root_cause_is_listed_once_with_the_number_of_stale_steps(plan: Plan) -> None:
    check_message("\n\n".join(render_plan(plan).split("\n\n")[:2]))


def test_many_changes_are_counted_in_the_plan_and_listed_by_why(bench: Workbench) -> None:
    bench()
    bench.edit('("web", "code")', "map(str, range(8))")
    planned = bench.plan()["count"]
    assert len(planned.reasons) == 10
    lines = render_all(planned.reasons)
    assert len(lines) == MAX_CHANGES + 1
    check_message("\n".join(lines))
    assert bench("why", "count")[1].count("(absent)") == 10


def test_many_root_causes_are_counted_after_the_first(bench: Workbench) -> None:
    bench.edit('("web", "code")', "map(str, range(20))")
    bench()
    bench.edit("TextConfig(text=name)", 'TextConfig(text=f"{name}!")')
    plan = bench.plan()
    assert len(plan.roots) == 20
    block = render_plan(plan).split("\n\n")[1].splitlines()
    assert len(block) == 1 + MAX_ROOTS + 1
    check_message(block[-1])


def test_another_kind_of_step_is_one_difference_and_compared_last(bench: Workbench) -> None:
    bench()
    bench.edit('text(f"text/{name}", TextConfig(text=name))', 'text(f"text/{name}", TextConfig(text=name + name))')
    bench.edit("return [third]", 'return [third, count("text/web", CountConfig(texts={}))]')
    bench.edit('("web", "code")', '("code",)')
    (reason,) = bench.plan()["text/web"].reasons
    assert isinstance(reason, Changed)
    kinds = DeclarationChanged("kind", "workbench_recipe.text", "workbench_recipe.count")
    assert reason.difference == kinds
    assert bench("diff", "text/web")[1].splitlines()[2] == f"  {reason}"
    assert bench("--only", "text/web")[0] == 0
    bench.edit('count("text/web", CountConfig(texts={}))', 'count("text/web", CountConfig(texts={}, least=0))')
    (reason,) = bench.plan()["text/web"].reasons
    assert isinstance(reason, Changed) and reason.difference == FieldChanged("least", "1", "0")


def test_a_plan_without_changes_names_no_cause(tmp_path: Path) -> None:
    fresh = make_plan(Graph(toy.build(toy.Namespace())), open_store(str(tmp_path)))
    assert fresh.roots == ()
    check_message(render_plan(fresh))


@pytest.mark.parametrize(("attempts", "tries"), [(1, ""), (3, "3 attempts; ")])
def test_a_failure_is_named_by_the_first_line_of_its_error(attempts: int, tries: str) -> None:
    error = "\n3 of 10 files could not be fetched:\n  a.warc: 404\nFetch them again, or raise max_missing_share."
    assert str(Failed(attempts, "20260101", error, "x.log")) == f"{tries}3 of 10 files could not be fetched:"


def test_a_step_shares_no_row_with_the_folder_of_its_name(tmp_path: Path) -> None:
    steps = [write(name, WriteConfig(text=name)) for name in ("web", "web/a", "web/b")]
    plan = make_plan(Graph(steps), open_store(str(tmp_path)))
    assert [line.split()[0] for line in render_plan(plan).splitlines()[:3]] == ["web", "web/a", "web/b"]
