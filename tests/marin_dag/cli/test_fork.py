"""fork: a branch gets what follows its base, is dropped with it, and says in the end what came of it."""

import json
import os
import re
import shlex

import pytest

from marin_dag.graph.forks import Forks
from marin_dag.ledger.lease import COPIES, Leases
from marin_dag.ledger.requests import Requests
from marin_dag.store.prefix import open_store
from tests.marin_dag.workbench import Workbench

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


def test_a_fork_gets_what_follows_its_base_and_the_lines_to_run_both(evaluated: Workbench) -> None:
    code, said = evaluated("fork", "second", "--as", "branch", "--set", "rate=2.0")
    assert code == 0
    assert "with it    eval/branch" in said
    assert re.search(r"run it     \S*python \S+ --until eval/branch --prefix", said)
    names = set(evaluated.verdicts("--until", "eval/branch"))
    assert {"branch", "eval/branch"} <= names
    assert "fixed/branch" not in evaluated.verdicts(), "it reads another step of the base than the one it stops at"


def test_a_fork_that_was_run_is_shown_in_the_end_with_its_figures(evaluated: Workbench) -> None:
    evaluated("fork", "second", "--as", "branch", "--set", "rate=2.0")
    code, said = evaluated("--until", "eval/branch")
    assert code == 0
    path = re.escape(str(evaluated.prefix))
    assert re.search(rf"^  branch: {path}/outputs/branch-\S+  \(total 20\)$", said, re.MULTILINE)
    assert re.search(rf"^  eval/branch: {path}/outputs/eval/branch-\S+  \(loss 0.05, steps 20\)$", said, re.MULTILINE)
    assert said.count("eval/branch: ") == 1
    assert evaluated("--until", "eval/branch")[1].count("(loss 0.05") == 1, "and again where nothing is to do"


def test_a_fork_of_a_fork_is_followed_too_and_takes_over_what_was_set_for_the_first(evaluated: Workbench) -> None:
    evaluated("fork", "second", "--as", "branch", "--set", "rate=2.0")
    evaluated("fork", "branch", "--as", "twig", "--set", "rate=3.0")
    document = json.loads(evaluated("plan", "--json")[1])
    steps = {step["name"]: step for step in document["steps"]}
    assert steps["eval/twig"]["inputs"] == [{"field": "phase", "step": "twig", "key": steps["twig"]["key"]}]
    _, why = evaluated("why", "eval/twig", "--set", "eval/second.least=0.25")
    _, base = evaluated("why", "eval/twig")
    assert re.findall(r"digest +(\w+)", why) != re.findall(r"digest +(\w+)", base)


def test_what_follows_goes_when_its_fork_is_dropped(evaluated: Workbench) -> None:
    evaluated("fork", "second", "--as", "branch", "--set", "rate=2.0")
    evaluated("drop", "branch")
    assert not {"branch", "eval/branch"} & set(evaluated.verdicts())


def test_a_name_that_is_taken_by_a_step_of_the_recipe_cannot_be_dropped(evaluated: Workbench) -> None:
    code, said = evaluated("fork", "second", "--as", "third", "--set", "rate=2.0")
    assert (code, "there is a step of that name already; choose another." in said) == (1, True)
    evaluated("fork", "second", "--as", "branch", "--set", "rate=2.0")
    assert (
        "choose another, or `drop branch` first" in evaluated("fork", "first", "--as", "branch", "--set", "rate=2")[1]
    )


def test_a_name_whose_evaluation_is_taken_is_refused(evaluated: Workbench) -> None:
    evaluated.edit(
        'evaluate("eval/second"', 'evaluate("eval/mine", EvaluateConfig(phase=first)), evaluate("eval/second"'
    )
    code, said = evaluated("fork", "second", "--as", "mine", "--set", "rate=2.0")
    assert (code, "there is a step eval/mine already, which would follow it" in said) == (1, True)
    assert "mine" not in evaluated.verdicts()


def test_a_fork_whose_evaluation_a_plan_would_refuse_is_refused_at_once_and_not_kept(evaluated: Workbench) -> None:
    evaluated.edit(
        "@step()\ndef evaluate(",
        """def check(config):
    if config.phase.step.config.rate > 1:
        raise ValueError("no rate above 1")


@step(check=check)
def evaluate(""",
    )
    code, said = evaluated("fork", "second", "--as", "branch", "--set", "rate=2.0")
    assert code == 1 and "eval/branch: no rate above 1\neval/branch would follow branch; nothing is kept" in said
    assert not evaluated.files("names")
    assert evaluated("fork", "second", "--as", "branch", "--set", "rate=0.75")[0] == 0


