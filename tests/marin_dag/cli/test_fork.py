"""fork: a fork gets followers like those of its base, and is dropped with them."""

import json
import os
import re
import shlex

import pytest

from marin_dag.ledger.lease import COPIES, Leases
from marin_dag.ledger.requests import Requests
from marin_dag.plan.forks import Forks
from marin_dag.store.local import LocalStore
from marin_dag.store.prefix import open_store
from tests.catalogue import check_message
from tests.marin_dag.workbench import Workbench

NODE = os.uname().nodename
EVALUATION = """

class EvaluateConfig(BaseModel, frozen=True, extra="forbid"):
    phase: Input[Count]
    least: float = 0.5


class Score(BaseModel, frozen=True, extra="forbid"):
    loss: float
    steps: int


@step()
def evaluate(config: EvaluateConfig, context) -> Score:
    return Score(loss=1 / config.phase.result.total, steps=config.phase.result.total)


FOLLOW = {train: (evaluate,)}
"""


@pytest.fixture
def evaluated(bench: Workbench) -> Workbench:
    bench.edit("\n\ndef build(", EVALUATION + "\n\ndef build(")
    bench.edit(
        "return [third]",
        'fixed = evaluate("fixed", EvaluateConfig(phase=second.at(step=15)))\n'
        '    return [third, evaluate("eval/second", EvaluateConfig(phase=second)), fixed]',
    )
    return bench


def test_a_fork_gets_the_followers_of_its_base(evaluated: Workbench) -> None:
    code, output = evaluated("fork", "second", "--as", "branch", "--set", "rate=2.0")
    assert code == 0
    check_message(output)
    names = set(evaluated.verdicts("--until", "eval/branch"))
    assert {"branch", "eval/branch"} <= names
    assert "fixed/branch" not in evaluated.verdicts(), "it reads another milestone of the base than the last"


def test_a_fork_of_a_fork_gets_the_followers_of_the_first(evaluated: Workbench) -> None:
    evaluated("fork", "second", "--as", "branch", "--set", "rate=2.0")
    evaluated("fork", "branch", "--as", "twig", "--set", "rate=3.0")
    document = json.loads(evaluated("plan", "--json")[1])
    steps = {step["name"]: step for step in document["steps"]}
    assert steps["eval/twig"]["inputs"] == [{"field": "phase", "step": "twig", "key": steps["twig"]["key"]}]
    _, why = evaluated("why", "eval/twig", "--set", "eval/second.least=0.25")
    _, base = evaluated("why", "eval/twig")
    assert re.findall(r"digest +(\w+)", why) != re.findall(r"digest +(\w+)", base)


def test_followers_are_dropped_with_their_fork(evaluated: Workbench) -> None:
    evaluated("fork", "second", "--as", "branch", "--set", "rate=2.0")
    assert evaluated("--until", "eval/branch")[0] == 0
    line = evaluated("drop", "branch")[1].rpartition("free it ")[2]
    assert not {"branch", "eval/branch"} & set(evaluated.verdicts())
    words = shlex.split(line)
    listed = evaluated(*words[words.index("gc") : words.index("--prefix")], "--older-than-days", "0")[1].splitlines()
    assert {each.split()[1] for each in listed if each.startswith("output ")} == {"branch", "eval/branch"}


def test_a_fork_cannot_take_the_name_of_a_step_or_fork(evaluated: Workbench) -> None:
    code, output = evaluated("fork", "second", "--as", "third", "--set", "rate=2.0")
    assert code == 1
    check_message(output)
    evaluated("fork", "second", "--as", "branch", "--set", "rate=2.0")
    check_message(evaluated("fork", "first", "--as", "branch", "--set", "rate=2")[1])


def test_a_fork_whose_follower_has_the_name_of_a_step_is_refused(evaluated: Workbench) -> None:
    evaluated.edit(
        'evaluate("eval/second"', 'evaluate("eval/mine", EvaluateConfig(phase=first)), evaluate("eval/second"'
    )
    code, output = evaluated("fork", "second", "--as", "mine", "--set", "rate=2.0")
    assert code == 1
    check_message(output)
    assert "mine" not in evaluated.verdicts()


