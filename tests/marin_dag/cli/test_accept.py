"""accept: changed code under one version stops a plan until the user accepts it or bumps the version."""

import json

import pytest

from tests.catalogue import check_message
from tests.marin_dag.workbench import Workbench

EDIT = ("return number * FACTOR", "return FACTOR * number")
OTHER_EDIT = ("FACTOR = 2", "FACTOR = 3")


@pytest.fixture
def drifted(bench: Workbench) -> Workbench:
    assert bench()[0] == 0
    bench.edit(*EDIT)
    return bench


def test_drift_stops_the_plan(drifted: Workbench) -> None:
    before = drifted.files()
    assert drifted("--set", "first.rate=1")[0] == 1
    assert drifted.files() == before
    assert drifted("--dry-run")[0] == 1


def test_accepted_drift_is_done_and_the_record_is_unchanged(drifted: Workbench) -> None:
    commits = drifted.files("commits")
    assert drifted("accept", "count", "--because", "a product commutes")[0] == 0
    assert set(drifted.verdicts().values()) == {"done"}
    assert drifted("--dry-run")[0] == drifted()[0] == 0
    assert drifted.files("commits") == commits
    assert "a product commutes" in drifted("why", "count")[1]


def test_dependents_of_a_drifted_step_are_blocked(drifted: Workbench) -> None:
    verdicts = drifted.verdicts()
    assert (verdicts["count"], verdicts["first"]) == ("drifted", "done")
    assert drifted.verdicts("--set", "first.rate=1")["first"] == "blocked"


def test_an_acceptance_records_author_time_reason_and_codes(drifted: Workbench) -> None:
    drifted("accept", "count", "--because", "a product commutes")
    (data,) = drifted.files("accepted").values()
    entry = json.loads(data)
    assert (entry["event"], entry["name"], entry["because"]) == ("accepted", "count", "a product commutes")
    assert entry["author"] and entry["created"] and entry["old_code"] != entry["new_code"]
    assert entry["definitions"] == ["workbench_recipe.weigh"]


def test_after_another_edit_the_step_is_drifted_again(drifted: Workbench) -> None:
    drifted("accept", "count", "--because", "a product commutes")
    drifted.edit(*OTHER_EDIT)
    assert drifted.verdicts()["count"] == "drifted"


def test_an_equivalence_holds_along_a_chain_and_backwards(drifted: Workbench) -> None:
    drifted("accept", "count", "--because", "a product commutes")
    drifted.edit(*OTHER_EDIT)
    drifted("accept", "count", "--because", "still twice")
    assert drifted.verdicts()["count"] == "done"
    drifted.edit(*reversed(OTHER_EDIT))
    assert drifted.verdicts()["count"] == "done"
    drifted.edit(*reversed(EDIT))
    assert drifted.verdicts()["count"] == "done"


def test_a_revoked_acceptance_is_drift_and_may_be_repeated(drifted: Workbench) -> None:
    drifted("accept", "count", "--because", "a product commutes")
    assert drifted("accept", "count", "--revoke", "--because", "not for strings")[0] == 0
    assert drifted.verdicts()["count"] == "drifted"
    assert len(drifted.files("accepted")) == 2
    drifted("accept", "count", "--because", "there are no strings")
    assert drifted.verdicts()["count"] == "done"


def test_an_acceptance_holds_for_its_identity_only(drifted: Workbench) -> None:
    drifted("--only", "text/*", "--set", "text/web.text=webb")
    drifted("accept", "count", "--because", "a product commutes")
    other = ("--set", "count.least=2")
    drifted.edit(*reversed(EDIT))
    assert drifted(*other, "--until", "count")[0] == 0
    drifted.edit(*EDIT)
    assert drifted.verdicts(*other)["count"] == "drifted"


def test_a_run_continues_with_accepted_code(bench: Workbench) -> None:
    bench()
    bench.edit("return Count(total=config.until_step)", "return Count(total=0 + config.until_step)")
    longer = ("--set", "third.until_step=40")
    assert bench.verdicts(*longer)["third"] == "drifted"
    assert bench("accept", "first", "second", "third", "--because", "adds nothing", *longer)[0] == 0
    assert len(bench.files("accepted")) == 3
    assert bench.verdicts(*longer)["third"] == "begun"
    assert bench(*longer)[0] == 0