def test_dropping_a_fork_says_which_runs_go_on_with_it(bench: Workbench) -> None:
    store = open_store(str(bench.prefix))
    leases, pid = Leases(store), rf"\(pid {os.getpid()}\)"
    path = "names/bench/branch.json"

    def dropped(*, created: str = "") -> str:
        bench("fork", "second", "--as", "branch", "--set", "rate=2.0")
        fork = json.loads(store.read(path))
        store.write(path, json.dumps(fork | {"created": created or fork["created"]}).encode())
        code, said = bench("drop", "branch")
        assert code == 0 and said.startswith("dropped branch, a fork of second;")
        return said.partition("\n")[2]

    assert dropped() == "", "nothing runs"
    copier = leases.acquire("c" * 64, "copy of first", lambda: None, does=COPIES)
    assert dropped(created="2020-01-01T00:00:00.000000+00:00") == "", "a copy is no run"
    other = leases.acquire("a" * 64, "first", lambda: None)
    assert dropped() == "", "a run that has begun something before has not read it"
    long_ago = "2020-01-01T00:00:00.000000+00:00"
    may_have = dropped(created=long_ago)
    assert re.fullmatch(rf"note +the run on \S+ {pid}, if it began after the fork was made, makes it .*\n", may_have)
    own = leases.acquire("b" * 64, "branch", lambda: None)
    at_work = rf"note +branch is at work in the run on \S+ {pid}, which goes on with it and .*\n"
    assert re.fullmatch(at_work, dropped(created=long_ago)) and re.fullmatch(at_work, dropped())
    for lease in (own, other, copier):
        lease.release()
    base = leases.acquire(bench.plan()["first"].step.digest, "first", lambda: None)
    waiting = r"note +a run that only waits .* here; if it began after branch was made, it makes it all the same\n"
    assert re.fullmatch(waiting, dropped()), "it waits for the run that makes what the fork starts from"
    base.release()
    leases.close()


def test_a_fork_that_somebody_drops_meanwhile_is_in_nobody_s_way(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "other"):
        bench("fork", "second", "--as", name, "--set", f"rate={len(name)}")
    paths = Forks._paths

    def paths_of_before(forks: Forks) -> list[str]:
        return sorted({*paths(forks), "names/bench/other.json"})

    monkeypatch.setattr(Forks, "_paths", paths_of_before)
    open_store(str(bench.prefix)).delete("names/bench/other.json")
    code, said = bench("--dry-run", "--every-step")
    assert code == 2 and "\none " in said and "\nother" not in said
    assert bench("drop", "one")[0] == 0


def test_a_fork_whose_name_the_recipe_takes_later_is_named_with_what_forgets_it(bench: Workbench) -> None:
    bench("fork", "second", "--as", "fourth", "--set", "rate=2.0")
    bench.edit("return [third]", 'return [third, second.fork("fourth", rate=3.0)]')
    code, said = bench("--dry-run")
    assert code == 1 and "two steps are called 'fourth'" in said and "`drop fourth` forgets it" in said
    assert bench("drop", "fourth")[0] == 0 and bench("--dry-run")[0] == 2


PUBLISHING = """    for at in context.wanted_milestones:
        Path(context.output_path, f"step-{at}").mkdir()
        context.publish(at, f"step-{at}", Count(total=at))
    return Count(total=config.until_step)"""


def test_what_a_fork_starts_from_is_kept_by_a_run_that_leaves_the_fork_out(bench: Workbench) -> None:
    bench.edit("    return Count(total=config.until_step)", PUBLISHING)
    code, said = bench("fork", "third", "--as", "branch", "--set", "start=second@15")
    assert code == 0 and "was not told" not in said
    assert bench("--until", "second")[0] == 0
    assert bench.verdicts()["branch"] == "missing"
    assert bench("--until", "branch")[0] == 0


@pytest.fixture
def saving(bench: Workbench) -> Workbench:
    """Its trajectories can go on from what an attempt saved as `saved-STEP`."""
    bench.edit(
        '@step(continues="start", cost=train_cost)',
        """def saved_steps(paths):
    return [int(path.removeprefix("saved-")) for path in paths if path.startswith("saved-")]


@step(continues="start", cost=train_cost, resumes_at=saved_steps)""",
    )
    return bench