def test_a_fork_whose_follower_a_check_refuses_is_not_stored(evaluated: Workbench) -> None:
    evaluated.edit(
        "@step()\ndef evaluate(",
        """def check(config):
    if config.phase.step.config.rate > 1:
        raise ValueError("no rate above 1")


@step(check=check)
def evaluate(""",
    )
    code, output = evaluated("fork", "second", "--as", "branch", "--set", "rate=2.0")
    assert code == 1
    check_message(output)
    assert not evaluated.files("names")
    assert evaluated("fork", "second", "--as", "branch", "--set", "rate=0.75")[0] == 0


def test_drop_warns_of_runs_that_still_make_the_fork(bench: Workbench) -> None:
    leases = Leases(open_store(str(bench.prefix)))

    def notes() -> str:
        bench("fork", "second", "--as", "branch", "--set", "rate=2.0")
        code, output = bench("drop", "branch")
        assert code == 0
        return output.partition("\n")[2].replace(NODE, "<host>")

    copier = leases.acquire("c" * 64, "copy of first", lambda: None, does=COPIES)
    assert notes() == "", "a copy is not a run"
    other = leases.acquire("a" * 64, "first", lambda: None)
    check_message(notes())
    own = leases.acquire("b" * 64, "branch", lambda: None)
    check_message(notes())
    for lease in (own, other, copier):
        lease.release()
    leases.close()


def test_a_fork_dropped_meanwhile_stops_no_plan(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "other"):
        bench("fork", "second", "--as", name, "--set", f"rate={len(name)}")
    paths = Forks._paths
    monkeypatch.setattr(Forks, "_paths", lambda forks: sorted({*paths(forks), "names/bench/other.json"}))
    open_store(str(bench.prefix)).delete("names/bench/other.json")
    verdicts = bench.verdicts()
    assert "one" in verdicts and "other" not in verdicts
    assert bench("drop", "one")[0] == 0


def test_a_fork_whose_name_a_new_step_takes_is_named_with_the_command_that_drops_it(bench: Workbench) -> None:
    bench("fork", "second", "--as", "fourth", "--set", "rate=2.0")
    bench.edit("return [third]", 'return [third, second.fork("fourth", rate=3.0)]')
    code, output = bench("--dry-run")
    assert code == 1
    check_message(output)
    assert bench("drop", "fourth")[0] == 0 and bench("--dry-run")[0] == 2


PUBLISHING = """    for at in context.wanted_milestones:
        Path(context.output_path, f"step-{at}").mkdir()
        context.publish(at, f"step-{at}", Count(total=at))
    return Count(total=config.until_step)"""


def test_a_run_publishes_the_milestone_that_an_unselected_fork_starts_from(bench: Workbench) -> None:
    bench.edit("    return Count(total=config.until_step)", PUBLISHING)
    assert bench("fork", "third", "--as", "branch", "--set", "start=second@15")[0] == 0
    assert bench("--until", "second")[0] == 0
    assert bench.verdicts()["branch"] == "missing"
    assert bench("--until", "branch")[0] == 0


@pytest.fixture
def saving(bench: Workbench) -> Workbench:
    """A recipe whose runs resume from files `saved-STEP` of an attempt."""
    bench.edit(
        '@step(continues="start", cost=train_cost)',
        """def saved_steps(paths):
    return [int(path.removeprefix("saved-")) for path in paths if path.startswith("saved-")]


@step(continues="start", cost=train_cost, resumes_at=saved_steps)""",
    )
    return bench


def test_a_fork_from_a_saved_state_needs_it_published_first(saving: Workbench) -> None:
    saving("--until", "second")
    saving("fork", "second", "--as", "leg", "--set", "until_step=15")
    open_store(str(saving.prefix)).write(f"work/{saving.plan()['second'].step.digest}/saved-15", b"")
    code, output = saving("fork", "third", "--as", "branch", "--set", "start=second@15", "--set", "rate=3.0")
    assert code == 0
    check_message(output)
    assert saving("--until", "branch")[0] == 1
    steps = {step["name"]: step for step in json.loads(saving("plan", "--json", "--until", "branch")[1])["steps"]}
    assert (steps["branch"]["verdict"], steps["branch"]["reasons"][0]["saved"]) == ("blocked", 15)
    assert json.loads(saving("gc", "--roots")[1])["wanted"], "it is kept until it is published"
    saving("--set", "second.until_step=15", "--until", "second")
    assert saving("--until", "branch")[0] == 0


