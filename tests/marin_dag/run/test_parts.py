"""Parts: a step may start on the first part of an output, without a change of its identity."""

from pathlib import Path

from rich.console import Console

from marin_dag.errors import UserError
from marin_dag.graph.assignments import build_graph
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records, record_path
from marin_dag.plan.explain import find_record
from marin_dag.plan.plan import make_plan
from marin_dag.plan.planned import Verdict
from marin_dag.run.driver import Run
from marin_dag.run.live import LineDisplay
from marin_dag.run.local.backend import LocalBackend
from marin_dag.store.prefix import open_store
from tests.catalogue import expect_error
from tests.marin_dag.forking_backend import ForkingBackend
from tests.marin_dag.growing_steps import FollowConfig, GrowConfig, follow, grow
from tests.marin_dag.toy_steps import WriteConfig, executions, write

TEXT = "piece 0\npiece 1\npiece 2\n"


def run(folder: Path, *steps: Step, in_processes: bool = False) -> int:
    store = open_store(str(folder / "runs"))
    backend = ForkingBackend(folder / "workers") if in_processes else LocalBackend()
    display = LineDisplay(Console(quiet=True), Console(quiet=True))
    return Run(Graph(steps).steps, store, backend, display, command="", back_off_seconds=0.01).run()


def result_of(folder: Path, step: Step) -> dict:
    return Records(open_store(str(folder / "runs"))).get(step.key).result


def test_a_step_starts_on_the_first_part_while_the_rest_is_being_made(tmp_path):
    # Each waits for the other: if the reader waited for the whole, neither would end.
    signal_file, marks = str(tmp_path / "signal"), str(tmp_path / "marks")
    pieces = grow("pieces", GrowConfig(num_pieces=3, wait_for=signal_file))
    reader = follow("reader", FollowConfig(pieces=pieces.growing(), tell=signal_file, marks=marks))
    assert run(tmp_path, reader, in_processes=True) == 0
    assert result_of(tmp_path, reader) == {"text": TEXT}
    assert executions(tmp_path / "marks") == {"growing": 1}


def test_a_step_that_starts_early_has_the_identity_of_one_that_waits(tmp_path):
    marks = str(tmp_path / "marks")
    pieces = grow("pieces", GrowConfig(num_pieces=3))
    waiting = follow("waiting", FollowConfig(pieces=pieces, marks=marks))
    early = follow("early", FollowConfig(pieces=pieces.growing(), marks=marks))
    assert early.key == waiting.key and early.identity == waiting.identity
    assert run(tmp_path, early) == 0
    assert result_of(tmp_path, waiting) == {"text": TEXT}
    assert executions(tmp_path / "marks") == {"whole": 1}, "an output that is whole at the start is used whole"


def test_an_input_stays_growing_after_an_override_above_it():
    def build() -> Graph:
        pieces = grow("pieces", GrowConfig(num_pieces=3))
        return Graph([follow("reader", FollowConfig(pieces=pieces.growing()))])

    reader, overridden = (build_graph(build, texts).step("reader") for texts in ([], ["pieces.num_pieces=4"]))
    assert overridden.config.pieces.is_growing and overridden.key != reader.key


def test_a_killed_maker_resumes_after_its_published_parts_with_the_same_files(tmp_path):
    marks = str(tmp_path / "marks")
    dying = grow("pieces", GrowConfig(num_pieces=3, dies_at=2, marks=marks))
    assert run(tmp_path / "cut", dying) == 1
    store = open_store(str(tmp_path / "cut" / "runs"))
    assert sorted(Records(store).committed_keys()) == [f"{dying.digest}@1", f"{dying.digest}@2"]
    plan = make_plan(Graph([dying]), store)
    assert plan["pieces"].verdict is Verdict.FAILED
    for entry in store.list("failures"):  # as if the driver had been killed
        store.delete(entry.path)
    plan = make_plan(Graph([dying]), store)
    assert plan["pieces"].verdict is Verdict.BEGUN, "its own parts are no earlier version of it"
    steady = grow("pieces", GrowConfig(num_pieces=3, marks=marks))
    assert run(tmp_path / "cut", steady) == 0
    assert run(tmp_path / "whole", grow("pieces", GrowConfig(num_pieces=3))) == 0
    manifests = [
        Records(open_store(str(tmp_path / name / "runs"))).get(steady.key).manifest for name in ("cut", "whole")
    ]
    assert manifests[0] == manifests[1]
    assert {f"part{number}": 1 for number in (1, 2, 3)}.items() <= executions(tmp_path / "marks").items()


def test_only_a_kind_with_parts_can_be_growing():
    with expect_error(UserError):
        write("text", WriteConfig(text="a")).growing()


def test_an_output_and_each_part_is_found_by_its_digest(tmp_path):
    pieces = grow("pieces", GrowConfig(num_pieces=11))
    assert run(tmp_path, pieces) == 0
    records = Records(open_store(str(tmp_path / "runs")))

    def found(text: str) -> str | None:
        record = find_record(records, text)
        return None if record is None else record.key

    for digest in (pieces.digest, pieces.digest[:8]):
        assert found(digest) == pieces.key
        assert found(f"{digest}@1") == f"{pieces.digest}@1"
        assert found(f"{digest}@12") is None
    records.store.delete(record_path(f"{pieces.digest}@1"))
    assert found(f"{pieces.digest}@1") is None, "@1 is not @10"
    records.store.delete(record_path(pieces.key))
    with expect_error(UserError):
        found(pieces.digest)