def test_the_other_steps_run_when_the_selection_leaves_the_drifted_one_out(drifted: Workbench) -> None:
    assert drifted("--only", "text/*", "--set", "text/web.text=webb")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [["count"], ["text/web", "--because", "x"], ["count", "--revoke", "--because", "x"]],
    ids=["no reason", "not drifted", "nothing to revoke"],
)
def test_a_mistake_in_accepting_is_one_message_and_writes_nothing(drifted: Workbench, arguments: list[str]) -> None:
    before = drifted.files()
    code, text = drifted("accept", *arguments)
    assert code == 1
    check_message(text)
    assert drifted.files() == before


TRACKED_EDIT = ("return Count(total=len(config.text))", "return Count(total=1 * len(config.text))")


@pytest.fixture
def stale(bench: Workbench) -> Workbench:
    assert bench()[0] == 0
    bench.edit(*TRACKED_EDIT)
    assert set(bench.verdicts().values()) == {"stale"}
    return bench


def test_accepted_code_of_tracked_steps_is_done_and_so_is_what_reads_them(stale: Workbench) -> None:
    commits = stale.files("commits")
    assert stale("accept", "text/web", "--because", "the same number")[0] == 0
    assert stale.verdicts() | {"text/web": "done", "text/code": "stale", "count": "stale"} == stale.verdicts()
    assert stale("accept", "text/code", "--because", "the same number")[0] == 0
    assert set(stale.verdicts().values()) == {"done"}
    assert stale()[0] == 0 and stale.files("commits") == commits
    assert "the same number" in stale("why", "text/web")[1]
    assert stale("verify", "all")[0] == stale("show", "text/web")[0] == 0
    assert stale("gc", "--older-than-days", "0", "--yes")[0] == 0 and stale.files("commits") == commits
    assert stale("--set", "count.least=2")[0] == 0  # what is made now reads the accepted output


def test_accepted_code_of_a_tracked_step_is_revoked_and_holds_for_its_identity_only(stale: Workbench) -> None:
    stale("accept", "text/*", "--because", "the same number")
    assert stale.verdicts("--set", "text/web.text=webb")["text/web"] == "stale"
    stale.edit("return Count(total=1 * len", "return Count(total=2 * len")
    assert stale.verdicts()["text/web"] == "stale"
    stale.edit("return Count(total=2 * len", "return Count(total=1 * len")
    assert stale("accept", "text/web", "--revoke", "--because", "a mistake")[0] == 0
    assert stale.verdicts()["text/web"] == stale.verdicts()["count"] == "stale"
    assert stale.verdicts()["text/code"] == "done"


def test_a_forced_tracked_step_with_accepted_code_is_made_under_its_own_digest(stale: Workbench) -> None:
    stale("accept", "text/*", "--because", "the same number")
    commits = stale.files("commits")
    assert stale("--force", "text/web", "--until", "text/web")[0] == 0
    assert len(stale.files("commits")) == len(commits) + 1
    assert stale.verdicts()["text/web"] == "done"


def test_a_tracked_run_continues_with_accepted_code(bench: Workbench) -> None:
    bench.edit('policy="versioned",\n        version="7",', 'policy="tracked",')
    assert bench()[0] == 0
    bench.edit("return Count(total=config.until_step)", "return Count(total=0 + config.until_step)")
    assert bench("accept", "first", "--because", "adds nothing")[0] == 0
    assert bench("accept", "second", "--because", "adds nothing")[0] == 0
    assert set(bench.verdicts().values()) == {"done"}  # third is the same run as second
    longer = ("--set", "third.until_step=40")
    assert bench.verdicts(*longer)["third"] == "begun"
    assert bench(*longer)[0] == 0 and bench("verify", "third", *longer)[0] == 0
    assert bench.verdicts(*longer)["third"] == "done"
    assert bench("fork", "third", "--as", "branch", "--set", "rate=2.0")[0] == 0
    assert bench.verdicts() == dict.fromkeys(bench.verdicts().keys() - {"branch"}, "done") | {"branch": "missing"}
    assert bench()[0] == 0


def test_a_step_whose_input_changed_cannot_be_accepted(stale: Workbench) -> None:
    code, text = stale("accept", "count", "--because", "the same")
    assert code == 1
    check_message(text)
