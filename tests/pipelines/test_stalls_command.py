"""`stalls` shows how long each phase waited for data, from the event logs of a run."""

from marin_dag.graph.graph import Graph
from pipelines import tootsie
from pipelines.corpus import laptop_corpus
from pipelines.scales import LAPTOP
from pipelines.stalls_command import alarm_lines
from runtime.tracking.events import EventLog
from tests.catalogue import check_message

FIGURES = {"consumed_tokens": 900, "loss": 3.0, "tokens_per_second": 5.0}
ROW = {"row": 2, "source": "math", "row_loss": 11.67, "median_row_loss": 3.94}


def run(prefix, capsys, *words):
    code = tootsie.main(["stalls", *words, "--prefix", str(prefix)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def log(prefix, digest, attempt, waited, stalls=()):
    with EventLog(f"{prefix}/work/{digest}/events/{attempt}.jsonl") as events:
        events.write("begin", step=0)
        for step, seconds in stalls:
            causes = {"store read": seconds}
            events.write("stall", step=step, cause="store read", waited_for_data_seconds=seconds, by_cause=causes)
        waits = {"waited_for_data_seconds": waited, "waited_by_cause": {"store read": waited}}
        events.write("progress", step=9, **waits, **FIGURES)


def test_attempts_of_each_phase_add_up(tmp_path, capsys):
    prefix = tmp_path / "runs"
    phases = Graph([tootsie.tootsie(LAPTOP, laptop_corpus(LAPTOP))[0]])
    kestrel = phases.step("kestrel").digest
    log(prefix, kestrel, "20260101-000000-a", 2.5, [(3, 1.5)])
    log(prefix, kestrel, "20260102-000000-b", 1.25)
    log(prefix, kestrel, "20260102-000000-b.host1", 99.0, [(1, 99.0)])  # waits with the first host, and counts once
    log(prefix, phases.step("ocelot").digest, "20260103-000000-c", 0.5)
    code, out, _ = run(prefix, capsys)
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:3]] == [["kestrel", "2"], ["ocelot", "1"]]
    assert "3.75" in out and "0.50" in out and "99" not in out
    assert ["kestrel", "store", "read", "1", "1.5", "1.5", "4"] in [line.split() for line in out.splitlines()]


def test_each_alarm_is_a_line_with_its_row_and_whether_the_loss_came_back():
    alarm = {"event": "alarm", "figure": 9.5, "limit": 4.25}
    first = [
        alarm | {"step": 551, "monitor": "grad_norm", **ROW},
        alarm | {"step": 551, "monitor": "loss_spike", **ROW},
        {"event": "spike", "step": 600, "monitor": "grad_norm"},
    ]
    second = [*first[:1], {"event": "recovered", "step": 551}, alarm | {"step": 900, "monitor": "creep"}]
    second += [alarm | {"step": step, "monitor": "loss_spike"} for step in (599, 632, 633)]
    second.append({"event": "recovered", "step": 600})
    check_message("\n".join(alarm_lines("kestrel", [first, second])))


def test_phases_of_one_digest_are_shown_once_with_a_note(tmp_path, capsys):
    prefix = tmp_path / "runs"
    phases = Graph([tootsie.tootsie(LAPTOP, laptop_corpus(LAPTOP))[0]])
    log(prefix, phases.step("spoonbill_norms").digest, "20260101-000000-a", 2.5)
    code, out, _ = run(prefix, capsys)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:2]] == ["spoonbill_hypnotic"]
    check_message(out.splitlines()[2])


def test_without_a_trained_phase_there_are_no_stalls(tmp_path, capsys):
    code, out, _ = run(tmp_path / "runs", capsys)
    assert code == 0
    check_message(out)
    assert not list((tmp_path / "runs").rglob("*"))
