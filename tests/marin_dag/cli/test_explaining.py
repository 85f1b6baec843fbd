"""why, diff, log, show, ls: answers come from records, without the code that made them."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from marin_dag.identity.diff import FieldChanged
from marin_dag.ledger.records import Records
from marin_dag.plan.reasons import Changed, Reason
from marin_dag.store.prefix import open_store
from tests.catalogue import check_message
from tests.marin_dag.workbench import Workbench

ROOT = Path(__file__).parents[3]


@pytest.fixture
def made(bench: Workbench) -> Workbench:
    assert bench()[0] == 0
    return bench


def digests(bench: Workbench, name: str) -> list[str]:
    """Return the digests of the outputs under a name, oldest first."""
    return [key.partition("@")[0] for key in Records(open_store(str(bench.prefix))).labels()[name]]


def test_the_source_of_a_changed_function_comes_from_the_store(made: Workbench) -> None:
    made.edit("return number * FACTOR", "doubled = number * FACTOR\n    return doubled")
    for command in (["diff", "count"], ["why", "count"]):
        code, output = made(*command)
        assert code == 0
        lines = [line.strip() for line in output.splitlines()]
        assert "--- workbench_recipe.weigh (then)" in lines
        assert "-    return number * FACTOR" in lines
        assert "+    doubled = number * FACTOR" in lines
        assert "Grams" not in output, "a docstring is not code"


def test_a_diff_shows_added_and_removed_definitions_whole(made: Workbench) -> None:
    made.edit("return number * FACTOR", "return thrice(number)")
    made.edit("def train_cost", "def thrice(number):\n    return 3 * number\n\n\ndef train_cost")
    check_message(made("diff", "count")[1])


def test_a_diff_shows_a_name_imported_from_elsewhere(made: Workbench) -> None:
    made.edit("from pathlib import Path", "from pathlib import PosixPath as Path")
    lines = made("diff", "text/web")[1].splitlines()
    assert {"-# Path is pathlib:Path", "+# Path is pathlib:PosixPath"} <= set(lines)


def test_each_source_is_stored_once(made: Workbench) -> None:
    kept = made.files("sources")
    assert len(kept) == 3
    made("--set", "text/web.text=webb")
    assert made.files("sources") == kept
    made.edit("FACTOR = 2", "FACTOR = 3")
    made("bump", "count", "--write")
    made()
    assert len(made.files("sources")) == 4


def test_a_missing_source_is_named(made: Workbench) -> None:
    for path in (made.prefix / "sources").iterdir():
        path.unlink()
    made.edit("FACTOR = 2", "FACTOR = 3")
    code, output = made("diff", "count")
    assert code == 0
    check_message(output)


def test_a_diff_follows_a_changed_input_to_the_field_that_changed(made: Workbench) -> None:
    check_message(made("diff", "third", "--set", "text/web.text=webb")[1])


def test_a_diff_of_two_steps_shows_another_input_without_following_it(made: Workbench) -> None:
    check_message(made("diff", "first", "second")[1])
    assert len(made("diff", "second", "third")[1].splitlines()) == 3, "they are one run"


def test_a_committed_step_has_no_difference(made: Workbench) -> None:
    code, output = made("diff", "count")
    assert code == 0
    check_message(output)


def test_two_records_are_compared_by_digest(made: Workbench) -> None:
    made("--set", "count.least=3")
    old, new = digests(made, "count")
    assert "  least: 1 -> 3" in made("diff", old[:10], new[:10])[1].splitlines()
    assert "  least: 3 -> 1" in made("diff", new[:10], "count")[1].splitlines()


def test_a_stale_step_is_compared_with_the_nearest_output_of_its_name(made: Workbench) -> None:
    made("--set", "count.least=2", "--set", "first.rate=7")
    planned = made.plan("--set", "first.rate=9")["first"]
    assert changed(planned.reasons) == {"rate": ("0.5", "9.0")}, "the newest differs in `count` as well"
    assert planned.compared is not None and planned.compared.num_compared == 2
    check_message(made("why", "first", "--set", "first.rate=9")[1])


def changed(reasons: Iterable[Reason]) -> dict[str, tuple[str, str]]:
    """Return field to old and new value of each changed field."""
    found = (reason.difference for reason in reasons if isinstance(reason, Changed))
    return {each.field: (each.old, each.new) for each in found if isinstance(each, FieldChanged)}


def test_a_moved_stop_is_a_change_of_the_step_that_stops_there(made: Workbench) -> None:
    plan = made.plan("--set", "first.until_step=12", "--set", "first.rate=0.75")
    reasons = plan["second"].reasons
    assert changed(reasons) == {"until_step": ("10", "12"), "rate": ("0.5", "0.75")}
    assert all(isinstance(reason, Changed) and reason.steps == ("first",) for reason in reasons)


def test_rounding_noise_is_not_printed_unless_it_is_the_difference(made: Workbench) -> None:
    noise = ("--set", "first.rate=0.0050999999999999995")
    assert changed(made.plan(*noise)["first"].reasons) == {"rate": ("0.5", "0.0051")}
    made("--set", "first.rate=0.0051")
    assert changed(made.plan(*noise)["first"].reasons) == {"rate": ("0.0051", "0.0050999999999999995")}


def test_a_log_is_that_of_the_attempt_that_made_the_step(made: Workbench) -> None:
    code, output = made("log", "first")
    assert code == 0
    assert "committed" in output and str(made.prefix / "outputs" / "first-") in output


def test_the_log_of_a_failed_step_is_that_of_its_newest_attempt(made: Workbench) -> None:
    made.edit("return Count(total=len(config.text))", 'raise ValueError("no " + config.text)')
    made("--until", "text/web")
    code, output = made("log", "text/web")
    assert code == 0
    assert "ValueError: no web" in output


def test_show_writes_each_value_of_a_result_on_a_line(bench: Workbench) -> None:
    bench.edit(
        'class Count(BaseModel, frozen=True, extra="forbid"):\n    total: int\n',
        'class Count(BaseModel, frozen=True, extra="forbid"):\n    total: int\n'
        "    by: list[dict[str, dict[str, float]]] = [{'web': {'loss': 1.0 / 3}}]\n    words: list[str] = ['a', 'b']\n",
    )
    bench("--until", "text/web")
    check_message(bench("show", "text/web")[1].partition("result\n")[2].partition("output")[0])
    assert json.loads(bench("show", "text/web", "--json")[1])["result"]["by"] == [{"web": {"loss": 1 / 3}}]


def test_show_prints_identity_files_and_provenance(made: Workbench) -> None:
    code, output = made("show", "text/web")
    assert code == 0
    assert '  text = "web"' in output.splitlines()
    assert re.search(r"3  \w{8}  text.txt", output)
    for what in ("digest", "started", "finished", "host", "git commit", "lock file", "environment", "command"):
        assert re.search(rf"^  {what} +\S", output, re.MULTILINE), what
    assert re.search(r"^  letters +one by one$", output, re.MULTILINE)
    record = json.loads(made("show", "text/web", "--json")[1])
    assert record["identity"]["kind"] == "workbench_recipe.text"
    assert made("show", record["digest"][:12])[1] == output
    for command in ("show", "log"):
        assert made(command, "third@30") == made(command, "third")


def test_published_milestones_are_listed_without_commas(made: Workbench) -> None:
    (last,) = (made.prefix / "commits").glob(f"{digests(made, 'third')[0]}@30.json")
    last.with_stem(last.stem.replace("@30", "@1001")).write_bytes(last.read_bytes())
    check_message(made("show", "third@25")[1])


@pytest.mark.parametrize(
    "arguments",
    [
        "show third --set first.rate=3",
        "log third --set first.rate=3",
        "diff third first second",
        "show thrid",
        "show third@25",
        "log third@30 --set third.rate=3",
        "why third@30",
        "ls 'x*'",
        "--json",
    ],
)
def test_a_mistake_in_a_question_is_one_message(made: Workbench, arguments: str) -> None:
    code, output = made(*shlex.split(arguments))
    assert code == 1
    check_message(output)


def test_a_listing_can_be_narrowed_and_printed_as_json(made: Workbench) -> None:
    made("fork", "second", "--as", "branch", "--set", "rate=2.0", "--reason", "faster")
    _, listed = made("ls", "text/*")
    assert [line.split()[0] for line in listed.splitlines()[:-1] if not line.startswith("fork")] == [
        "text/web",
        "text/code",
    ]
    document = json.loads(made("ls", "--json")[1])
    assert document["schema"] == "marin_dag.ls/1"
    steps = {step["name"]: step for step in document["steps"]}
    assert steps["text/web"]["result"] == {"total": 3} and steps["text/web"]["size_in_bytes"] == 3
    assert (steps["branch"]["verdict"], steps["branch"]["output"]) == ("missing", None)
    assert [(fork["name"], fork["base"], fork["reason"]) for fork in document["forks"]] == [
        ("branch", "second", "faster")
    ]


def test_a_pattern_selects_forks_too(made: Workbench) -> None:
    for name in ("branch", "twig"):
        made("fork", "second", "--as", name, "--set", "rate=2.0")

    def listed(*arguments: str) -> list[str]:
        words = [line.split() for line in made("ls", *arguments)[1].splitlines()[:-1]]
        return [" ".join(line[:2]) if line[0] == "fork" else line[0] for line in words]

    assert listed("*ran*") == ["branch", "fork branch"]
    assert listed("text/*", "second") == ["text/web", "text/code", "second"]
    assert listed("--only", "tw*") == ["twig", "fork twig"]
    assert listed("*ext*", "--only", "*web") == ["text/web"]
    assert [fork["name"] for fork in json.loads(made("ls", "t*", "--json")[1])["forks"]] == ["twig"]


def test_commands_that_explain_import_neither_jax_nor_ray(made: Workbench) -> None:
    program = (
        "import sys, marin_dag.cli.main\n"
        f"sys.path.insert(0, {str(made.file.parent)!r})\n"
        "import workbench_recipe\n"
        "for words in (['why', 'count'], ['diff', 'count'], ['show', 'count'], ['log', 'count'], ['ls'], ['plan']):\n"
        f"    argv = [*words, '--prefix', {str(made.prefix)!r}]\n"
        "    assert marin_dag.cli.main.main(workbench_recipe.build, name='bench', argv=argv) == 0, words\n"
        "assert not {'jax', 'ray', 'numpy', 'gcsfs'} & set(sys.modules), sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": str(ROOT)}, capture_output=True)
