"""Forced steps: their bytes must be those of the first output, which stays."""

import os
import shutil
import socket
from pathlib import Path

import pytest

from marin_dag.graph.graph import Graph, Selection
from marin_dag.ledger.damage import findings_of
from marin_dag.ledger.marks import MARKS, add_mark
from marin_dag.ledger.progress import Progress
from marin_dag.ledger.records import Records
from marin_dag.plan.explain import explain
from marin_dag.plan.plan import Plan, make_plan
from marin_dag.plan.planned import Verdict
from marin_dag.plan.reasons import Forced, RunsAgain
from marin_dag.run.driver import Run
from marin_dag.run.local.backend import LocalBackend
from marin_dag.run.task import Backend
from marin_dag.store.prefix import open_store
from marin_dag.store.store import Store
from tests.catalogue import check_message
from tests.marin_dag.run.test_driver import Recorder, output, record, run
from tests.marin_dag.toy_steps import (
    AddConfig,
    AskConfig,
    Count,
    CountConfig,
    FailConfig,
    JoinConfig,
    WriteConfig,
    add,
    ask,
    count,
    executions,
    fail,
    join,
    unsteady,
    wobble,
    write,
)


def test_a_forced_run_starts_again_from_its_beginning_and_is_compared(prefix: str, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    step = count("main", CountConfig(stride=2, until_step=12, marks=str(marks)))
    assert run(prefix, [step])[0] == 0
    before = record(prefix, step)
    code, display = run(prefix, [step], force=frozenset({step.key}))
    assert code == 0, display.text
    assert display.events_of("main")[-1] == "done"
    assert set(executions(marks).values()) == {2}
    assert record(prefix, step) == before


def test_a_forced_step_without_an_output_is_made(tmp_path: Path) -> None:
    main = count("main", CountConfig(stride=2, until_step=5))
    code, display = run(str(tmp_path / "runs"), [main], force=frozenset({main.key}))
    assert code == 0, display.text
    assert record(str(tmp_path / "runs"), main).result == {"step": 5, "value": 10}


def test_a_forced_run_publishes_no_new_milestones(tmp_path: Path) -> None:
    store, main = open_store(str(tmp_path / "runs")), count("main", CountConfig(stride=2, until_step=10))
    assert run(store.prefix, [main])[0] == 0
    before, display = Records(store).committed_keys(), Recorder()
    wanted = {main.digest: frozenset({7})}
    again = Run([main], store, LocalBackend(), display, command="", force=frozenset({main.key}), wanted=wanted)
    assert again.run() == 0, display.text
    assert Records(store).committed_keys() == before


def test_a_forced_leg_starts_where_the_leg_before_ended(tmp_path: Path) -> None:
    prefix, marks = str(tmp_path / "runs"), tmp_path / "marks"
    first = count("first", CountConfig(stride=2, until_step=5, marks=str(marks)))
    second = first.then("second", until_step=10)
    assert run(prefix, [first, second])[0] == 0
    code, display = run(prefix, [first, second], force=frozenset({second.key}))
    assert code == 0, display.text
    assert executions(marks) == {f"count{number}": 1 + (number >= 5) for number in range(10)}


def test_a_forced_run_with_other_bytes_fails_and_the_first_output_stays(tmp_path: Path, backend: Backend) -> None:
    prefix, marks = str(tmp_path / "runs"), tmp_path / "marks"
    step = wobble("wobbly", CountConfig(stride=2, until_step=10, marks=str(marks)))
    assert run(prefix, [step])[0] == 0
    code, _ = run(prefix, [step], backend, force=frozenset({step.key}))
    assert code == 1
    (failure,) = Records(open_store(prefix)).failures(step.key)
    check_message(failure.error.partition(" The first output stays")[0])
    assert output(prefix, step, "value.txt") == "4 1"
    assert run(prefix, [step])[0] == 0


def test_a_forced_step_with_other_bytes_names_the_file(prefix: str, tmp_path: Path) -> None:
    step = unsteady("unsteady", FailConfig(message="", marks=str(tmp_path / "marks")))
    assert run(prefix, [step])[0] == 0
    code, _ = run(prefix, [step], force=frozenset({step.key}))
    assert code == 1
    (failure,) = Records(open_store(prefix)).failures(step.key)
    check_message(failure.error.partition(" The first output stays")[0])
    assert output(prefix, step, "a.txt") == "1"


def test_a_steps_execution_is_recorded_and_not_compared(prefix: str) -> None:
    step, other = (add("sum", AddConfig(order=order)) for order in ("forwards", "backwards"))
    assert step.key == other.key
    assert run(prefix, [step])[0] == 0
    before = record(prefix, step)
    assert before.provenance.computed_with == {"order": "forwards"}
    assert run(prefix, [other], force=frozenset({step.key}))[0] == 0
    assert record(prefix, step) == before


def test_a_step_knows_how_its_input_was_computed_and_its_warnings_reach_the_terminal_and_the_log(
    tmp_path: Path, backend: Backend
) -> None:
    prefix = str(tmp_path / "runs")
    asked = add("sum", AddConfig(order="backwards"))
    step = ask("asks", AskConfig(sum=asked))
    code, display = run(prefix, [asked, step], backend)
    warning = "added {'order': 'backwards'}, notice None"
    assert code == 0, display.text
    assert f"asks: {warning}" in display.lines
    assert f"WARNING step.asks: {warning}\n" in Path(prefix, f"{record(prefix, step).output_path}.log").read_text()


def test_a_preempted_forced_attempt_starts_again_from_the_beginning(tmp_path: Path) -> None:
    prefix, marks = str(tmp_path / "runs"), tmp_path / "marks"
    step = fail("step", FailConfig(message="at 3 of 9", kind="leaves", num_failures=1, marks=str(marks)))
    assert run(prefix, [step])[0] == 0
    shutil.rmtree(marks)
    code, display = run(prefix, [step], force=frozenset({step.key}))
    assert code == 0 and executions(marks) == {"step": 2}
    (retrying,) = [line for line in display.lines if line.startswith("step retrying")]
    check_message(retrying.partition("; log: ")[0])


def test_damaged_files_of_the_first_output_are_replaced(prefix: str, tmp_path: Path) -> None:
    step = count("main", CountConfig(stride=2, until_step=6, marks=str(tmp_path / "marks")))
    assert run(prefix, [step])[0] == 0
    store, records = open_store(prefix), Records(open_store(prefix))
    milestones = records.milestones(step.digest)
    assert sorted(milestones) == [5, 6]
    paths = [f"{each.output_path}/{each.manifest[0].path}" for each in milestones.values()]
    whole = [store.read(path) for path in paths]
    note = f"{milestones[6].output_path}/notes of a person.txt"
    store.write(note, b"kept")

    def found() -> set[str]:
        return {item.path for each in milestones.values() for item in findings_of(store, each, milestones.values())}

    damages = [lambda path: store.write(path, b"?"), lambda path: store.write(path, b""), store.delete]
    for damage in damages:
        for path in paths:
            damage(path)
        assert found() == {"notes of a person.txt", "value.txt"}
        code, display = run(prefix, [step], force=frozenset({step.key}))
        assert code == 0
        check_message(display.lines[-1])
        assert [store.read(path) for path in paths] == whole
        assert found() == {"notes of a person.txt"} and store.read(note) == b"kept"
    code, display = run(prefix, [step], force=frozenset({step.key}))
    assert code == 0
    check_message(display.lines[-1])


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_step_with_damaged_inputs_fails_with_the_commands_that_make_them_again(
    prefix: str, tmp_path: Path, damage: str
) -> None:
    marks = tmp_path / "marks"
    first = write("first", WriteConfig(text="text", marks=str(marks)))
    other = write("other", WriteConfig(text="other", marks=str(marks)))
    second = join("second", JoinConfig(texts=(first, other, first), marks=str(marks)))
    assert run(prefix, [first, other])[0] == 0
    store = open_store(prefix)
    paths = {}
    for step in (first, other):
        made = record(prefix, step)
        paths[step.name] = path = f"{made.output_path}/{made.manifest[0].path}"
        if damage == "cut":
            store.write(path, b"t")
        else:
            store.delete(path)
    code, display = run(prefix, [second])
    assert code == 1 and "second" not in executions(marks)
    (failure,) = Records(store).failures(second.key)
    assert failure.error_type == "DamagedInputError" and all(
        store.url(path) in failure.error for path in paths.values()
    )
    commands = ("--force first --until first", "--force other --until other", "python pipelines/toy.py")
    assert all(line.endswith(command) for line, command in zip(display.lines[-3:], commands, strict=True))
    assert run(prefix, [first, other], force=frozenset({first.key, other.key}))[0] == 0
    assert run(prefix, [second])[0] == 0


def test_damaged_inputs_are_made_again_in_the_order_of_the_graph(prefix: str) -> None:
    raw = write("raw", WriteConfig(text="text"))
    made = join("made", JoinConfig(texts=(raw.as_input(),)))
    last = join("last", JoinConfig(texts=(made.as_input(), raw.as_input())))
    assert run(prefix, [raw, made])[0] == 0
    for damaged in (record(prefix, raw), record(prefix, made)):
        open_store(prefix).delete(f"{damaged.output_path}/{damaged.manifest[0].path}")
    lines = run(prefix, [last])[1].lines
    assert [line.split()[-1] for line in lines if line.startswith("first:")] == ["raw", "made"]


def test_a_run_with_a_state_of_its_own_does_not_need_its_start(prefix: str, tmp_path: Path) -> None:
    marks = str(tmp_path / "marks")
    first = count("first", CountConfig(stride=1, until_step=5))
    config = CountConfig(stride=2, until_step=8, start=first, marks=marks)
    code, display = run(prefix, [first, count("second", config)])
    assert code == 0, display.text
    store, made = open_store(prefix), record(prefix, first)
    store.delete(f"{made.output_path}/{made.manifest[0].path}")
    # It resumes from what it published.
    code, display = run(prefix, [count("second", config.model_copy(update={"until_step": 11}))])
    assert code == 0, display.text
    assert executions(tmp_path / "marks") == {f"count{number}": 1 for number in range(5, 11)}
    # Another run has nothing yet, or only a state past its end, and needs the damaged start.
    other = count("other", config.model_copy(update={"stride": 3}))
    for saved in (None, 9, 7):
        if saved is not None:
            state = Count(step=saved, value=3 * (saved - 5)).model_dump_json()
            store.write(f"work/{other.digest}/saved-{saved:06d}.json", state.encode())
        code, display = run(prefix, [other])
        assert (code == 0) == (saved == 7)
    assert {failure.error_type for failure in Records(store).failures(other.key)} == {"DamagedInputError"}


def test_a_later_leg_without_a_state_needs_the_end_of_the_leg_before(prefix: str) -> None:
    first = count("first", CountConfig(stride=1, until_step=5))
    second = count("second", CountConfig(stride=1, until_step=8, start=first))
    assert second.digest == first.digest
    assert run(prefix, [first])[0] == 0
    store, made = open_store(prefix), record(prefix, first)
    store.delete(f"{made.output_path}/{made.manifest[0].path}")
    code, display = run(prefix, [second])
    assert code == 1
    assert display.lines[-2].endswith("--force first --until first")
    # It resumes from a state past that end without it.
    store.write(f"work/{second.digest}/saved-000006.json", Count(step=6, value=6).model_dump_json().encode())
    code, display = run(prefix, [second])
    assert code == 0, display.text


def test_the_forced_step_runs_among_steps_that_share_an_output(tmp_path: Path) -> None:
    store, steps = open_store(str(tmp_path)), [write(name, WriteConfig(text="a")) for name in ("first", "same", "last")]
    assert run(store.prefix, steps)[0] == 0
    for forced in (("same",), ("first", "last"), ("first", "same", "last")):
        plan = make_plan(Graph(steps), store, Selection(force=forced))
        assert [planned.name for planned in plan.will_run] == [forced[0]]
        assert plan[forced[0]].reasons == (Forced(),) and plan[forced[0]].verdict is Verdict.DONE


class PlanningRecorder(Recorder):
    """Display that makes a plan at each progress of a step."""

    def __init__(self, graph: Graph, store: Store) -> None:
        super().__init__()
        self._graph, self._store = graph, store
        self.plans: list[Plan] = []

    def progress(self, name: str, progress: Progress) -> None:
        self.plans.append(make_plan(self._graph, self._store))


def test_a_plan_says_that_a_done_step_runs_again_as_long_as_it_does(tmp_path: Path) -> None:
    store, main = open_store(str(tmp_path / "runs")), count("main", CountConfig(stride=2, until_step=5))
    graph = Graph([main, write("other", WriteConfig(text="other"))])
    assert run(store.prefix, graph.steps)[0] == 0
    display = PlanningRecorder(graph, store)
    assert Run([main], store, LocalBackend(), display, command="", force=frozenset({main.key})).run() == 0
    assert display.plans
    for plan in display.plans:
        assert {planned.verdict for planned in plan.steps} == {Verdict.DONE} and plan["other"].reasons == ()
        (reason,) = plan["main"].reasons
        assert reason == RunsAgain(socket.gethostname(), os.getpid(), reason.since)
    check_message(explain(display.plans[0], "main", store).splitlines()[1].replace(socket.gethostname(), "<host>"))
    assert make_plan(graph, store)["main"].reasons == () and store.list(MARKS) == []


def test_the_mark_of_a_killed_forced_attempt_says_nothing(tmp_path: Path) -> None:
    store, step = open_store(str(tmp_path / "runs")), write("step", WriteConfig(text="a"))
    assert run(store.prefix, [step])[0] == 0
    add_mark(store, step.key, "forced")
    assert make_plan(Graph([step]), store)["step"].reasons == ()
