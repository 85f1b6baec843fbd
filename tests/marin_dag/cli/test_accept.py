"""Drift: other code under one version stops a plan, until a person accepts it or bumps the version."""

import json

import pytest

from tests.marin_dag.workbench import Workbench

EDIT = ("return number * FACTOR", "return FACTOR * number")
OTHER_EDIT = ("FACTOR = 2", "FACTOR = 3")


@pytest.fixture
def drifted(bench: Workbench) -> Workbench:
    assert bench()[0] == 0
    bench.edit(*EDIT)
    return bench


def test_drift_stops_the_plan_and_shows_both_ways_out(drifted: Workbench) -> None:
    before = drifted.files()
    code, said = drifted("--set", "first.rate=1")
    assert code == 1
    assert "count (drifted)" in said
    assert drifted.files() == before, "nothing of the rest may run"
    code, table = drifted("--dry-run")
    assert code == 1
    assert "the code changed under version 1: code changed workbench_recipe.weigh" in table
    assert "accept count --because" in table and "bump count" in table


def test_accepted_drift_is_done_and_the_record_is_what_it_was(drifted: Workbench) -> None:
    commits = drifted.files("commits")
    code, said = drifted("accept", "count", "--because", "a product commutes")
    assert code == 0
    assert "count: accepted, code changed workbench_recipe.weigh" in said
    assert set(drifted.verdicts().values()) == {"done"}
    assert drifted("--dry-run")[0] == drifted()[0] == 0
    assert drifted.files("commits") == commits
    _, why = drifted("why", "count")
    assert "count is done" in why
    assert "a product commutes" in why and "workbench_recipe.weigh" in why


def test_what_needs_a_drifted_step_is_blocked_and_what_is_done_stays_done(drifted: Workbench) -> None:
    verdicts = drifted.verdicts()
    assert (verdicts["count"], verdicts["first"]) == ("drifted", "done")
    code, table = drifted("--dry-run", "--set", "first.rate=1")
    assert (code, "needs count (drifted)" in table) == (1, True)
    assert "bump count to make it again" in drifted("why", "count")[1]


def test_an_acceptance_says_who_when_why_and_which_codes(drifted: Workbench) -> None:
    drifted("accept", "count", "--because", "a product commutes")
    (data,) = drifted.files("accepted").values()
    said = json.loads(data)
    assert (said["event"], said["name"], said["because"]) == ("accepted", "count", "a product commutes")
    assert said["author"] and said["created"] and said["old_code"] != said["new_code"]
    assert said["definitions"] == ["workbench_recipe.weigh"]


def test_after_another_edit_the_step_is_drifted_again(drifted: Workbench) -> None:
    drifted("accept", "count", "--because", "a product commutes")
    drifted.edit(*OTHER_EDIT)
    assert drifted.verdicts()["count"] == "drifted"


def test_an_equivalence_holds_along_a_chain_and_backwards(drifted: Workbench) -> None:
    drifted("accept", "count", "--because", "a product commutes")
    drifted.edit(*OTHER_EDIT)
    drifted("accept", "count", "--because", "still twice, whatever it says")
    assert drifted.verdicts()["count"] == "done"
    drifted.edit(*reversed(OTHER_EDIT))
    assert drifted.verdicts()["count"] == "done"
    drifted.edit(*reversed(EDIT))
    assert drifted.verdicts()["count"] == "done"


def test_a_revoked_acceptance_is_drift_again_and_may_be_given_again(drifted: Workbench) -> None:
    drifted("accept", "count", "--because", "a product commutes")
    code, said = drifted("accept", "count", "--revoke", "--because", "not for strings")
    assert code == 0 and "no longer accepted" in said
    assert drifted.verdicts()["count"] == "drifted"
    assert len(drifted.files("accepted")) == 2, "both stay, for those who read the history"
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


def test_a_trajectory_goes_on_with_code_that_was_accepted(bench: Workbench) -> None:
    bench()
    bench.edit("return Count(total=config.until_step)", "return Count(total=0 + config.until_step)")
    longer = ("--set", "third.until_step=40")
    assert bench.verdicts(*longer)["third"] == "drifted"
    code, said = bench("accept", "first", "second", "third", "--because", "adds nothing", *longer)
    assert (code, said.count("accepted")) == (0, 3)
    assert bench.verdicts(*longer)["third"] == "begun"
    assert bench(*longer)[0] == 0


def test_the_other_steps_run_when_the_selection_leaves_the_drifted_one_out(drifted: Workbench) -> None:
    assert drifted("--only", "text/*", "--set", "text/web.text=webb")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["accept", "count"], "say why, for those who find it later: --because"),
        (["accept", "text/web", "--because", "x"], "accept text/web: it is done, not drifted; there is nothing"),
        (["accept", "cuont", "--because", "x"], "accept 'cuont' matches no step. Did you mean 'count'?"),
        (["accept", "count", "--revoke", "--because", "x"], "accept count --revoke: nothing was accepted for it"),
        (["accept", "--because", "x"], "accept: give a step"),
    ],
)
def test_a_mistake_in_accepting_is_one_message_and_writes_nothing(
    drifted: Workbench, arguments: list[str], message: str
) -> None:
    before = drifted.files()
    code, said = drifted(*arguments)
    assert (code, message in said) == (1, True), said
    assert drifted.files() == before


def test_a_tracked_step_cannot_be_accepted_because_its_code_is_its_identity(bench: Workbench) -> None:
    bench()
    bench.edit("return Count(total=len(config.text))", "return Count(total=1 * len(config.text))")
    code, said = bench("accept", "text/web", "--because", "the same")
    assert code == 1
    assert "stale, not drifted: its code is part of its identity (policy tracked)" in said