def test_what_only_another_fork_publishes_is_published_first(saving: Workbench) -> None:
    saving("--until", "second")
    saving("fork", "second", "--as", "leg", "--set", "until_step=15")
    open_store(str(saving.prefix)).write(f"work/{saving.plan()['second'].step.digest}/saved-15", b"")
    code, said = saving("fork", "third", "--as", "branch", "--set", "start=second@15", "--set", "rate=3.0")
    assert code == 0
    assert re.search(r"^first +\S*python \S+ --set second.until_step=15 --until second --prefix", said, re.M)
    code, said = saving("--until", "branch")
    assert code == 1 and "publish it: `--set second.until_step=15 --until second`" in said
    assert saving("why", "branch", "--until", "branch")[1].startswith("branch is blocked")
    assert json.loads(saving("gc", "--roots")[1])["wanted"], "nor may it go as long as nobody has"
    saving("--set", "second.until_step=15", "--until", "second")
    assert saving("--until", "branch")[0] == 0


def test_a_fork_says_what_a_running_attempt_was_not_told(bench: Workbench) -> None:
    store = open_store(str(bench.prefix))
    digest = bench.plan()["second"].step.digest
    leases = Leases(store)
    leases.acquire(digest, "second", lambda: None, milestones=(20,))
    code, said = bench("fork", "third", "--as", "branch", "--set", "start=second@15")
    leases.close()
    assert code == 0
    assert re.search(
        r"^note +input start: second, running on .* was not asked to publish step 15 and takes no requests", said, re.M
    )


def test_a_fork_from_what_a_running_attempt_has_saved_is_not_told_that_it_is_lost(saving: Workbench) -> None:
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
    assert (
        "note       input start: step 15 was saved but not published. To publish it: `--set second.until_step=15"
        in last_saved
    )
    assert re.search(r"^first .* --set second.until_step=15 --until second ", passed, re.M)
    assert "note" not in passed and "was not asked" not in last_saved


def test_a_fork_tells_who_is_at_work_to_publish_what_it_starts_from_and_takes_it_back_when_it_is_dropped(
    bench: Workbench,
) -> None:
    bench.edit('continues="start", cost=train_cost', 'continues="start", cost=train_cost, requests=("publish",)')
    store = open_store(str(bench.prefix))
    digest = bench.plan()["second"].step.digest
    leases = Leases(store)
    leases.acquire(digest, "second", lambda: None, milestones=(20,))
    code, said = bench(
        "fork", "third", "--as", "branch", "--set", "start=second@15", "--set", "rate=3.0", "--reason", "a try"
    )
    assert code == 0 and "note" not in said
    assert re.search(r"^told +second, running on .*, to publish step 15$", said, re.M)
    (told,) = Requests(store).of(digest)
    assert (told.action, told.milestone, told.reason) == ("publish", 15, "a try")
    assert "MilestoneNotRequested" not in bench("plan", "--json")[1], "it is on its way there"
    bench("drop", "branch")
    assert Requests(store).of(digest) == []
    _, said = bench("fork", "second", "--as", "short", "--set", "until_step=17")
    assert re.search(r"^told +second, running on .*, to publish step 17$", said, re.M)
    leases.close()
    (told,) = Requests(store).of(digest)
    Requests(store).reply(told, "an attempt", "it will")
    bench("drop", "short")
    assert Requests(store).of(digest) == [told], "what was answered stays"


@pytest.mark.parametrize("change", ["start=first@10", "rate=3.0"])
def test_a_fork_from_where_the_recipe_stops_tells_nobody(bench: Workbench, change: str) -> None:
    assert bench("fork", "third", "--as", "branch", "--set", change)[0] == 0
    assert Requests(open_store(str(bench.prefix))).ids() == frozenset(), "that stop is wanted by every run"


