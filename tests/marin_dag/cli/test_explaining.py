"""why, diff, log, show, ls: everything is answered from records, and without the code of the day they were made."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from marin_dag.ledger.records import Records
from marin_dag.store.prefix import open_store
from tests.marin_dag.workbench import Workbench

ROOT = Path(__file__).parents[3]


@pytest.fixture
def made(bench: Workbench) -> Workbench:
    assert bench()[0] == 0
    return bench


def digests(bench: Workbench, name: str) -> list[str]:
    """Of what was made under a name, oldest first."""
    return [key.partition("@")[0] for key in Records(open_store(str(bench.prefix))).labels()[name]]


def test_the_source_of_a_changed_function_is_shown_from_the_store_alone(made: Workbench) -> None:
    made.edit("return number * FACTOR", "doubled = number * FACTOR\n    return doubled")
    for command in (["diff", "count"], ["why", "count"]):
        code, said = made(*command)
        assert code == 0
        lines = [line.strip() for line in said.splitlines()]
        assert "--- workbench_recipe.weigh (then)" in lines
        assert "-    return number * FACTOR" in lines
        assert "+    doubled = number * FACTOR" in lines
        assert "Grams" not in said, "a docstring is no code"


def test_added_and_removed_definitions_are_whole_in_the_diff(made: Workbench) -> None:
    made.edit("return number * FACTOR", "return thrice(number)")
    made.edit("def train_cost", "def thrice(number):\n    return 3 * number\n\n\ndef train_cost")
    _, said = made("diff", "count")
    assert "code changed workbench_recipe.weigh; new workbench_recipe.thrice; gone workbench_recipe.FACTOR" in said
    assert "+def thrice(number):" in said and "-FACTOR = 2" in said


def test_a_name_that_is_imported_from_elsewhere_shows_in_the_diff(made: Workbench) -> None:
    made.edit("from pathlib import Path", "from pathlib import PosixPath as Path")
    _, said = made("diff", "text/web")
    assert "-# Path is pathlib:Path" in said and "+# Path is pathlib:PosixPath" in said


def test_each_source_is_kept_once_and_again_only_when_the_code_changed(made: Workbench) -> None:
    kept = made.files("sources")
    assert len(kept) == 3
    made("--set", "text/web.text=webb")
    assert made.files("sources") == kept
    made.edit("FACTOR = 2", "FACTOR = 3")
    made.edit('version="1"', 'version="2"')
    made()
    assert len(made.files("sources")) == 4


def test_a_source_that_was_not_kept_is_said_to_be_missing(made: Workbench) -> None:
    for path in (made.prefix / "sources").iterdir():
        path.unlink()
    made.edit("FACTOR = 2", "FACTOR = 3")
    code, said = made("diff", "count")
    assert code == 0
    assert re.search(r"\(the source of fingerprint \w{12} was not kept\)", said)


def test_a_diff_follows_a_changed_input_to_the_field_that_changed(made: Workbench) -> None:
    _, said = made("diff", "third", "--set", "text/web.text=webb")
    assert "input data: " in said
    assert "      text/web: text: 'web' -> 'webb'" in said


def test_a_diff_of_two_steps_shows_the_choice_of_another_input_and_does_not_follow_it(made: Workbench) -> None:
    _, said = made("diff", "first", "second")
    assert "  rate: 0.5 -> 0.25" in said
    assert re.search(r"  start: None -> \w{8}@10", said)
    _, said = made("diff", "second", "third")
    assert "no difference" in said, "they are one trajectory"


def test_a_step_as_it_was_committed_has_no_difference(made: Workbench) -> None:
    code, said = made("diff", "count")
    assert (code, "no difference" in said) == (0, True)


def test_two_records_are_compared_by_digest(made: Workbench) -> None:
    made("--set", "count.least=3")
    old, new = digests(made, "count")
    _, said = made("diff", old[:10], new[:10])
    assert "  least: 1 -> 3" in said
    _, said = made("diff", new[:10], "count")
    assert "  least: 3 -> 1" in said


def test_a_stale_step_is_compared_with_the_nearest_of_its_name_not_the_newest(made: Workbench) -> None:
    made("--set", "count.least=2", "--set", "first.rate=7")
    table = made("--dry-run", "--set", "first.rate=9")[1]
    assert "  stale     rate: 0.5 -> 9.0" in table
    _, why = made("why", "first", "--set", "first.rate=9")
    assert re.search(r"compared with what was made under this name \S+ \(\w{8}@10, the nearest of 2\)", why)


def test_a_moved_stop_is_named_at_the_step_that_stops_there(made: Workbench) -> None:
    table = made("--dry-run", "--set", "first.until_step=12")[1]
    assert re.search(r"second +stale +first: until_step: 10 -> 12", table)


def test_a_moved_stop_hides_no_other_change_of_that_step(made: Workbench) -> None:
    _, said = made("why", "second", "--set", "first.until_step=12", "--set", "first.rate=0.75")
    assert "until_step: 10 -> 12" in said and "rate: 0.5 -> 0.75" in said


def test_noise_of_binary_arithmetic_is_not_printed_unless_it_is_the_difference(made: Workbench) -> None:
    table = made("--dry-run", "--set", "first.rate=0.0050999999999999995")[1]
    assert "rate: 0.5 -> 0.0051 " in f"{table} " and "0.00509999" not in table.split("run it")[0]
    made("--set", "first.rate=0.0051")
    table = made("--dry-run", "--set", "first.rate=0.0050999999999999995")[1]
    assert "rate: 0.0051 -> 0.0050999999999999995" in table


def test_a_log_is_that_of_the_attempt_that_made_the_step(made: Workbench) -> None:
    code, said = made("log", "first")
    assert code == 0
    assert "committed" in said and str(made.prefix / "outputs" / "first-") in said


def test_a_log_of_what_failed_is_that_of_its_newest_attempt(made: Workbench) -> None:
    made.edit("return Count(total=len(config.text))", 'raise ValueError("no " + config.text)')
    made("--until", "text/web")
    code, said = made("log", "text/web")
    assert code == 0
    assert "ValueError: no web" in said


def test_show_writes_each_figure_of_a_result_on_a_line_and_as_a_person_reads_it(bench: Workbench) -> None:
    bench.edit(
        'class Count(BaseModel, frozen=True, extra="forbid"):\n    total: int\n',
        'class Count(BaseModel, frozen=True, extra="forbid"):\n    total: int\n'
        "    by: list[dict[str, dict[str, float]]] = [{'web': {'loss': 1.0 / 3}}]\n    words: list[str] = ['a', 'b']\n",
    )
    bench("--until", "text/web")
    _, said = bench("show", "text/web")
    assert "result\n  total = 3\n  by[0].web.loss = 0.333333\n  words = ['a', 'b']\noutput" in said
    assert "0.3333333333333333" in bench("show", "text/web", "--json")[1], "the record has it whole"


def test_show_tells_identity_files_and_provenance(made: Workbench) -> None:
    code, said = made("show", "text/web")
    assert code == 0
    assert "  text = 'web'" in said
    assert re.search(r"3  \w{8}  text.txt", said)
    for what in ("digest", "started", "finished", "host", "git commit", "lock file", "environment", "command"):
        assert re.search(rf"^  {what} +\S", said, re.MULTILINE), what
    assert re.search(r"^  letters +one by one$", said, re.MULTILINE)
    record = json.loads(made("show", "text/web", "--json")[1])
    assert record["identity"]["kind"] == "workbench_recipe.text"
    assert made("show", record["digest"][:12])[1] == said
    for command in ("show", "log"):
        assert made(command, "third@30") == made(command, "third")


def test_the_states_that_a_step_has_published_are_told_as_they_are_typed(made: Workbench) -> None:
    (last,) = (made.prefix / "commits").glob(f"{digests(made, 'third')[0]}@30.json")
    last.with_stem(last.stem.replace("@30", "@1001")).write_bytes(last.read_bytes())
    assert "third has published only 20, 30, 1001 as the recipe is now." in made("show", "third@25")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "third", "--set", "first.rate=3"], "show third: it is not made"),
        (["show", "third", "--set", "first.rate=3"], "is about the newest that was made so called"),
        (["log", "third", "--set", "first.rate=3"], "log third: no attempt has left a log here"),
        (["diff", "third", "first", "second"], "diff: 'second' is too much"),
        (["show", "thrid"], "there is no step 'thrid'. Did you mean 'third'?"),
        (["show", "third@25"], "third@25: third has published only 20, 30 as the recipe is now."),
        (["log", "third@30", "--set", "third.rate=3"], "third@30: third has published nothing as the recipe is now."),
        (["why", "third@30"], "'third@30' is a milestone, where a step belongs; write 'third'.\n"),
        (["ls", "x*"], "ls 'x*' matches no step."),
        (["--json"], "--json: a run prints no document; use --dry-run --json"),
    ],
)
def test_a_mistake_in_asking_is_one_message(made: Workbench, arguments: list[str], message: str) -> None:
    code, said = made(*arguments)
    assert (code, message in said) == (1, True), said


def test_a_listing_may_be_narrowed_and_read_by_programs(made: Workbench) -> None:
    made("fork", "second", "--as", "branch", "--set", "rate=2.0", "--reason", "faster")
    _, listed = made("ls", "text/*")
    assert [line.split()[0] for line in listed.splitlines()[:-1] if not line.startswith("fork")] == [
        "text/web",
        "text/code",
    ]
    assert listed.splitlines()[-1].startswith("outputs in /")
    document = json.loads(made("ls", "--json")[1])
    assert document["schema"] == "marin_dag.ls/1"
    steps = {step["name"]: step for step in document["steps"]}
    assert steps["text/web"]["result"] == {"total": 3} and steps["text/web"]["size_in_bytes"] == 3
    assert (steps["branch"]["verdict"], steps["branch"]["output"]) == ("missing", None)
    assert [(fork["name"], fork["base"], fork["reason"]) for fork in document["forks"]] == [
        ("branch", "second", "faster")
    ]


def test_a_pattern_chooses_among_the_forks_too(made: Workbench) -> None:
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


def test_explaining_imports_neither_jax_nor_ray(made: Workbench) -> None:
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