def test_a_fork_warns_of_a_running_attempt_that_cannot_publish_its_start(bench: Workbench) -> None:
    leases = Leases(open_store(str(bench.prefix)))
    leases.acquire(bench.plan()["second"].step.digest, "second", lambda: None, milestones=(20,))
    code, output = bench("fork", "third", "--as", "branch", "--set", "start=second@15")
    leases.close()
    assert code == 0
    check_message(warnings(output))


def warnings(output: str) -> str:
    """Return the warnings that `fork` prints."""
    lines = [line for line in output.splitlines() if line.startswith(("warning  ", "   "))]
    return "\n".join(lines).replace(NODE, "<host>")


def test_a_fork_from_the_saved_state_of_a_running_attempt_is_not_called_lost(saving: Workbench) -> None:
    store = open_store(str(saving.prefix))
    digest = saving.plan()["second"].step.digest
    leases = Leases(store)
    leases.acquire(digest, "second", lambda: None, milestones=(20,))
    store.write(f"work/{digest}/saved-15", b"")
    settings = ("--set", "start=second@15", "--set", "rate=3.0")
    _, last_saved = saving("fork", "third", "--as", "branch", *settings)
    saving("drop", "branch")
    store.write(f"work/{digest}/saved-18", b"")
    _, passed = saving("fork", "third", "--as", "branch", *settings)
    leases.close()
    check_message(warnings(last_saved))
    assert re.search(r"^first .* --set second.until_step=15 --until second ", passed, re.M) and warnings(passed) == ""


def test_a_fork_requests_the_milestone_that_it_starts_from_until_it_is_dropped(bench: Workbench) -> None:
    bench.edit('continues="start", cost=train_cost', 'continues="start", cost=train_cost, requests=("publish",)')
    store = open_store(str(bench.prefix))
    digest = bench.plan()["second"].step.digest
    leases = Leases(store)
    leases.acquire(digest, "second", lambda: None, milestones=(20,))
    code, output = bench(
        "fork", "third", "--as", "branch", "--set", "start=second@15", "--set", "rate=3.0", "--reason", "a try"
    )
    assert code == 0 and warnings(output) == ""
    check_message(next(line for line in output.splitlines() if line.startswith("requested")).replace(NODE, "<host>"))
    (request,) = Requests(store).of(digest)
    assert (request.action, request.milestone, request.reason) == ("publish", 15, "a try")
    assert "milestone_not_requested" not in bench("plan", "--json")[1], "the attempt has yet to reach it"
    bench("drop", "branch")
    assert Requests(store).of(digest) == []
    assert bench("fork", "second", "--as", "short", "--set", "until_step=17")[0] == 0
    leases.close()
    (request,) = Requests(store).of(digest)
    assert (request.action, request.milestone) == ("publish", 17)
    Requests(store).reply(request, "an attempt", "it will")
    bench("drop", "short")
    assert Requests(store).of(digest) == [request], "a request with a reply stays"


@pytest.mark.parametrize("change", ["start=first@10", "rate=3.0"])
def test_a_fork_from_the_last_step_of_a_phase_requests_nothing(bench: Workbench, change: str) -> None:
    assert bench("fork", "third", "--as", "branch", "--set", change)[0] == 0
    assert Requests(open_store(str(bench.prefix))).of_all() == [], "every run publishes it"


def test_a_fork_without_an_output_of_its_own_is_warned_about(bench: Workbench) -> None:
    code, output = bench("fork", "second", "--as", "short", "--set", "until_step=12")
    assert code == 0
    check_message(warnings(output))
    bench("fork", "second", "--as", "branch", "--set", "rate=2.0")
    check_message(warnings(bench("fork", "second", "--as", "twin", "--set", "rate=2.0")[1]))
    check_message(warnings(bench("fork", "branch", "--as", "twig", "--set", "until_step=18")[1]))
    _, output = bench(
        "fork", "count", "--as", "recount", "--set", "texts.web=text/code", "--set", "texts.code=text/web"
    )
    assert warnings(output) == ""