def test_a_fork_that_makes_nothing_of_its_own_says_whose_output_it_has(bench: Workbench) -> None:
    code, said = bench("fork", "second", "--as", "short", "--set", "until_step=12")
    assert code == 0
    assert (
        "note       it makes nothing of its own: it is second up to step 12 of 20\n"
        "           if that is not meant: drop it, and fork with a setting that changes what is made, or a later "
        "until_step\n"
    ) in said
    bench("fork", "second", "--as", "branch", "--set", "rate=2.0")
    _, said = bench("fork", "second", "--as", "twin", "--set", "rate=2.0")
    assert "note       it makes nothing of its own: its output is that of branch\n" in said
    _, said = bench("fork", "branch", "--as", "twig", "--set", "until_step=18")
    assert "it is branch up to step 18 of 20\n" in said
    _, said = bench("fork", "count", "--as", "recount", "--set", "texts.web=text/code", "--set", "texts.code=text/web")
    assert "makes nothing" not in said


REMARKS = """

def remarks(graph):
    trainings = [step for step in graph.steps if isinstance(step.config, TrainConfig)]
    rare = [step for step in trainings if step.config.look_every_steps > step.config.until_step]
    return {step.name: [Remark("it never looks", {"look_every_steps": "2"})] for step in rare}
"""


def test_a_fork_that_changes_execution_alone_is_told_where_to_set_it_and_no_remark_to_fork_so_again(
    bench: Workbench,
) -> None:
    bench.edit(
        "from marin_dag.graph.step import Input,",
        "from marin_dag.plan.remarks import Remark\nfrom marin_dag.graph.step import Input, Runtime,",
    )
    bench.edit(
        "    rate: float = 0.5",
        "    rate: float = 0.5\n    look_every_steps: Runtime[int] = 5\n    label: Runtime[str] = ''",
    )
    bench.edit("\n\ndef build(", REMARKS + "\n\ndef build(")

    def notes(*changes: str) -> list[str]:
        options = [word for change in changes for word in ("--set", change)]
        _, said = bench("fork", "second", "--as", "branch", *options)
        bench("drop", "branch")
        lines = said.splitlines()
        begin = next((index for index, line in enumerate(lines) if line.startswith("note")), len(lines))
        return [line[11:] for line in lines[begin:] if line.startswith(("note  ", "     "))]

    whose, where, cure = notes("look_every_steps=5000", "label=a b")
    assert whose == "it makes nothing of its own: its output is that of second"
    assert where == (
        "look_every_steps and label change how it runs alone, and are set on second itself: "
        "--set second.look_every_steps=5000 --set 'second.label=a b'"
    )
    assert cure.startswith("if that is not meant: drop it, and fork with a setting that changes what is made")
    options = shlex.split(where.rpartition(": ")[2])
    assert "it never looks" in bench("--dry-run", *options)[1]
    assert notes("look_every_steps=5000", "rate=2.0") == [
        "it never looks",
        "if that is not meant: drop it, and fork with --set look_every_steps=2",
    ]
    assert len(notes("until_step=12")) == 2, "a stop is no execution"
    assert notes("until_step=12", "look_every_steps=3")[1].startswith(
        "look_every_steps changes how it runs alone, and is set"
    )


@pytest.mark.parametrize("changes", [["rate=2.0"], ["until_step=40"], ["rate=2.0", "until_step=12"]])
def test_a_fork_that_makes_something_of_its_own_says_nothing_of_the_kind(bench: Workbench, changes: list[str]) -> None:
    options = [word for change in changes for word in ("--set", change)]
    code, said = bench("fork", "second", "--as", "branch", *options)
    assert code == 0 and "makes nothing" not in said


def test_a_stop_that_is_moved_before_the_start_of_a_fork_is_not_the_stop_of_the_fork(bench: Workbench) -> None:
    """What a fork starts from is published by such a line, also where the fork is one of the very step."""
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


def test_a_step_that_is_another_s_training_runs_itself_where_the_other_is_left_out(bench: Workbench) -> None:
    bench.edit(
        "    return [third]",
        """    twin = first.then("twin", until_step=20, rate=0.25)
    last = twin.then("last", until_step=25, rate=0.5)
    return [third, last]""",
    )
    code, said = bench("--dry-run", "--until", "last")
    assert code == 2 and "blocked" not in said
    assert json.loads(bench("plan", "--json", "--until", "last")[1])["totals"]["will_run"] == 6
    assert bench("--until", "last")[0] == 0
    assert bench.verdicts("--until", "second")["second"] == "done"


def test_a_state_in_place_of_a_step_is_told_where_it_belongs(bench: Workbench) -> None:
    code, said = bench("fork", "second@15", "--as", "branch", "--set", "rate=2.0")
    assert (
        code == 1
        and "'second@15' is a state of 'second', and a step is named here; to start there, set start=second@15" in said
    )
