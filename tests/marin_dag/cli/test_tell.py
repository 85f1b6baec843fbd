"""tell: who is told what, what is refused, and what the answer looks like."""

import re
import shlex
import threading
import time

import pytest

from marin_dag.cli import tell
from marin_dag.ledger import lease as lease_module
from marin_dag.ledger.lease import COLLECTS, COPIES, Leases
from marin_dag.ledger.progress import Progress
from marin_dag.ledger.requests import Tellings
from marin_dag.plan.milestone_reasons import NotTold
from marin_dag.store.prefix import open_store
from tests.marin_dag.workbench import Workbench


@pytest.fixture
def hearing(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    monkeypatch.setattr(tell, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(tell, "GONE_SECONDS", 0.05)
    bench.edit('continues="start", cost=train_cost', 'continues="start", cost=train_cost, hears=("save", "publish")')
    return bench


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["second", "sav"], "tell second sav: it hears 'stop', 'save' and 'publish'. Did you mean 'save'?"),
        (["count", "save"], "tell count save: it hears 'stop'."),
        (
            ["second", "stop"],
            "tell second stop: nobody is at work on it, so that there is nobody to tell. If a run has "
            "just been started, repeat it in some seconds.",
        ),
        (["first", "publish", "--at", "5"], "tell first publish --at 5: step 5 was not kept; the nearest is 10."),
        (["first", "stop"], "tell first stop: it is done, so that there is nobody to tell.\n"),
        (
            ["second", "save", "--at", "15"],
            "tell second save --at 15: only a step to publish is named; leave --at out.",
        ),
        (["first", "publish", "--at", "10"], "tell first publish --at 10: step 10 is published already."),
        (["second", "publish", "--at", "9"], "tell second publish --at 9: its steps are 11 to 30."),
        (
            ["third", "publish", "--at", "31"],
            "tell third publish --at 31: its steps are 11 to 30.",
        ),
        (
            ["second", "publish"],
            "tell second publish: nobody is at work on it, so that there is nobody to tell. `--at N` is for those to "
            "come, too. If a run has just been started, repeat it in some seconds.",
        ),
        (["second", "publish", "--at", "11", "--reason", 1001 * "x"], "--reason: 1,001 characters; use at most 1,000."),
        (["second", "--at", "15"], "tell second: say what to tell it: 'stop', 'save' and 'publish'."),
        (["secnd", "stop"], "Did you mean 'second'?"),
    ],
)
def test_what_nobody_can_hear_is_refused_with_what_is_wrong(hearing: Workbench, words: list[str], said: str) -> None:
    hearing("--until", "first")
    code, output = hearing("tell", *words)
    assert code == 1 and said in output
    assert Tellings(open_store(str(hearing.prefix))).ids() == frozenset()


