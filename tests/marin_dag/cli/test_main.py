"""Command line: plans, runs, reasons, forks and messages of a small pipeline in one process."""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from marin_dag.cli import session
from marin_dag.cli.main import main
from marin_dag.errors import UserError
from marin_dag.graph.step import Step
from marin_dag.ledger.checked_json import checked_json
from marin_dag.ledger.records import Records, record_path
from marin_dag.run.driver import Run
from marin_dag.store.prefix import open_store
from tests.catalogue import check_message
from tests.marin_dag import toy
from tests.marin_dag.toy_steps import AddConfig, AskConfig, WarnConfig, add, ask, warn

ROOT = Path(__file__).parents[3]


class Toy:
    def __init__(self, prefix: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.prefix, self._capsys = prefix, capsys

    def __call__(self, *arguments: str) -> tuple[int, str]:
        self._capsys.readouterr()
        code = main(toy.build, name="toy", argv=["--prefix", str(self.prefix), "--backend", "local", *arguments])
        printed = self._capsys.readouterr()
        return code, printed.out + printed.err

    def plan(self, *arguments: str) -> dict[str, Any]:
        """Return the JSON of a dry run."""
        document: dict[str, Any] = json.loads(self("--dry-run", "--json", *arguments)[1])
        return document

    def commands(self, *arguments: str) -> dict[str, str]:
        """Return the commands that a dry run proposes."""
        return {each["what"]: each["command"] for each in self.plan(*arguments)["commands"]}

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


def test_warnings_about_outputs_end_a_run_and_stand_in_each_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def build(arguments: object) -> list[Step[Any]]:
        return [warn("filter", WarnConfig(text="drops 77 % of the bytes", samples=("one", "two"), file="text.txt"))]

    arguments = ["--prefix", str(tmp_path / "runs"), "--backend", "local"]
    assert main(build, name="toy", argv=arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("Warnings about outputs"))
    check_message("\n".join(lines[first : first + 5]))
    assert lines[first + 5 : first + 7] == ["", "Results:"] and lines[first + 7].startswith("  filter: "), lines
    assert main(build, name="toy", argv=[*arguments, "--dry-run"]) == 0
    check_message(capsys.readouterr().out.splitlines()[0])
    assert main(build, name="toy", argv=["show", "filter", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[lines.index("warning") + 1].strip() == "drops 77 % of the bytes"


@pytest.mark.parametrize("is_shown_after", [False, True])
def test_a_step_has_one_address_at_the_end_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_shown_after: bool
) -> None:
    argv = ["--prefix", str(tmp_path), "--backend", "local", "--until", "text/web"]
    kinds = (toy.text,) if is_shown_after else ()
    for _ in range(2):  # a run, and one with nothing to do
        assert main(toy.build, name="toy", argv=argv, after_run=lambda *_: ["a page"], shown_after_run=kinds) == 0
        lines = capsys.readouterr().out.splitlines()
        assert sum(line.startswith("  text/web: ") for line in lines) == (not is_shown_after)
        assert lines[-1] == "  a page"


def test_a_name_that_a_plan_prints_for_several_steps_selects_them(run: Toy) -> None:
    row = run("--dry-run")[1].splitlines()[0]
    name, _, num_steps = row.partition(" (")
    assert name == "text/*" and num_steps.startswith("4 ")
    code, output = run("--until", name)
    assert code == 0 and run.committed() == {"text/web", "text/code", "text/math", "text/books"}
    assert all(f"  {step}: " in output for step in run.committed()), "each is a result of this run"
    code, output = run("--force", name, "--until", name)
    assert code == 0 and len([line for line in output.splitlines() if "same output" in line]) == 4


def test_a_dry_run_with_detach_submits_nothing_and_names_the_cluster(run: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    code, output = run("--dry-run", "--detach")
    assert code == 2 and not run.prefix.exists()
    check_message(output)
    monkeypatch.delenv("RAY_ADDRESS")
    check_message(run("--dry-run", "--detach")[1])
    assert run.commands("--detach")["run it"].endswith(" --detach")


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
def test_a_pipeline_name_must_be_usable_as_a_folder(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(toy.build, name=name, argv=["--dry-run", "--prefix", str(tmp_path)]) == 1
    check_message(capsys.readouterr().err)


@pytest.mark.parametrize("build", [lambda: [None], lambda parsed, other: [], []], ids=["none", "two", "no function"])
def test_build_must_be_a_function_of_the_arguments(
    build: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(build, name="toy", argv=["--dry-run", "--prefix", str(tmp_path)]) == 1
    check_message(capsys.readouterr().err)


def test_an_option_that_main_does_not_have_is_an_error_of_python() -> None:
    with pytest.raises(TypeError):
        main(toy.build, name="toy", argv=["--dry-run"], remarks=None)


def test_a_closed_standard_output_leaves_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert main(toy.build, name="toy", argv=["--dry-run", "--prefix", str(tmp_path)]) == 2
    sys.stdout.close()  # what stands in its place


def test_a_dry_run_writes_nothing_and_exits_with_2(run: Toy) -> None:
    code, table = run("--dry-run")
    assert code == 2
    check_message(table)
    assert not run.prefix.exists()


def test_the_help_of_a_command_lists_its_options_and_runs_nothing(run: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    pages = {run(*arguments) for arguments in (["gc", "--help"], ["--help", "gc"], ["gc", "--yes", "-h"])}
    ((code, page),) = pages
    assert code == 0
    assert {"--older-than-days", "--prefix"} <= options_in(page) and options_in(page).isdisjoint({"--as", "--dry-run"})
    code, page = run("--help")
    assert code == 0 and {"--dry-run", "--only"} <= options_in(page) and "--older-than-days" not in options_in(page)
    check_message(page)
    assert run("gd", "--help")[0] == 1
    assert not run.prefix.exists()


def options_in(page: str) -> set[str]:
    return set(re.findall(r"--[a-z-]+", page))


def test_help_needs_no_required_option(capsys: pytest.CaptureFixture[str]) -> None:
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--corpus", required=True, help="whose texts")

    def call(*arguments: str) -> int:
        return main(toy.build, add_arguments=add_arguments, name="toy", argv=list(arguments))

    for arguments in (["--help"], ["gc", "-h"]):
        assert call(*arguments) == 0
        assert "--corpus" in options_in(capsys.readouterr().out)
    assert call("--dry-run") == 1
    check_message(capsys.readouterr().err)


def test_options_may_stand_before_and_after_the_command(run: Toy) -> None:
    run("--until", "count")
    (one,) = {
        run(*arguments.split())
        for arguments in (
            "why phoenix --set phoenix.z_loss=1 --until count",
            "--set phoenix.z_loss=1 why --until count phoenix",
            "--set=phoenix.z_loss=1 --until count why phoenix",
        )
    }
    assert one[0] == 0
    both = json.loads(run("--set", "count.least=3", "ls", "text/*", "--json", "count", "--set", "text/web.text=x")[1])
    verdicts = {step["name"]: step["verdict"] for step in both["steps"]}
    assert (verdicts["count"], verdicts["text/web"], len(verdicts)) == ("stale", "stale", 5)


def test_a_plan_names_its_prefix_in_full(
    run: Toy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.plan()["prefix"] == str(run.prefix)
    assert run("--until", "count")[0] == 0
    check_message(run("plan", "--until", "count")[1])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(toy.build, name="toy", argv=["--dry-run", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["prefix"] == str(tmp_path / "elsewhere" / "runs")


def test_a_second_run_does_nothing(run: Toy) -> None:
    assert run()[0] == 0
    code, output = run()
    assert code == 0
    check_message(output.splitlines()[0])
    assert run("--dry-run")[0] == 0


def test_a_run_with_nothing_to_do_takes_about_as_long_as_its_plan(tmp_path: Path) -> None:
    steps: list[Any] = [toy.text("text", toy.TextConfig(text="x"))]
    for index in range(2_000):
        steps.append(toy.count(f"count/{index}", toy.CountConfig(texts={"x": steps[-1]})))
    for step in steps:
        open_store(str(tmp_path)).write(record_path(step.key), checked_json(toy.TextConfig(text="no record")))

    def seconds(*options: str) -> float:
        began = time.monotonic()
        argv = ["--prefix", str(tmp_path), "--backend", "local", *options]
        assert main(lambda parsed: steps[-1:], name="toy", results={"none": ""}, argv=argv) == 0
        return time.monotonic() - began

    seconds("--dry-run")
    plan = seconds("--dry-run")
    assert seconds() < 6 * plan


def test_on_dry_run_is_called_for_plans_and_not_for_runs(tmp_path: Path) -> None:
    arguments = ["--prefix", str(tmp_path / "runs"), "--backend", "local"]

    calls = []

    def more(session: Any, plan: Any) -> None:
        calls.append((session.pipeline, len(plan.will_run)))

    assert main(toy.build, name="toy", argv=[*arguments, "--dry-run"], on_dry_run=more) == 2
    assert main(toy.build, name="toy", argv=["plan", *arguments], on_dry_run=more) == 2
    assert calls == [("toy", 8)] * 2
    assert main(toy.build, name="toy", argv=arguments, on_dry_run=more) == 0
    assert len(calls) == 2


def test_a_run_explains_why_it_counts_fewer_steps_than_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [toy.text(name, toy.TextConfig(text=text)) for name, text in (("a", "one"), ("b", "one"), ("c", "two"))]
    arguments = ["--prefix", str(tmp_path), "--backend", "local"]
    for _ in range(2):
        assert main(lambda parsed: texts, name="toy", argv=arguments) == 0
        check_message(capsys.readouterr().out.splitlines()[0])


def test_a_run_ends_with_the_lines_of_its_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []

    def summary(finished: Any) -> list[str]:
        seen.append((finished.seconds, {name: finished.result(name) for name in finished.steps}))
        assert finished.result("no such step") is None
        return ["one", "two"]

    for number in (0, 1):
        arguments = ["--prefix", str(tmp_path), "--backend", "local"]
        assert main(toy.build, name="toy", argv=arguments, summary=summary) == 0
        seconds, results = seen[number]
        lines = capsys.readouterr().out.splitlines()
        assert lines[lines.index("  one") + 1] == "  two"
        assert len(results) == 8 and None not in results.values()
        assert (seconds is None) == (number == 1), "the second has nothing to do"


def test_after_run_is_called_however_the_run_ends_and_changes_no_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--prefix", str(tmp_path), "--backend", "local", "--until", "text/web"]
    errors: list[Exception] = []
    calls: list[int] = []

    def after(session: Any, plan: Any) -> list[str]:
        if errors:
            raise errors[-1]
        calls.append(len(plan.will_run))
        return ["written"]

    def run(*more: str) -> tuple[int, str, str]:
        code = main(toy.build, name="toy", argv=[*arguments, *more], after_run=after)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    assert run("--dry-run")[0] == 2 and calls == []
    monkeypatch.setattr(Run, "run", lambda self: 1)
    assert run()[:2] == (1, "  written\n")
    monkeypatch.setattr(Run, "was_interrupted", property(lambda self: True))
    assert run()[:2] == (130, "  written\n")
    monkeypatch.undo()
    assert run()[0] == 0 and run()[0] == 0
    assert calls == [1, 1, 1, 0]
    errors.append(UserError("no permission to write there"))
    code, _, err = run()
    assert code == 0
    check_message(err)
    errors.append(KeyError("a store's own error"))
    code, _, err = run()
    assert code == 0 and err.startswith("Traceback")


def test_a_damaged_input_ends_a_run_with_the_commands_that_fix_it(run: Toy) -> None:
    run("--until", "text/web")
    made = Records(open_store(str(run.prefix)))
    (record,) = [made.get(key) for key in made.committed_keys()]
    damaged = run.prefix / record.output_path / record.manifest[0].path
    damaged.unlink()
    code, output = run("--until", "count")
    assert code == 1
    check_message("\n".join(output.splitlines()[-2:]))
    assert run("--force", "text/web", "--until", "text/web")[0] == 0
    assert run("--until", "count")[0] == 0


def test_one_changed_field_reruns_its_step_and_those_that_need_it(run: Toy) -> None:
    run()
    change = ("--set", "ocelot.z_loss=3")
    assert stale(run.verdicts(*change)) == {"ocelot", "phoenix"}
    assert differences(run.plan(*change)) == {"z_loss": ("0.0001", "3.0")}
    committed = run.committed()
    assert run(*change)[0] == 0
    assert run("--dry-run")[0] == 0 and run.committed() == committed


def differences(plan: dict[str, Any]) -> dict[str, tuple[str, str]]:
    found = (cause["difference"] for cause in plan["causes"])
    return {difference["field"]: (difference["old"], difference["new"]) for difference in found}


def test_a_root_cause_is_named_when_the_changed_step_is_already_done(run: Toy) -> None:
    run()
    change = ("--set", "text/web.text=webb")
    assert run(*change, "--until", "count")[0] == 0
    verdicts = run.verdicts(*change)
    assert verdicts["text/web"] == verdicts["count"] == "done"
    assert stale(verdicts) == {"kestrel", "ocelot", "phoenix"}
    check_message(run("why", "phoenix", *change)[1].split("\n\n")[0])


def test_a_later_stop_costs_only_the_rest(run: Toy) -> None:
    run()
    plan = run.plan("--set", "phoenix.until_step=50")
    (planned,) = [step for step in plan["steps"] if step["will_run"]]
    assert (planned["name"], planned["reasons"][0]["type"]) == ("phoenix", "continues")
    assert (planned["cost"]["work"]["tokens"], planned["saved"]["work"]["tokens"]) == (20_000, 10_000)


def test_a_milestone_that_was_not_kept_blocks_and_names_the_nearest(run: Toy) -> None:
    run()
    plan = run.plan("--set", "phoenix.start=kestrel@5")
    assert plan["exit_code"] == 1
    (blocked,) = [step for step in plan["steps"] if step["verdict"] == "blocked"]
    (reason,) = blocked["reasons"]
    assert (reason["type"], reason["wanted"], reason["nearest"]) == ("milestone_missing", 5, 10)


def test_execution_settings_rerun_nothing(run: Toy) -> None:
    run()
    assert run("--dry-run", "--set", "text/web.workers=64")[0] == 0


def test_a_failed_step_is_reported_with_its_error_and_log(run: Toy) -> None:
    code, output = run("--set", "count.least=13")
    assert code == 1 and "least must not be 13" in output
    plan = run.plan("--set", "count.least=13")
    steps = {step["name"]: step for step in plan["steps"]}
    assert [steps[name]["verdict"] for name in ("text/web", "count", "kestrel")] == ["done", "failed", "missing"]
    (reason,) = steps["count"]["reasons"]
    assert reason["attempts"] == 1 and "least must not be 13" in reason["error"] and reason["log_path"].endswith(".log")
    assert "least must not be 13" in run("why", "count", "--set", "count.least=13")[1]


def test_a_selected_step_is_listed_after_the_run_with_its_output(run: Toy) -> None:
    for output in (run("--until", "ocelot")[1], run("--until", "ocelot")[1]):
        assert re.search(rf"^  ocelot: {re.escape(str(run.prefix))}/outputs/ocelot-\w+/", output, re.MULTILINE)


def test_an_input_that_is_not_selected_blocks(run: Toy) -> None:
    code, table = run("--dry-run", "--only", "phoenix")
    assert code == 1
    check_message(table)


def test_a_forced_step_runs_again_and_must_give_the_same_output(run: Toy) -> None:
    run()
    before = run.committed()
    assert [step["name"] for step in run.plan("--force", "text/web")["steps"] if step["will_run"]] == ["text/web"]
    assert run("--force", "text/web")[0] == 0
    assert run.committed() == before


def test_a_fork_is_stored_until_it_is_dropped(run: Toy) -> None:
    run()
    code, output = run("fork", "ocelot", "--as", "spoonbill", "--set", "z_loss=1e-3", "--reason", "norms grow")
    assert code == 0
    check_message(output)
    verdicts = run.verdicts()
    assert verdicts.pop("spoonbill") == "missing"
    assert set(verdicts.values()) == {"done"}
    assert run("--until", "spoonbill")[0] == 0
    assert "spoonbill" in run.committed()
    (fork,) = json.loads(run("ls", "--json")[1])["forks"]
    assert (fork["base"], fork["changes"], fork["reason"]) == ("ocelot", {"z_loss": "1e-3"}, "norms grow")
    assert run("fork", "spoonbill", "--as", "deeper", "--set", "until_step=40")[0] == 0
    code, output = run("drop", "spoonbill")
    assert code == 1, "deeper is a fork of it"
    check_message(output)
    assert run("drop", "deeper")[0] == run("drop", "spoonbill")[0] == 0
    assert "spoonbill" not in run.verdicts()


def test_a_fork_follows_an_override_of_its_base(run: Toy) -> None:
    run("fork", "ocelot", "--as", "spoonbill", "--set", "until_step=25")
    _, why = run("why", "spoonbill", "--set", "ocelot.z_loss=5")
    digest = re.search(r"digest +(\w+)", why)
    _, other = run("why", "ocelot", "--set", "ocelot.z_loss=5")
    assert digest is not None and digest[1] in other


MISTAKES = [
    "--set phoenix.zloss=1",
    "--set phenix.z_loss=1",
    "--until phenix",
    "--from web",
    "--force phenix",
    "--only 'nothing*'",
    "--set count.least=-1",
    "why",
    "adopt",
    "why phenix",
    "fork ocelot --set z_loss=1",
    "fork ocelot --as x",
    "fork ocelot --as x --set z=1",
    "fork ocelot --as phoenix --set z_loss=1",
    "fork ocelot --as 'a b' --set z_loss=1",
    "--set phoenix.until_step=true",
    "--until kestrel --from phoenix",
    "drop x",
    f"fork ocelot --as {'long' * 26} --set z_loss=1",
    "fork ocelot --as x --set z_loss=0.0001",
    "--set phoenix.z_loss=1 --set phoenix.z_loss=2",
    "--force phoenix --until kestrel",
    "--dry-run --because x",
    "why phoenix --yes",
    "gc --only=phoenix",
    "gc --dry-run",
    "drop x --set a.b=1",
    "whi phoenix",
    "run",
    "--dry-run --set phoenix.z_loss 1",
    "--set phoenix z_loss=1",
    "why phoenix --set phoenix.z_loss 1",
    "ls kest",
    "ls pheonix",
    "--dryrun",
    "--prefx runs2 --dry-run",
    "why phoenix --untill=count",
    "why phoenix --prt 1",
    "-q",
    "--dry-run --until",
    "status",
    "--notice soon",
    "--dry-run phoenix",
    "drop x y",
    "adopt FILE",
    "adopt FILE --as count",
    "verify count",
    "pin count",
    "pin count --unpin",
    "diff count",
]


@pytest.mark.parametrize("arguments", MISTAKES, ids=lambda arguments: arguments[:60])
def test_a_mistake_is_one_message_and_exit_code_1(run: Toy, arguments: str) -> None:
    code, output = run(*shlex.split(arguments))
    assert code == 1, "2 means that something would run"
    check_message(output)
    assert not run.prefix.exists()


def stored_fork(run: Toy) -> Path:
    (path,) = (run.prefix / "names").rglob("x.json")
    return path


def test_a_stored_fork_that_cannot_be_built_is_named_with_the_command_that_drops_it(run: Toy) -> None:
    run("fork", "ocelot", "--as", "x", "--set", "z_loss=1")
    path = stored_fork(run)
    path.write_text(path.read_text().replace("z_loss", "z"))
    check_message(run("--dry-run")[1])
    path.write_text("{")
    check_message(run("--dry-run")[1])
    assert run("drop", "x")[0] == 0
    assert run("--dry-run")[0] == 2


def test_a_fork_without_an_identity_is_not_stored(run: Toy) -> None:
    code, output = run("fork", "ocelot", "--as", "x", "--set", "z_loss=1e400")
    assert code == 1
    check_message(output)
    assert "x" not in run.verdicts()
    assert not (run.prefix / "names").exists()


def test_a_stored_fork_without_an_identity_is_named_with_the_command_that_drops_it(run: Toy) -> None:
    run("fork", "ocelot", "--as", "x", "--set", "z_loss=1")
    path = stored_fork(run)
    path.write_text(path.read_text().replace('"z_loss": "1"', '"z_loss": "1e400"'))
    (answer,) = {run(*command.split()) for command in ("ls", "--dry-run", "why ocelot", "fork ocelot --as y --set z=2")}
    assert answer[0] == 1
    check_message(answer[1])
    assert run("drop", "x")[0] == 0
    assert run("ls")[0] == 0


def test_a_stored_fork_that_a_check_refuses_is_named_with_the_command_that_drops_it(run: Toy) -> None:
    run("fork", "count", "--as", "x", "--set", "least=2")
    path = stored_fork(run)
    path.write_text(path.read_text().replace('"least": "2"', '"least": "-1"'))
    code, output = run("--dry-run")
    assert code == 1
    check_message(output)
    assert run("page")[1] == output
    assert run("why", "phoenix")[0] == run("ls", "--until", "phoenix")[0] == 0
    path.write_text(path.read_text().replace('"least": "-1"', '"least": "2"'))
    run("fork", "count", "--as", "y", "--set", "texts={}")
    _, output = run("--dry-run", "--set", "count.least=-1")
    check_message(output)  # the mistake is in the override, so no fork is to be dropped


def test_a_printed_command_has_only_options_that_it_takes(run: Toy) -> None:
    assert run()[0] == 0
    options = ("--every-step", "--set", "phoenix.z_loss=1", "--until", "phoenix")
    words = shlex.split(run.commands(*options)["ask why"])
    assert "--every-step" not in words and words[words.index("--set") + 1] == "phoenix.z_loss=1"
    assert run(*words[2:])[0] == 0


def test_a_step_may_have_the_name_of_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = toy.text("show", toy.TextConfig(text="a"))
    steps = [toy.count("count", toy.CountConfig(texts={"a": text}))]
    argv = ["--prefix", str(tmp_path / "runs"), "--backend", "local"]
    assert main(lambda parsed: [text], name="toy", argv=argv) == 0
    next((tmp_path / "runs").rglob("text.txt")).unlink()
    argv += ["--copy-to", str(tmp_path / "copies")]
    assert main(lambda parsed: steps, name="toy", argv=argv) == 1
    line, *_ = (line for line in capsys.readouterr().err.splitlines() if line.startswith("first: "))
    assert line.endswith(f"--force show --until show {' '.join(argv)}"), "a run takes --copy-to, and `show` does not"


def test_a_config_that_is_not_selected_may_be_invalid(run: Toy) -> None:
    assert run("--dry-run", "--set", "count.least=-1", "--until", "text/web")[0] == 2
    assert run("--dry-run", "--set", "count.least=-1")[0] == 1


@pytest.mark.parametrize("reason", ["- see the notes", "-3", "--really, they are the same"])
def test_a_value_may_begin_with_a_dash(reason: str, run: Toy) -> None:
    run("fork", "ocelot", "--as", "x", "--set", "z_loss=1", "--reason", reason)
    (fork,) = json.loads(run("ls", "--json")[1])["forks"]
    assert fork["reason"] == reason


def test_an_edited_function_makes_steps_stale_and_a_comment_does_not(tmp_path: Path) -> None:
    script = tmp_path / "tiny.py"
    source = (ROOT / "tests/marin_dag/toy.py").read_text()

    def call(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, str(script), "--backend", "local", "--prefix", str(tmp_path / "runs"), *arguments]
        environment = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
        return done.returncode, done.stdout + done.stderr

    script.write_text(source)
    assert call()[0] == 0
    script.write_text(source.replace("return count * FACTOR", "# a comment\n    return count * FACTOR"))
    assert call("--dry-run")[0] == 0
    script.write_text(source.replace("FACTOR = 2", "FACTOR = 3"))
    code, output = call("--dry-run", "--json")
    assert code == 2
    plan = json.loads(output)
    (cause,) = plan["causes"]
    assert cause["difference"]["changed"] == ["tiny.FACTOR"]
    assert {step["name"] for step in plan["steps"] if step["verdict"] == "stale"} == set(cause["follow"])


def test_the_code_of_another_checkout_is_refused(tmp_path: Path) -> None:
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

    assert plan(ROOT) == (2, ""), "a recipe outside of any checkout"
    package = tmp_path / "another/marin_dag"
    package.mkdir()
    (package / "__init__.py").write_text("")
    code, output = plan(ROOT)
    assert code == 1
    check_message(output)


def test_a_reader_that_leaves_early_ends_a_plan_with_141(tmp_path: Path) -> None:
    options = ["tests/marin_dag/toy.py", "--dry-run", "--prefix", str(tmp_path)]
    with subprocess.Popen([sys.executable, *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as plan:
        assert plan.stdout is not None and plan.stderr is not None
        plan.stdout.close()
        assert plan.stderr.read() == b""
    assert plan.returncode == 141


def test_an_argument_that_is_not_utf_8_is_refused(run: Toy) -> None:
    code, output = run("--set", "phoenix.text=\udcff")
    assert code == 1
    check_message(output)


def test_a_terminal_without_utf_8_changes_no_exit_code(tmp_path: Path) -> None:
    program = (
        "from marin_dag.cli.main import main; from tests.marin_dag.toy import build; exit(main(build, name='toy'))"
    )
    command = [sys.executable, "-c", program, "--dry-run", "--prefix", str(tmp_path / "läufe")]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (2, "") and r"l\xe4ufe" in done.stdout


def test_a_reason_is_one_whole_line_in_a_pipe(run: Toy) -> None:
    run()
    _, table = run("--dry-run", "--set", f"text/web.text={'x' * 300}", "--set", "count.least=2")
    assert any("x" * 300 in line and line.startswith("text/web") for line in table.splitlines())


def test_an_interrupt_ends_with_130(run: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(toy, "build", interrupted)
    assert run("--dry-run")[0] == 130


def test_printed_commands_name_this_python_where_the_shell_finds_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()  # of the fixed program words
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name in ("python", "python3"):
        (tmp_path / ".venv/bin" / name).symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv/bin/python3"))
    assert session.program_words()[0] == ".venv/bin/python3"
    monkeypatch.setenv("PATH", str(tmp_path / ".venv/bin"))
    assert session.program_words()[0] == "python", "the environment is active"


def test_the_notice_of_the_scheduler_reaches_the_steps_and_no_digest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        asked = ask("asks", AskConfig(sum=add("sum", AddConfig())))
        argv = ["--prefix", str(tmp_path / "runs"), "--backend", "local", *arguments]
        code = main(lambda parsed: [asked], name="toy", argv=argv)
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    code, output = run("--notice", "600", "--dry-run")
    assert code == 2 and output.rstrip().endswith(" --notice 600")
    assert [run(f"--notice={nonsense}")[0] for nonsense in ("soon", "0", "-1", "inf", "nan")] == [1] * 5
    code, output = run("--notice", "600")
    assert code == 0 and "notice 600.0\n" in output, "a step printed it"
    assert run("--dry-run")[0] == 0
