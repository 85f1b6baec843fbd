"""`waits`: how long each phase waited for data, read off the event logs of a run."""

from marin_dag.cli.main import main
from marin_dag.graph.graph import Graph
from pipelines import stalls_command, tootsie
from pipelines.scales import LAPTOP
from runtime.tracking.events import EventLog


def run(prefix, capsys, *words):
    code = main(
        tootsie.build,
        add_arguments=tootsie.add_arguments,
        name="tootsie",
        commands=(stalls_command.COMMAND,),
        argv=["waits", *words, "--prefix", str(prefix)],
    )
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def log(prefix, digest, attempt, waited, stalls=()):
    with EventLog(f"{prefix}/work/{digest}/events/{attempt}.jsonl") as events:
        events.write("begin", step=0)
        for step, seconds in stalls:
            causes = {"store read": seconds}
            events.write("stall", step=step, cause="store read", waited_for_data_seconds=seconds, by_cause=causes)
        events.write("progress", step=9, waited_for_data_seconds=waited, waited_by_cause={"store read": waited})


def test_it_adds_up_the_attempts_of_each_phase_and_draws_them(tmp_path, capsys):
    prefix = tmp_path / "runs"
    phases = Graph([tootsie.tootsie(LAPTOP, tootsie.laptop_corpus(LAPTOP))[0]])
    kestrel = phases.step("kestrel").digest
    log(prefix, kestrel, "20260101-000000-a", 2.5, [(3, 1.5)])
    log(prefix, kestrel, "20260102-000000-b", 1.25)
    log(prefix, kestrel, "20260102-000000-b.host1", 99.0, [(1, 99.0)])  # waits with the first host, and counts once
    log(prefix, phases.step("ocelot").digest, "20260103-000000-c", 0.5)
    code, out, _ = run(prefix, capsys, "--page", str(tmp_path / "waits.html"))
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:3]] == [["kestrel", "2"], ["ocelot", "1"]]
    told, _, _ = out.partition("drawn:")  # where that lies may hold any number
    assert "3.75 s" in told and "0.50 s" in told and "99" not in told
    assert "stalled  kestrel: 1 × store read, 1.5 s" in out
    page = (tmp_path / "waits.html").read_text()
    assert "kestrel: 3.75 s for store read" in page and "ocelot: 0.50 s for store read" in page


def test_one_training_with_several_names_is_told_once_by_the_name_that_the_plan_trains_it_under(tmp_path, capsys):
    prefix = tmp_path / "runs"
    phases = Graph([tootsie.tootsie(LAPTOP, tootsie.laptop_corpus(LAPTOP))[0]])
    log(prefix, phases.step("spoonbill_norms").digest, "20260101-000000-a", 2.5)
    code, out, _ = run(prefix, capsys, "--page", str(tmp_path / "waits.html"))
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:2]] == ["spoonbill_hypnotic"]
    said = (
        "spoonbill_hypnotic: its figures are also those of spoonbill_norms_half, spoonbill_norms and "
        "spoonbill_focused_fp32, the same training to this or another stop"
    )
    assert out.splitlines()[2] == said
    assert f"<p>{said}.</p>" in (tmp_path / "waits.html").read_text()


def test_before_anything_has_trained_it_says_so_and_refuses_what_is_no_page(tmp_path, capsys):
    code, out, _ = run(tmp_path / "runs", capsys)
    assert code == 0 and f"no phase has trained under {tmp_path / 'runs'} as the recipe stands now" in out
    assert run(tmp_path / "runs", capsys, "--page", str(tmp_path / "waits.html"))[0] == 1, "it is not there"
    assert (
        "--page waits.png: .png is no kind of picture; end it in .html"
        in run(tmp_path / "runs", capsys, "--page", "waits.png")[2]
    )
    assert not list((tmp_path / "runs").rglob("*"))
