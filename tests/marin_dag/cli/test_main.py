"""Command line: plans, runs, reasons, forks and messages, over a small pipeline in one process."""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from marin_dag.cli.main import main
from marin_dag.cli.session import program
from marin_dag.errors import UserError
from marin_dag.graph.resources import Gpu
from marin_dag.ledger.records import Records, record_path
from marin_dag.run.driver import Run
from marin_dag.store.prefix import open_store
from tests.marin_dag import toy
from tests.marin_dag.toy_steps import AddConfig, AskConfig, add, ask

ROOT = Path(__file__).parents[3]


class Toy:
    def __init__(self, prefix: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.prefix, self._capsys = prefix, capsys

    def __call__(self, *arguments: str) -> tuple[int, str]:
        self._capsys.readouterr()
        code = main(toy.build, name="toy", argv=["--prefix", str(self.prefix), "--backend", "local", *arguments])
        said = self._capsys.readouterr()
        return code, said.out + said.err

    def verdicts(self, *arguments: str) -> dict[str, str]:
        _, table = self("--dry-run", "--every-step", *arguments)
        lines = table.split("\n\n")[0].splitlines()
        return {line.split()[0]: line.split()[1] for line in lines if not line.startswith(" ")}

    def committed(self) -> set[str]:
        return set(Records(open_store(str(self.prefix))).labels())


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Toy:
    return Toy(tmp_path / "runs", capsys)


def stale(verdicts: dict[str, str]) -> set[str]:
    return {name for name, verdict in verdicts.items() if verdict == "stale"}


def test_a_dry_run_says_that_it_hands_nothing_to_a_cluster(run: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    code, said = run("--dry-run", "--detach")
    assert code == 2 and not run.prefix.exists()
    assert "nothing is handed over now; without --dry-run the driver goes to the cluster of RAY_ADDRESS, 10.0.0" in said
    assert re.search(r"^run it .* --detach", said, re.MULTILINE)
    monkeypatch.delenv("RAY_ADDRESS")
    assert "the cluster of RAY_ADDRESS, which is not set" in run("--dry-run", "--detach")[1]
    assert "handed over" not in run("--dry-run")[1]


@pytest.mark.parametrize(
    ("variables", "is_colored"),
    [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False), ({"TERM": "xterm", "NO_COLOR": "1"}, False)],
)
def test_a_plan_has_colors_where_the_terminal_wants_them(
    run: Toy, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], is_colored: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert ("\x1b[" in run("--dry-run")[1]) == is_colored


@pytest.mark.parametrize("name", ["", "..", "a/b", "toy@8b"])
def test_a_name_that_no_folder_of_forks_can_have_is_refused_as_what_it_is(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(toy.build, name=name, argv=["--dry-run", "--prefix", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert f": main(name={name!r}): the forks of a pipeline are kept in a folder of its name" in said
    assert not said.startswith(":")


@pytest.mark.parametrize("build", [lambda: [None], lambda parsed, other: [], []])
def test_what_is_no_function_of_the_arguments_is_refused_as_what_it_is(
    build: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(build, name="toy", argv=["--dry-run", "--prefix", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith("toy: main(build): it calls the recipe's function as build(arguments): ")


def test_who_closed_the_standard_output_gets_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert main(toy.build, name="toy", argv=["--dry-run", "--prefix", str(tmp_path)]) == 2
    sys.stdout.close()  # what stands in its place


def test_a_dry_run_writes_nothing_and_says_that_something_would_run(run: Toy) -> None:
    code, table = run("--dry-run")
    assert code == 2
    assert "text/* (4 steps)" in table
    assert "7 steps" not in table and "8 steps: 8 missing. 8 would run." in table
    assert "Estimated: 30 k tokens, 1.5 kB written in 3 of the 8 steps." in table
    assert not run.prefix.exists()


def test_the_help_of_a_command_has_its_own_options_and_runs_nothing(run: Toy) -> None:
    for arguments in (["gc", "--help"], ["--help", "gc"], ["gc", "--yes", "-h"]):
        code, page = run(*arguments)
        assert code == 0 and page.startswith("usage: ") and " gc [--yes]\n" in page
        assert "--older-than-days" in page and "--prefix" in page
        assert "--as NAME" not in page and "--dry-run" not in page
    code, page = run("--help")
    assert code == 0 and "--as NAME" in page and "--older-than-days" in page and "exit codes" in page
    code, said = run("gd", "--help")
    assert code == 1 and "there is no command 'gd'. Did you mean 'gc'?" in said
    assert not run.prefix.exists()


def test_help_is_given_without_what_a_recipe_requires(capsys: pytest.CaptureFixture[str]) -> None:
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--corpus", required=True, help="whose texts")

    def called(*arguments: str) -> int:
        return main(toy.build, add_arguments=add_arguments, name="toy", argv=list(arguments))

    for arguments in (["--help"], ["gc", "-h"]):
        assert called(*arguments) == 0
        assert "whose texts" in capsys.readouterr().out
    with pytest.raises(SystemExit) as refused:
        called("--dry-run")
    assert refused.value.code == 1 and "required: --corpus" in capsys.readouterr().err


def test_a_plan_says_in_full_which_prefix_it_speaks_of(
    run: Toy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"\n\noutputs in {run.prefix}, where nothing is made yet\nrun it     {program()}" in run("--dry-run")[1]
    assert run("--until", "count")[0] == 0
    assert f"\n\noutputs in {run.prefix}\nrun it     {program()}" in run("plan")[1]
    assert f"\n\noutputs in {run.prefix}\n" in run("plan", "--until", "count")[1], "where nothing would run"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(toy.build, name="toy", argv=["--dry-run"]) == 2
    assert f"outputs in {tmp_path / 'elsewhere' / 'runs'}, where nothing is made yet\n" in capsys.readouterr().out


def test_the_second_run_does_nothing_and_says_so(run: Toy) -> None:
    assert run()[0] == 0
    code, said = run()
    assert code == 0
    assert "nothing to do: 8 steps, all done" in said
    assert "phoenix: " in said
    assert run("--dry-run")[0] == 0


def test_that_nothing_is_to_do_is_said_of_a_long_chain_about_as_soon_as_its_plan(tmp_path: Path) -> None:
    steps: list[Any] = [toy.text("text", toy.TextConfig(text="x"))]
    for index in range(2_000):
        steps.append(toy.count(f"count/{index}", toy.CountConfig(texts={"x": steps[-1]})))
    for step in steps:
        open_store(str(tmp_path)).write(record_path(step.key), b"")

    def seconds(*options: str) -> float:
        began = time.monotonic()
        argv = ["--prefix", str(tmp_path), "--backend", "local", *options]
        assert main(lambda parsed: steps[-1:], name="toy", results={"none": ""}, argv=argv) == 0
        return time.monotonic() - began

    seconds("--dry-run")
    plan = seconds("--dry-run")
    assert seconds() < 6 * plan


def test_a_pipeline_adds_to_a_plan_that_is_shown_and_to_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--prefix", str(tmp_path / "runs"), "--backend", "local"]

    def more(session: Any, plan: Any) -> None:
        print(f"{session.pipeline}: {len(plan.will_run)} to come")

    assert main(toy.build, name="toy", argv=[*arguments, "--dry-run"], on_dry_run=more) == 2
    assert capsys.readouterr().out.rstrip().endswith("toy: 8 to come")
    assert main(toy.build, name="toy", argv=["plan", *arguments], on_dry_run=more) == 2
    assert capsys.readouterr().out.rstrip().endswith("toy: 8 to come")
    assert main(toy.build, name="toy", argv=arguments, on_dry_run=more) == 0
    assert "to come" not in capsys.readouterr().out


def test_a_run_counts_the_steps_that_the_plan_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [toy.text(name, toy.TextConfig(text=text)) for name, text in (("a", "one"), ("b", "one"), ("c", "two"))]
    arguments = ["--prefix", str(tmp_path), "--backend", "local"]
    said = []
    for _ in range(2):
        assert main(lambda parsed: texts, name="toy", argv=arguments) == 0
        said.append(capsys.readouterr().out.splitlines())
    assert said[0][0] == "2 steps to run; 1 more of the plan share the output of one of them"
    assert any("done (2/2)" in line for line in said[0])
    assert said[1][0] == "nothing to do: 3 steps, all done"


def test_a_run_ends_with_the_lines_of_its_summary_which_sees_what_the_steps_returned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []

    def summary(finished: Any) -> list[str]:
        seen.append((finished.seconds, {name: finished.result(name) for name in finished.steps}))
        return [f"made {len(finished.steps)}", f"not there: {finished.result('no such step')}"]

    for number in (0, 1):
        arguments = ["--prefix", str(tmp_path), "--backend", "local"]
        assert main(toy.build, name="toy", argv=arguments, summary=summary) == 0
        seconds, results = seen[number]
        assert f"  made {len(results)}\n  not there: None\n" in capsys.readouterr().out
        assert None not in results.values()
        assert (seconds is None) == (number == 1), "the second has nothing to do"


def test_what_a_pipeline_writes_after_a_run_is_written_however_it_ended_and_changes_no_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--prefix", str(tmp_path), "--backend", "local", "--until", "text/web"]
    refused: list[Exception] = []

    def after(session: Any, plan: Any) -> list[str]:
        if refused:
            raise refused[-1]
        return [f"{session.pipeline}: {len(plan.will_run)} ran"]

    def run(*more: str) -> tuple[int, str, str]:
        code = main(toy.build, name="toy", argv=[*arguments, *more], after_run=after)
        said = capsys.readouterr()
        return code, said.out, said.err

    def ends(name: str, value: object) -> None:
        monkeypatch.setattr(Run, name, value)

    assert "ran" not in run("--dry-run")[1]
    ends("run", lambda self: 1)
    assert run()[:2] == (1, "  toy: 1 ran\n")
    ends("was_interrupted", property(lambda self: True))
    assert run()[:2] == (130, "  toy: 1 ran\n")
    monkeypatch.undo()
    code, said, _ = run()
    assert code == 0 and said.endswith("  toy: 1 ran\n")
    assert run()[1].endswith("  toy: 0 ran\n")
    refused.append(UserError("no permission to write there"))
    code, _, err = run()
    assert (code, err) == (0, "toy: what is written after a run was not written: no permission to write there\n")
    refused.append(KeyError("a store's own error"))
    code, _, err = run()
    assert code == 0 and err.endswith('KeyError: "a store\'s own error"\n')


def test_the_last_lines_after_a_damaged_input_are_commands_that_help(run: Toy) -> None:
    run("--until", "text/web")
    made = Records(open_store(str(run.prefix)))
    (record,) = [made.get(key) for key in made.committed_keys()]
    damaged = run.prefix / record.output_path / record.manifest[0].path
    damaged.unlink()
    code, said = run("--until", "count")
    assert code == 1
    first, then = said.splitlines()[-2:]
    where = f"--prefix {run.prefix} --backend local"
    assert first.startswith(f"first:     {program()} ") and then.startswith(f"then:      {program()} ")
    assert first.endswith(f" --force text/web --until text/web {where}")
    assert then.endswith(f" {where} --until count")
    assert run("--force", "text/web", "--until", "text/web")[0] == 0
    assert run("--until", "count")[0] == 0


def test_one_changed_field_reruns_its_step_and_what_follows_and_nothing_else(run: Toy) -> None:
    run()
    assert stale(run.verdicts("--set", "ocelot.z_loss=3")) == {"ocelot", "phoenix"}
    _, table = run("--dry-run", "--set", "ocelot.z_loss=3")
    assert "z_loss: 0.0001 -> 3.0" in table
    _, said = run("--set", "ocelot.z_loss=3")
    assert {line.split()[1] for line in said.splitlines() if "started" in line} == {"ocelot", "phoenix"}
    assert run("--dry-run")[0] == 0


def test_a_root_cause_is_named_even_when_the_step_that_changed_is_done_by_now(run: Toy) -> None:
    run()
    change = ("--set", "text/web.text=webb")
    assert run(*change, "--until", "count")[0] == 0
    verdicts = run.verdicts(*change)
    assert verdicts["text/web"] == verdicts["count"] == "done"
    assert stale(verdicts) == {"kestrel", "ocelot", "phoenix"}
    _, why = run("why", "phoenix", *change)
    assert "because of phoenix <- count <- text/web" in why
    assert "text/web: text: 'web' -> 'webb'" in why


def test_a_later_stop_goes_on_and_costs_only_the_rest(run: Toy) -> None:
    run()
    code, table = run("--dry-run", "--set", "phoenix.until_step=50")
    assert code == 2
    assert "goes on from step 30 to 50" in table
    assert "Estimated: 20 k tokens, 500 B written" in table
    assert "Not done again: 10 k tokens" in table


def test_an_earlier_stop_says_what_is_nearest(run: Toy) -> None:
    run()
    code, table = run("--dry-run", "--set", "phoenix.start=kestrel@5")
    assert code == 1
    assert "input start: step 5 was not kept; the nearest is 10" in table
    assert "needs you  phoenix (blocked)" in table


def test_execution_settings_rerun_nothing(run: Toy) -> None:
    run()
    assert run("--dry-run", "--set", "text/web.workers=64")[0] == 0


def test_a_failed_step_is_reported_with_its_error_and_log_and_can_be_run_again(run: Toy) -> None:
    code, said = run("--set", "count.least=13")
    assert code == 1
    assert "least must not be 13" in said
    verdicts = run.verdicts("--set", "count.least=13")
    assert (verdicts["text/web"], verdicts["count"], verdicts["kestrel"]) == ("done", "failed", "missing")
    _, why = run("why", "count", "--set", "count.least=13")
    assert re.search(r"attempt \S+ failed \(1 so far\)", why)
    assert ".log" in why


def test_a_step_that_was_asked_for_is_shown_in_the_end_with_its_place(run: Toy):
    for said in (run("--until", "ocelot")[1], run("--until", "ocelot")[1]):
        assert re.search(rf"^  ocelot: {re.escape(str(run.prefix))}/outputs/ocelot-\w+/", said, re.MULTILINE)
        assert "  kestrel: " not in said


def test_what_is_not_selected_blocks_what_needs_it(run: Toy) -> None:
    code, table = run("--dry-run", "--only", "phoenix")
    assert code == 1
    assert "phoenix  blocked   needs ocelot (not selected), count (not selected)" in table
    assert "1 step (7 more not selected): 1 blocked. Nothing would run." in table


def test_forced_steps_run_again_and_must_give_the_same_output(run: Toy) -> None:
    run()
    code, said = run("--force", "text/web")
    assert code == 0
    assert "again, with the same output" in said


def test_a_fork_lives_in_the_store_until_it_is_dropped(run: Toy) -> None:
    run()
    code, said = run("fork", "ocelot", "--as", "spoonbill", "--set", "z_loss=1e-3", "--reason", "norms grow")
    assert code == 0
    assert "--until spoonbill" in said
    verdicts = run.verdicts()
    assert verdicts.pop("spoonbill") == "missing"
    assert set(verdicts.values()) == {"done"}
    assert run("--until", "spoonbill")[0] == 0
    assert "spoonbill" in run.committed()
    _, listed = run("ls")
    assert re.search(r"fork spoonbill of ocelot with z_loss=1e-3, by \S+, .*: norms grow", listed)
    assert run("fork", "spoonbill", "--as", "deeper", "--set", "until_step=40")[0] == 0
    code, said = run("drop", "spoonbill")
    assert (code, "deeper is a fork of it; drop that first" in said) == (1, True)
    assert run("drop", "deeper")[0] == run("drop", "spoonbill")[0] == 0
    assert "spoonbill" not in run.verdicts()


def test_a_fork_follows_an_override_of_its_base(run: Toy) -> None:
    run("fork", "ocelot", "--as", "spoonbill", "--set", "until_step=25")
    _, why = run("why", "spoonbill", "--set", "ocelot.z_loss=5")
    digest = re.search(r"digest +(\w+)", why)
    _, other = run("why", "ocelot", "--set", "ocelot.z_loss=5")
    assert digest is not None and digest[1] in other


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "phoenix.zloss=1"], "toy: phoenix.zloss: TrainConfig has no field 'zloss'. Did you mean 'z_loss'?"),
        (["--set", "phenix.z_loss=1"], "there is no step 'phenix'. Did you mean 'phoenix'?"),
        (["--until", "phenix"], "there is no step 'phenix'. Did you mean 'phoenix'?"),
        (["--from", "web"], "there is no step 'web'. Did you mean 'text/web'?"),
        (["--force", "phenix"], "there is no step 'phenix'."),
        (["--only", "nothing*"], "--only 'nothing*' matches no step."),
        (["--set", "count.least=-1"], "count: least is -1; a count is never below 0."),
        (["why"], "why: name a step"),
        (["adopt"], "adopt PATH --as NAME`."),
        (["why", "phenix"], "there is no step 'phenix'. Did you mean 'phoenix'?"),
        (["fork", "ocelot", "--set", "z_loss=1"], "fork ocelot: say what to call it: --as NAME."),
        (["fork", "ocelot", "--as", "x"], "fork ocelot --as x: nothing changes; add --set FIELD=VALUE."),
        (["fork", "ocelot", "--as", "x", "--set", "z=1"], "x.z: TrainConfig has no field 'z'."),
        (["fork", "ocelot", "--as", "phoenix", "--set", "z_loss=1"], "there is a step of that name already"),
        (["fork", "ocelot", "--as", "a b", "--set", "z_loss=1"], "use letters, digits"),
        (["--set", "phoenix.until_step=true"], "phoenix.until_step: True is refused: a truth value is no number"),
        (["--until", "kestrel", "--from", "phoenix"], "--until kestrel --from phoenix: no step is selected by all"),
        (["--dry-run", "--until", "kestrel", "--from", "phoenix"], "no step is selected by all of these"),
        (["drop", "x"], "drop x: there is no such fork. Forks: none."),
        (["fork", "ocelot", "--as", "x" * 101, "--set", "z_loss=1"], "101 characters; use at most 100"),
        (["fork", "ocelot", "--as", "x", "--set", "z_loss=0.0001"], "z_loss is 0.0001 there already"),
        (["--set", "phoenix.z_loss=1", "--set", "phoenix.z_loss=2"], "set twice, to 1 and to 2; give it once"),
        (["--force", "phoenix", "--until", "kestrel"], "--force phoenix: --until kestrel leaves it out"),
        (["--dry-run", "--because", "x"], "--because: a run does not take it; it is an option of `accept`, `pin`."),
        (["why", "phoenix", "--yes"], "--yes: `why` does not take it; it is an option of `gc`. Leave it out."),
        (
            ["gc", "--only=phoenix"],
            "--only: `gc` does not take it; it is an option of a run, `plan`, `why`, `ls`, `copy`. Leave",
        ),
        (["gc", "--dry-run"], "--dry-run: `gc` does not take it; without --yes it only shows what would go; leave"),
        (["bump", "phoenix", "--dry-run"], "it only shows what to edit; leave --dry-run out."),
        (["adopt", "x", "--dry-run"], "--dry-run: `adopt` does not take it; it is an option of a run, `plan`, `copy`."),
        (["adopt", "x", "--json"], "it is an option of a run, `plan`, `show`, `ls`. Leave it out."),
        (["drop", "x", "--set", "a.b=1"], "it is an option of a run, `fork`, `plan`, `why`, `diff`, `show` and "),
        (["whi", "phoenix"], "toy: there is no command 'whi'. Did you mean 'why'? `"),
        (["status"], "toy: there is no command 'status'. Did you mean 'plan'? `"),
        (["run"], "toy: there is no command 'run'. What is not done is run by `"),
        (
            ["--dry-run", "--set", "phoenix.z_loss", "1"],
            "--set phoenix.z_loss 1: write field and value as one word:",
        ),
        (["--set", "phoenix", "z_loss=1"], "write field and value as one word: --set phoenix.z_loss=1."),
        (["why", "phoenix", "--set", "phoenix.z_loss", "1"], "as one word: --set phoenix.z_loss=1."),
        (["ls", "kest"], "ls 'kest' matches no step. '*kest*' matches 1."),
        (["ls", "est*"], "ls 'est*' matches no step. '*est*' matches 1."),
        (["ls", "pheonix"], "ls 'pheonix' matches no step. Did you mean 'phoenix'?"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_1(run: Toy, arguments: list[str], message: str) -> None:
    code, said = run(*arguments)
    assert code == 1
    assert message in said
    assert "Traceback" not in said


@pytest.mark.parametrize("command", ["ls", "why phoenix", "diff phoenix", "show phoenix", "log phoenix"])
def test_what_only_looks_says_so_to_whoever_asks_for_a_dry_run(run: Toy, command: str) -> None:
    code, said = run(*command.split(), "--dry-run")
    advice = "it only looks, and starts and writes nothing; leave --dry-run out."
    assert (code, said) == (1, f"toy: --dry-run: `{command.split()[0]}` does not take it; {advice}\n")


def test_a_fork_that_cannot_be_made_sends_nobody_to_drop_it(run: Toy) -> None:
    _, said = run("fork", "ocelot", "--as", "x", "--set", "z=1")
    assert "drop" not in said
    run("fork", "ocelot", "--as", "x", "--set", "z_loss=1")
    (path,) = (run.prefix / "names").rglob("x.json")
    path.write_text(path.read_text().replace("z_loss", "z"))
    assert "`drop x` forgets it" in run("--dry-run")[1]
    path.write_text("{")
    assert "`drop x` forgets it" in run("--dry-run")[1]
    assert run("drop", "x")[0] == 0
    assert run("--dry-run")[0] == 2


def test_a_fork_that_no_identity_is_made_of_is_not_kept(run: Toy) -> None:
    code, said = run("fork", "ocelot", "--as", "x", "--set", "z_loss=1e400")
    assert (code, "x.z_loss: float inf has no canonical form" in said) == (1, True)
    assert "is a fork of" not in said and "drop" not in said
    assert "x" not in run.verdicts()
    assert not (run.prefix / "names").exists()


@pytest.mark.parametrize("command", ["ls", "--dry-run", "why ocelot", "fork ocelot --as y --set z_loss=2"])
def test_a_kept_fork_that_no_identity_is_made_of_is_named_with_what_forgets_it(run: Toy, command: str) -> None:
    run("fork", "ocelot", "--as", "x", "--set", "z_loss=1")
    (path,) = (run.prefix / "names").rglob("x.json")
    path.write_text(path.read_text().replace('"z_loss": "1"', '"z_loss": "1e400"'))
    code, said = run(*command.split())
    assert (code, "x.z_loss: float inf has no canonical form" in said) == (1, True)
    assert "(fork 'x' of 'ocelot'; `drop x` forgets it)" in said
    assert run("drop", "x")[0] == 0
    assert run("ls")[0] == 0


def test_a_kept_fork_that_todays_checks_refuse_is_named_with_what_forgets_it(run: Toy) -> None:
    run("fork", "count", "--as", "x", "--set", "least=2")
    (path,) = (run.prefix / "names").rglob("x.json")
    path.write_text(path.read_text().replace('"least": "2"', '"least": "-1"'))
    code, said = run("--dry-run")
    assert (code, said) == (
        1,
        "toy: x: least is -1; a count is never below 0.\nx is a fork of count: `drop x` forgets it.\n",
    )
    assert run("page")[1] == said
    assert run("why", "phoenix")[0] == run("ls", "--until", "phoenix")[0] == 0
    path.write_text(path.read_text().replace('"least": "-1"', '"least": "2"'))
    run("fork", "count", "--as", "y", "--set", "texts={}")
    _, said = run("--dry-run", "--set", "count.least=-1")
    assert "count, y: least is -1" in said and "drop" not in said, "the mistake is in the override, and not in the fork"


def test_a_line_to_paste_has_only_options_that_its_command_takes(run: Toy) -> None:
    assert run()[0] == 0
    _, said = run("--dry-run", "--every-step", "--set", "phoenix.z_loss=1", "--until", "phoenix")
    (line,) = (line for line in said.splitlines() if line.startswith("ask why"))
    words = line.split()
    assert "--set phoenix.z_loss=1" in line and "--every-step" not in line
    assert run(*words[words.index("why", 2) :])[0] == 0


def test_a_line_to_run_a_step_that_is_called_like_a_command_keeps_the_options_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = toy.text("show", toy.TextConfig(text="a"))
    steps = [toy.count("count", toy.CountConfig(texts={"a": text}))]
    argv = ["--prefix", str(tmp_path / "runs"), "--backend", "local"]
    assert main(lambda parsed: [text], name="toy", argv=argv) == 0
    next((tmp_path / "runs").rglob("text.txt")).unlink()
    argv += ["--copy-to", str(tmp_path / "copies")]
    assert main(lambda parsed: steps, name="toy", argv=argv) == 1
    (line, _) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("first: "))
    assert line.endswith(f"--force show --until show {' '.join(argv)}")


def test_a_config_that_is_not_selected_may_be_one_that_cannot_work(run: Toy) -> None:
    assert run("--dry-run", "--set", "count.least=-1", "--until", "text/web")[0] == 2
    code, said = run("--dry-run", "--set", "count.least=-1")
    assert (code, "count: least is -1" in said) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dryrun"], "there is no option --dryrun. Did you mean '--dry-run'?"),
        (["--prefx", "runs2", "--dry-run"], "there is no option --prefx. Did you mean '--prefix'?"),
        (["why", "phoenix", "--untill=count"], "there is no option --untill. Did you mean '--until'?"),
        (["-q"], "there is no option -q."),
        (["--dry-run", "--until"], "argument --until: expected one argument"),
    ],
)
def test_a_mistake_in_the_arguments_is_named_and_is_an_error_like_any_other(
    arguments: list[str], message: str, run: Toy, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        run(*arguments)
    assert end.value.code == 1, "2 says of a dry run that something would run"
    assert f"error: {message}" in capsys.readouterr().err
    assert not run.prefix.exists()


@pytest.mark.parametrize("reason", ["- see the notes", "-3", "--really, they are the same"])
def test_a_value_may_begin_with_a_dash_where_it_can_be_no_option(reason: str, run: Toy) -> None:
    assert run("accept", "phoenix", "--because", reason)[1].startswith("toy: ")


def test_an_edited_function_is_named_and_a_comment_changes_nothing(tmp_path: Path) -> None:
    script = tmp_path / "tiny.py"
    source = (ROOT / "tests/marin_dag/toy.py").read_text()

    def call(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, str(script), "--backend", "local", "--prefix", str(tmp_path / "runs"), *arguments]
        environment = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
        return done.returncode, done.stdout + done.stderr

    script.write_text(source)
    assert call()[0] == 0
    script.write_text(source.replace("return count * FACTOR", "# said twice\n    return count * FACTOR"))
    assert call("--dry-run")[0] == 0
    script.write_text(source.replace("FACTOR = 2", "FACTOR = 3"))
    code, table = call("--dry-run")
    assert code == 2
    assert "text/* (4 steps)  stale     code changed tiny.FACTOR" in table
    assert re.search(r"phoenix +stale +code changed tiny.FACTOR, in text/\w+, text/\w+", table)


def test_the_environment_of_another_checkout_is_refused_and_a_recipe_of_one_s_own_is_not(tmp_path: Path) -> None:
    script = tmp_path / "another/pipelines/toy.py"
    script.parent.mkdir(parents=True)
    script.write_text(
        "import sys\nfrom marin_dag.cli.main import main\nfrom tests.marin_dag import toy\n"
        "sys.exit(main(toy.build, name='toy'))\n"
    )

    def plan(path: Path) -> tuple[int, str]:
        command = [sys.executable, str(script), "--dry-run", "--prefix", str(tmp_path / "runs")]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(path)})
        return done.returncode, done.stderr

    assert plan(ROOT) == (2, "")
    package = tmp_path / "another/marin_dag"
    package.mkdir()
    (package / "__init__.py").write_text("")
    code, said = plan(ROOT)
    assert (
        code == 1
        and f"{script} lies in the checkout {tmp_path / 'another'}, and this Python imports the code of {ROOT}." in said
    )
    assert f"Run it by {tmp_path / 'another'}/.venv/bin/python" in said and f"move it out of {tmp_path}" in said


def test_who_reads_no_more_is_not_told_that_nothing_would_run(tmp_path: Path) -> None:
    options = ["tests/marin_dag/toy.py", "--dry-run", "--prefix", str(tmp_path)]
    with subprocess.Popen([sys.executable, *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as plan:
        assert plan.stdout is not None and plan.stderr is not None
        plan.stdout.close()
        assert plan.stderr.read() == b""
    assert plan.returncode == 141


def test_an_argument_that_is_no_text_is_refused(run: Toy) -> None:
    code, said = run("--set", "phoenix.text=\udcff")
    assert code == 1 and r"the argument 'phoenix.text=\udcff' is not UTF-8" in said


def test_a_terminal_without_utf_8_ends_nothing(tmp_path: Path) -> None:
    program = (
        "from marin_dag.cli.main import main; from tests.marin_dag.toy import build; exit(main(build, name='toy'))"
    )
    command = [sys.executable, "-c", program, "--dry-run", "--prefix", str(tmp_path / "läufe")]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (2, "") and r"l\xe4ufe, where nothing is made yet" in done.stdout


def test_a_reason_is_one_whole_line_in_a_pipe(run: Toy) -> None:
    run()
    _, table = run("--dry-run", "--set", f"text/web.text={'x' * 300}", "--set", "count.least=2")
    assert f"  stale     text: 'web' -> '{'x' * 300}'\n" in table
    assert "…" not in table


def test_interrupting_ends_with_130(run: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(toy, "build", interrupted)
    assert run("--dry-run")[0] == 130


def test_the_lines_to_paste_name_the_python_that_runs_where_the_shell_finds_another(
    run: Toy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name in ("python", "python3"):
        (tmp_path / ".venv/bin" / name).symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv/bin/python3"))
    assert "\nrun it     .venv/bin/python3 " in run("--dry-run")[1]
    monkeypatch.setenv("PATH", str(tmp_path / ".venv/bin"))
    assert "\nrun it     python " in run("--dry-run")[1], "its environment is activated"


def test_a_gpu_that_ray_knows_by_another_name_is_told_by_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    def dry_run(kind: str) -> str:
        texts = [toy.text(name, toy.TextConfig(text=name), resources=Gpu(kind, 8)) for name in "ab"]
        main(lambda parsed: texts, name="toy", argv=["--dry-run"])
        return capsys.readouterr().out

    assert "a, b: no NVIDIA GPU is called 'h200' by Ray. Did you mean 'H200'? Where no machine" in dry_run("h200")
    assert "by Ray" not in dry_run("H200")


def test_what_the_scheduler_gives_reaches_the_steps_and_no_digest_and_nonsense_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        asked = ask("asks", AskConfig(sum=add("sum", AddConfig())))
        argv = ["--prefix", str(tmp_path / "runs"), "--backend", "local", *arguments]
        code = main(lambda parsed: [asked], name="toy", argv=argv)
        said = capsys.readouterr()
        return code, said.out + said.err

    code, said = run("--notice", "600", "--dry-run")
    assert code == 2 and re.search(r"^run it .* --notice 600$", said, re.MULTILINE)
    for nonsense in ("soon", "0", "-1", "inf", "nan"):
        with pytest.raises(SystemExit):
            run(f"--notice={nonsense}")
        assert f"{nonsense!r} is no time; write seconds, such as 600" in capsys.readouterr().err
    code, said = run("--notice", "600")
    assert code == 0 and "notice 600.0\n" in said
    code, said = run("--dry-run")
    assert code == 0, "what the scheduler gives is in no digest"