def test_who_runs_is_told_from_a_machine_whose_clock_is_ahead(
    hearing: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    hearing("--until", "first")
    store, now = open_store(str(hearing.prefix)), time.time
    step, leases = hearing.plan()["second"].step, Leases(store)
    leases.acquire(step.digest, step.name, lambda: None)
    monkeypatch.setattr(lease_module.time, "time", lambda: now() + 1_000)
    monkeypatch.setattr(tell, "_wait", lambda *given: 0)
    code, said = hearing("tell", "second", "save")
    leases.close()
    assert code == 0 and "second: told to save; it " in said


@pytest.mark.parametrize("is_refused", [False, True])
def test_the_answer_of_a_running_step_is_printed_and_listed_later(hearing: Workbench, is_refused: bool) -> None:
    store = open_store(str(hearing.prefix))
    digest = hearing.plan()["second"].step.digest
    leases, tellings = Leases(store), Tellings(store)
    lease = leases.acquire(digest, "second", lambda: None, milestones=(20,))
    lease.progress, lease.has_started = Progress(12, 20, "steps", {}, 10), True
    lease.beat()

    def answer() -> None:
        began = time.monotonic()
        while not (told := tellings.of(digest)) and time.monotonic() - began < 30:
            time.sleep(0.01)
        tellings.answer(told[0], "an attempt", "saved step 12", is_refused=is_refused)

    answering = threading.Thread(target=answer, daemon=True)
    answering.start()
    code, said = hearing("tell", "second", "save", "--reason", "before the maintenance")
    answering.join()
    leases.close()
    assert code == is_refused
    assert re.match(
        r"second: told to save; it is at work, its driver on \S+ \(pid \d+\), at 12 of 20 steps\nwaiting for its", said
    )
    assert said.endswith("second: saved step 12\n")
    code, listed = hearing("tell", "second")
    assert code == 0
    first, second = listed.splitlines()
    assert first.endswith(" told it to save: before the maintenance") and "saved step 12 (" in second
    assert hearing("tell", "first") == (0, "first: it was never told anything; it hears 'stop', 'save' and 'publish'\n")


def test_a_step_that_ends_without_an_answer_is_said_to_have(hearing: Workbench) -> None:
    store = open_store(str(hearing.prefix))
    leases, digest = Leases(store), hearing.plan()["second"].step.digest
    lease = leases.acquire(digest, "second", lambda: None, milestones=(20,))

    def end() -> None:
        began = time.monotonic()
        while not Tellings(store).of(digest) and time.monotonic() - began < 30:
            time.sleep(0.01)
        lease.release()

    ending = threading.Thread(target=end, daemon=True)
    ending.start()
    code, said = hearing("tell", "second", "stop")
    ending.join()
    leases.close()
    assert code == 1 and said.endswith(
        "it has ended without an answer; another try of the same run hears it, and no later run\n"
    )


@pytest.mark.parametrize("does", [COPIES, COLLECTS])
def test_who_copies_a_step_or_collects_it_is_not_told_and_no_run(hearing: Workbench, does: str) -> None:
    leases, step = Leases(open_store(str(hearing.prefix))), hearing.plan()["second"].step
    lease = leases.acquire(step.digest, "a copy of second", lambda: None, does=does)
    lease.beat()
    code, said = hearing("tell", "second", "stop")
    assert code == 1 and "tell second stop: nobody is at work on it" in said
    code, said = hearing("why", "second")
    assert f"somebody {does} it, on " in said and "waits for its resources" not in said and "log second" not in said
    assert hearing.verdicts()["second"] == "running"
    assert not any(isinstance(reason, NotTold) for reason in hearing.plan()["second"].reasons)
    lease.release()
    leases.close()


def test_a_step_of_that_name_with_other_settings_is_pointed_to(hearing: Workbench) -> None:
    leases = Leases(open_store(str(hearing.prefix)))
    digest = hearing.plan("--set", "second.rate=2.0")["second"].step.digest
    leases.acquire(digest, "second", lambda: None, milestones=(20,))
    code, said = hearing("tell", "second", "stop")
    assert code == 1 and re.search(r"What runs on \S+ \(pid \d+\) under that name has another identity: give the", said)
    leases.close()


def test_a_step_that_runs_at_work_on_others_have_yet_to_begin_can_be_told_to_stop(hearing: Workbench) -> None:
    store = open_store(str(hearing.prefix))
    leases = Leases(store)
    leases.acquire(hearing.plan()["first"].step.digest, "first", lambda: None, milestones=(10,))
    code, said = hearing("tell", "second", "stop")
    leases.close()
    assert code == 0 and re.fullmatch(
        r"second: nobody is at work on it; what runs on \S+ \(pid \d+\) is told not to begin it\n", said
    )
    assert [telling.word for telling in Tellings(store).of(hearing.plan()["second"].step.digest)] == ["stop"]


def test_a_plan_and_why_print_the_line_that_tells_an_attempt_what_it_was_not_told(hearing: Workbench) -> None:
    store = open_store(str(hearing.prefix))
    leases, digest = Leases(store), hearing.plan()["second"].step.digest
    lease = leases.acquire(digest, "second under another name", lambda: None, milestones=(20,))
    lease.progress, lease.has_started = Progress(12, 20, "steps", {}, 10), True
    lease.beat()
    start = ("--set", "third.start=second@15")
    said = [hearing(*words, *start)[1] for words in (["--dry-run", "--every-step"], ["why", "third"])]
    leases.close()
    (line,) = {re.search(r"^ *keep 15 +(.*)$", each, re.M)[1] for each in said}
    assert "tell second publish --at 15 --prefix" in line and line.endswith(shlex.join(start))
    lease.release()
    words = shlex.split(line)
    assert hearing(*words[words.index("tell") :])[0] == 0
    assert Tellings(store).to_publish(digest) == {15}


def test_a_step_that_nobody_is_at_work_on_can_be_told_what_to_publish(hearing: Workbench) -> None:
    code, said = hearing("tell", "second", "publish", "--at", "15")
    assert (code, said) == (0, "second: nobody is at work on it; whoever comes by step 15 is told to publish it\n")
    digest = hearing.plan()["second"].step.digest
    assert Tellings(open_store(str(hearing.prefix))).to_publish(digest) == {15}