LINT = """

def lint(graph):
    trainings = [step for step in graph.steps if isinstance(step.config, TrainConfig)]
    rare = [step for step in trainings if step.config.look_every_steps > step.config.until_step]
    return {step.name: [LintWarning("it never looks", {"look_every_steps": "2"})] for step in rare}
"""


def test_lint_warnings_are_printed_for_a_fork_with_an_output_of_its_own(bench: Workbench) -> None:
    bench.edit(
        "from marin_dag.graph.step import Input,",
        "from marin_dag.plan.lint import LintWarning\nfrom marin_dag.graph.step import Input, Runtime,",
    )
    bench.edit(
        "    rate: float = 0.5",
        "    rate: float = 0.5\n    look_every_steps: Runtime[int] = 5\n    label: Runtime[str] = ''",
    )
    bench.edit("\n\ndef build(", LINT + "\n\ndef build(")

    def warned(*changes: str) -> str:
        options = [word for change in changes for word in ("--set", change)]
        _, output = bench("fork", "second", "--as", "branch", *options)
        bench("drop", "branch")
        return warnings(output)

    check_message(warned("look_every_steps=5000", "label=a b"))
    options = ["--set", "second.look_every_steps=5000", "--set", "second.label=a b"]
    planned = json.loads(bench("--dry-run", "--json", *options)[1])["steps"]
    assert {step["name"]: len(step["warnings"]) for step in planned if step["warnings"]} == {"second": 1, "third": 1}
    check_message(bench("--dry-run", *options)[1])
    check_message(warned("look_every_steps=5000", "rate=2.0"))


@pytest.mark.parametrize("changes", [["rate=2.0"], ["until_step=40"], ["rate=2.0", "until_step=12"]])
def test_a_fork_with_an_output_of_its_own_is_not_warned_about(bench: Workbench, changes: list[str]) -> None:
    options = [word for change in changes for word in ("--set", change)]
    code, output = bench("fork", "second", "--as", "branch", *options)
    assert code == 0 and warnings(output) == ""


def test_a_stop_moved_before_the_start_of_a_fork_does_not_move_the_fork(bench: Workbench) -> None:
    bench("fork", "second", "--as", "branch", "--set", "start=second@15", "--set", "rate=2.0")
    bench("fork", "branch", "--as", "twig", "--set", "rate=3.0")

    def stops(stop: int) -> list[tuple[str, int]]:
        document = json.loads(bench("plan", "--json", "--set", f"second.until_step={stop}")[1])
        steps = {step["name"]: step for step in document["steps"]}
        return [(steps[name]["digest"], steps[name]["milestone"]) for name in ("second", "branch", "twig")]

    digests = [digest for digest, _ in stops(20)]
    assert stops(15) == list(zip(digests, (15, 20, 20), strict=True))
    assert stops(12) == list(zip(digests, (12, 20, 20), strict=True))
    assert stops(18) == list(zip(digests, (18, 18, 18), strict=True))
    assert bench("--set", "second.until_step=15", "--until", "second")[0] == 0
    assert bench("--until", "twig")[0] == 0


def test_a_step_with_the_identity_of_an_unselected_step_runs_itself(bench: Workbench) -> None:
    bench.edit(
        "    return [third]",
        """    twin = first.then("twin", until_step=20, rate=0.25)
    last = twin.then("last", until_step=25, rate=0.5)
    return [third, last]""",
    )
    assert bench("--dry-run", "--until", "last")[0] == 2
    assert json.loads(bench("plan", "--json", "--until", "last")[1])["totals"]["will_run"] == 6
    assert bench("--until", "last")[0] == 0
    assert bench.verdicts("--until", "second")["second"] == "done"


def test_a_milestone_is_not_the_base_of_a_fork(bench: Workbench) -> None:
    code, output = bench("fork", "second@15", "--as", "branch", "--set", "rate=2.0")
    assert code == 1
    check_message(output)


def test_of_two_commands_that_make_a_fork_at_once_one_is_refused(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = LocalStore.create

    def second(store: LocalStore, path: str, data: bytes) -> bool:
        if path.startswith("names/"):
            create(store, path, data)
        return create(store, path, data)

    monkeypatch.setattr(LocalStore, "create", second)
    code, text = bench("fork", "second", "--as", "branch", "--set", "rate=2.0")
    assert code == 1
    check_message(text)
