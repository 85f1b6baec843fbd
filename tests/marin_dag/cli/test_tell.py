"""tell: which requests are sent to whom, which are refused, and how replies are shown."""

import re
import shlex
import socket
import threading
import time

import pytest

from marin_dag.cli import tell
from marin_dag.ledger import lease as lease_module
from marin_dag.ledger.lease import COLLECTS, COPIES, Leases
from marin_dag.ledger.progress import Progress
from marin_dag.ledger.provenance import user_name
from marin_dag.ledger.requests import Requests
from marin_dag.plan.milestones import MilestoneNotRequested
from marin_dag.store.prefix import open_store
from tests.catalogue import check_message
from tests.marin_dag.workbench import Workbench


@pytest.fixture
def lab(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    """A bench whose phases take the requests save and publish."""
    monkeypatch.setattr(tell, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(tell, "GONE_SECONDS", 0.05)
    bench.edit('continues="start", cost=train_cost', 'continues="start", cost=train_cost, requests=("save", "publish")')
    return bench


def check_output(output: str) -> None:
    check_message(output.replace(socket.gethostname(), "<host>").replace(user_name(), "<user>"))


@pytest.mark.parametrize(
    "words",
    [
        ["second", "sav"],
        ["count", "save"],
        ["second", "stop"],
        ["first", "publish", "--at", "5"],
        ["first", "stop"],
        ["second", "save", "--at", "15"],
        ["first", "publish", "--at", "10"],
        ["second", "publish", "--at", "9"],
        ["third", "publish", "--at", "31"],
        ["second", "publish"],
        ["second", "publish", "--at", "11", "--reason", 1001 * "x"],
        ["second", "--at", "15"],
        ["secnd", "stop"],
    ],
    ids=lambda words: "-".join(words)[:30],
)
def test_a_request_that_no_attempt_can_follow_is_refused_and_not_kept(lab: Workbench, words: list[str]) -> None:
    lab("--until", "first")
    code, output = lab("tell", *words)
    assert code == 1
    check_output(output)
    assert Requests(open_store(str(lab.prefix))).of_all() == []


def test_a_machine_whose_clock_is_ahead_reaches_a_running_step(lab: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    lab("--until", "first")
    store, now = open_store(str(lab.prefix)), time.time
    step, leases = lab.plan()["second"].step, Leases(store)
    leases.acquire(step.digest, step.name, lambda: None)
    monkeypatch.setattr(lease_module.time, "time", lambda: now() + 1_000)
    monkeypatch.setattr(tell, "_wait", lambda *given: 0)
    code, _ = lab("tell", "second", "save")
    leases.close()
    assert code == 0 and [request.action for request in Requests(store).of(step.digest)] == ["save"]


@pytest.mark.parametrize("is_declined", [False, True])
def test_the_reply_of_a_running_step_is_printed_and_listed_later(lab: Workbench, is_declined: bool) -> None:
    store = open_store(str(lab.prefix))
    digest = lab.plan()["second"].step.digest
    leases, requests = Leases(store), Requests(store)
    lease = leases.acquire(digest, "second", lambda: None, milestones=(20,))
    lease.progress, lease.has_started = Progress(12, 20, "steps", {}, 10), True
    lease.beat()

    def reply() -> None:
        began = time.monotonic()
        while not (found := requests.of(digest)) and time.monotonic() - began < 30:
            time.sleep(0.01)
        requests.reply(found[0], "an attempt", "saved step 12", is_declined=is_declined)

    replying = threading.Thread(target=reply, daemon=True)
    replying.start()
    code, output = lab("tell", "second", "save", "--reason", "before the maintenance")
    replying.join()
    leases.close()
    assert code == is_declined
    check_output(output)
    for step in ("second", "first"):
        code, listed = lab("tell", step)
        assert code == 0
        check_output(listed)


def test_a_step_that_ends_without_a_reply_ends_the_wait(lab: Workbench) -> None:
    store = open_store(str(lab.prefix))
    leases, digest = Leases(store), lab.plan()["second"].step.digest
    lease = leases.acquire(digest, "second", lambda: None, milestones=(20,))

    def end() -> None:
        began = time.monotonic()
        while not Requests(store).of(digest) and time.monotonic() - began < 30:
            time.sleep(0.01)
        lease.release()

    ending = threading.Thread(target=end, daemon=True)
    ending.start()
    code, output = lab("tell", "second", "stop")
    ending.join()
    leases.close()
    assert code == 1
    check_output(output)


@pytest.mark.parametrize("does", [COPIES, COLLECTS])
def test_a_process_that_copies_or_collects_a_step_gets_no_requests(lab: Workbench, does: str) -> None:
    leases, step = Leases(open_store(str(lab.prefix))), lab.plan()["second"].step
    lease = leases.acquire(step.digest, "a copy of second", lambda: None, does=does)
    lease.beat()
    assert lab("tell", "second", "stop")[0] == 1
    assert lab.verdicts()["second"] == "running"
    assert not any(isinstance(reason, MilestoneNotRequested) for reason in lab.plan()["second"].reasons)
    lease.release()
    leases.close()


def test_a_running_step_of_that_name_with_other_settings_is_pointed_out(lab: Workbench) -> None:
    leases = Leases(open_store(str(lab.prefix)))
    digest = lab.plan("--set", "second.rate=2.0")["second"].step.digest
    leases.acquire(digest, "second", lambda: None, milestones=(20,))
    code, output = lab("tell", "second", "stop")
    leases.close()
    assert code == 1
    check_output(output)


def test_a_step_that_has_not_started_can_be_stopped_while_others_run(lab: Workbench) -> None:
    store = open_store(str(lab.prefix))
    leases = Leases(store)
    leases.acquire(lab.plan()["first"].step.digest, "first", lambda: None, milestones=(10,))
    code, output = lab("tell", "second", "stop")
    leases.close()
    assert code == 0
    check_output(output)
    assert [request.action for request in Requests(store).of(lab.plan()["second"].step.digest)] == ["stop"]


def test_a_plan_and_why_print_the_command_that_requests_a_milestone_in_time(lab: Workbench) -> None:
    store = open_store(str(lab.prefix))
    leases, digest = Leases(store), lab.plan()["second"].step.digest
    lease = leases.acquire(digest, "second under another name", lambda: None, milestones=(20,))
    lease.progress, lease.has_started = Progress(12, 20, "steps", {}, 10), True
    lease.beat()
    start = ("--set", "third.start=second@15")
    outputs = [lab(*words, *start)[1] for words in (["--dry-run", "--every-step"], ["why", "third"])]
    leases.close()
    (line,) = {re.search(r"\S+ tell second publish --at 15 --prefix.*$", each, re.M)[0] for each in outputs}
    lease.release()
    words = shlex.split(line)
    assert words[-2:] == list(start)
    assert lab(*words[words.index("tell") :])[0] == 0
    assert Requests(store).wanted_milestones(digest) == {15}


def test_a_milestone_can_be_requested_before_any_attempt_runs(lab: Workbench) -> None:
    code, output = lab("tell", "second", "publish", "--at", "15")
    assert code == 0
    check_output(output)
    digest = lab.plan()["second"].step.digest
    assert Requests(open_store(str(lab.prefix))).wanted_milestones(digest) == {15}
