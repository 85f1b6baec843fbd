"""Forks of the flagship: `fork` refuses a fork that could not be planned, and keeps nothing of it."""

import argparse
import json
import shlex
from pathlib import Path

import pytest

from marin_dag.graph.graph import Graph
from marin_dag.ledger.checked_json import checked_json
from marin_dag.ledger.epoch import seal
from marin_dag.ledger.records import Failure, Records, new_attempt, record_path
from marin_dag.ledger.work_files import KEEP_MARKER, progress_mark
from marin_dag.plan.forks import Forks
from marin_dag.store.prefix import open_store
from pipelines.corpus import eight_b_corpus, laptop_corpus
from pipelines.recipe import FOLLOW
from pipelines.reporting import ABSENT, fork_report
from pipelines.scales import EIGHT_B, LAPTOP
from pipelines.tootsie import branches, build, main, phases
from tests.catalogue import check_message
from tests.marin_dag.ledger.test_records import a_record

TOKENIZED = {"num_train_tokens": 10**9}
"""Result of every record here; plans read that of token caches."""
RECIPES = ((LAPTOP, laptop_corpus), (EIGHT_B, eight_b_corpus))


def call(prefix: Path, *arguments: str) -> int:
    return main([*arguments, "--prefix", str(prefix)])


def with_forks(prefix: Path) -> Graph:
    given = {"scale": "laptop", "corpus": None, "compile": False, "dry_run": True}
    recipe = Graph(build(argparse.Namespace(**given, on=None, tokens=None, hours=None)))
    return Forks(open_store(str(prefix)), "tootsie", FOLLOW, with_forks=fork_report).added_to(recipe)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """Return a prefix where every step has a record, and phoenix has saved two good checkpoints."""
    store = open_store(str(tmp_path / "runs"))
    graph = with_forks(tmp_path / "runs")
    for step in graph.steps:
        record = a_record(step.name, step.digest, step.until, identity=step.identity, result=TOKENIZED)
        store.write(record_path(record.key), checked_json(record))
        store.write(f"labels/{step.name}/{record.key}", b"")
    phoenix = graph.step("phoenix").digest
    store.create(f"leases/{phoenix}/00000001.claim", b'{"name":"a","host":"h","pid":1,"process":"","since":""}')
    seal(store, phoenix, 1)
    for saved in (1000, 1100):
        folder = f"work/{phoenix}/temporary/step-{saved:010d}-epoch-000001"
        for file in (KEEP_MARKER, "checkpoint/manifest.json"):
            store.write(f"{folder}/{file}", b"{}")
    return tmp_path / "runs"


def from_phoenix(name: str, step: int) -> tuple[str, ...]:
    return ("fork", "starling", "--as", name, "--set", f"start=phoenix@{step}")


def test_a_fork_from_where_nothing_is_kept_is_refused_with_the_nearest_and_the_ways_there(
    finished: Path, capsys: pytest.CaptureFixture[str]
):
    assert call(finished, *from_phoenix("x", 1099)) == 1
    check_message(capsys.readouterr().err)
    assert call(finished, *from_phoenix("x", 1300), "--set", 'acknowledge=["learning_rate"]') == 1
    check_message(capsys.readouterr().err)
    assert not list(finished.rglob("x.json"))


def test_a_fork_from_where_a_state_was_saved_says_what_publishes_it_first(
    finished: Path, capsys: pytest.CaptureFixture[str]
):
    assert call(finished, *from_phoenix("x", 1100)) == 0
    (first,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("first ")]
    words = shlex.split(first)
    assert call(finished, *words[words.index("--set") :], "--dry-run") == 2
    assert "step 1,100 was saved by an earlier attempt" in capsys.readouterr().out


def test_before_anything_is_trained_a_fork_may_start_anywhere_on_the_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert call(tmp_path, *from_phoenix("x", 1099)) == 0
    output = capsys.readouterr().out
    assert call(tmp_path, "plan", "--json", "--until", "x") == 2
    (step,) = (step for step in json.loads(capsys.readouterr().out)["steps"] if step["name"] == "x")
    (warning,) = step["warnings"]
    assert warning["cure"] == {"learning_rate.start_step": "1099", "until_step": "1199"}
    check_message(warning["text"])
    assert warning["text"] in output and "--set learning_rate.start_step=1099 --set until_step=1199" in output
    assert call(tmp_path, "--dry-run", "--until", "x") == 2
    assert f"x: {warning['text']}; instead: --set x.learning_rate" in capsys.readouterr().out
    assert call(tmp_path, "--dry-run", "--until", "starling") == 2
    assert warning["text"] not in capsys.readouterr().out
    assert "report/forks" in with_forks(tmp_path)


def test_a_drifted_fork_blocks_neither_the_page_of_forks_nor_gc(finished: Path, capsys: pytest.CaptureFixture[str]):
    assert call(finished, "fork", "phoenix", "--as", "z", "--set", "z_loss=1e-4") == 0
    assert call(finished, *from_phoenix("x", 1100)) == 0
    page = with_forks(finished).step("report/forks").config
    assert page.forks == {"z": "phoenix"} and page.introduction.endswith(f" {ABSENT}: x.")
    capsys.readouterr()
    assert call(finished, "gc") == 0
    listed = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    assert listed.count(["kept", "phoenix:"]) == 2
    certified = ("gc", "--good-of", "phoenix", "--older-than-days", "0")
    assert call(finished, *certified, "--yes") == 1
    assert len(list(finished.rglob(KEEP_MARKER))) == 2
    assert call(finished, "drop", "x") == 0
    assert call(finished, *certified) == 2


def test_a_name_may_have_folders_like_that_of_a_step(tmp_path: Path):
    fork = ("fork", "starling", "--as", "head/strong", "--set", "z_loss=1e-3")
    for _ in range(2):  # the outputs of a dropped fork block nothing
        assert call(tmp_path, *fork) == 0
        assert {"head/strong", "ema_eval/head/strong"} <= set(with_forks(tmp_path).names)
        assert call(tmp_path, "timeline", "head/strong") == 0
        assert call(tmp_path, "drop", "head/strong") == 0
        assert "head/strong" not in with_forks(tmp_path)
    assert call(tmp_path, *fork[:3], "../strong", *fork[4:]) == 1
    assert not Forks(open_store(str(tmp_path)), "tootsie").all()


def test_a_plan_has_the_phases_in_the_order_of_the_recipe_each_after_what_it_needs_and_forks_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    main_line = phases(LAPTOP, laptop_corpus(LAPTOP))
    recipe = [*main_line, *branches(LAPTOP, laptop_corpus(LAPTOP), main_line)]
    assert call(tmp_path, "fork", "kestrel", "--as", "early", "--set", "z_loss=1e-4") == 0
    capsys.readouterr()
    tables = []
    for _ in range(2):
        assert call(tmp_path, "--dry-run", "--every-step") == 2
        tables.append(
            [line.split()[0] for line in capsys.readouterr().out.split("\n\n")[0].splitlines() if line[0] > " "]
        )
    names, again = tables
    assert names == again and [name for name in names if name in recipe] == recipe
    assert names.index("early") > names.index(recipe[-1])
    place = {name: number for number, name in enumerate(names)}
    steps = with_forks(tmp_path).steps
    assert all(place[item.step.name] < place[step.name] for step in steps for _, item in step.inputs)


def test_a_fork_with_an_abrupt_change_is_refused_with_the_words_that_make_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    fork = ("fork", "phoenix", "--as", "seedy", "--set", "seed=4")
    assert call(tmp_path, *fork) == 1
    check_message(capsys.readouterr().err)
    assert not list(tmp_path.rglob("*seedy*"))
    assert call(tmp_path, *fork, "--set", 'acknowledge=["seed"]') == 0
    assert call(tmp_path, "--dry-run", "--until", "ema_eval/seedy") == 2


@pytest.mark.parametrize(
    ("base", "field"),
    [("phoenix", "validation_tokens_per_source"), ("ema_eval/phoenix", "max_tokens_per_domain")],
)
def test_a_fork_with_less_held_out_text_than_a_window_is_refused_with_the_words_that_make_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], base: str, field: str
):
    fork = ("fork", base, "--as", "short")
    assert call(tmp_path, *fork, "--set", f"{field}=100") == 1
    refusal = capsys.readouterr().err
    check_message(refusal)
    _, line = refusal.split("On the command line: ")
    words = shlex.split(line)
    assert words[0] == "--set" and len(words) == 2
    assert call(tmp_path, *fork, *words) == 0
    assert call(tmp_path, "--dry-run", "--until", "short") == 2
    if base == "phoenix":
        return
    assert call(tmp_path, "--dry-run", "--set", f"{base}.{field}=100") == 1
    check_message(capsys.readouterr().err)


@pytest.mark.parametrize("command", [("fork", "phoenix", "--as", "x", "--set", "z_loss=1e-4"), ("drop", "x")])
def test_a_command_that_only_writes_refuses_a_dry_run(tmp_path: Path, command: tuple[str, ...]):
    assert call(tmp_path, *command, "--dry-run") == 1
    assert not list(tmp_path.iterdir())


def test_a_fork_belongs_to_the_scale_it_was_made_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert call(tmp_path, "fork", "phoenix", "--as", "small", "--set", "until_step=1050") == 0
    assert call(tmp_path, "fork", "phoenix", "--as", "big", "--set", "until_step=830000", "--scale", "8b") == 0
    capsys.readouterr()
    assert call(tmp_path, "timeline", "--scale", "8b") == 0
    shown = capsys.readouterr().out
    assert "  big" in shown and "small" not in shown
    assert call(tmp_path, "drop", "small", "--scale", "8b") == 1
    check_message(capsys.readouterr().err)


def test_the_longest_fork_is_still_a_branch(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert call(tmp_path, "fork", "deeper_starling", "--as", "longer", "--set", "until_step=3000") == 0
    capsys.readouterr()
    assert call(tmp_path, "timeline") == 0
    assert "6 phases: 1,401 steps" in capsys.readouterr().out
    assert call(tmp_path, "mix") == 0
    headings = capsys.readouterr().out.splitlines()[0]
    assert "deeper_starling" in headings and "longer" not in headings


def test_a_fork_that_failed_holds_up_no_page_of_the_others_until_it_gets_further(finished: Path):
    for name, base in (("z", "phoenix"), ("y", "phoenix"), ("yy", "y"), ("w", "phoenix")):
        assert call(finished, "fork", base, "--as", name, "--set", f"z_loss={len(name) + ord(name[0])}e-6") == 0
    assert call(finished, "fork", "jellyfish", "--as", "v", "--set", "z_loss=1e-4") == 0
    graph, store = with_forks(finished), open_store(str(finished))
    assert list(graph.step("report/forks").config.forks) == ["z", "y", "yy", "w", "v"]
    for name in ("y", "ema_eval/w"):
        failure = Failure(
            key=graph.step(name).key,
            name=name,
            attempt=new_attempt(),
            error_type="ValueError",
            error="no",
            log_path="",
            is_transient=False,
            finished="2026-11-21T19:31:02+00:00",
            progress=progress_mark(store, graph.step(name).digest, graph.step(name).kind.resumes_at),
        )
        Records(store).record_failure(failure)
    page = with_forks(finished).step("report/forks").config
    assert list(page.forks) == ["z", "v"] and page.introduction.endswith(f" {ABSENT}: y, yy, w.")
    store.write(f"work/{graph.step('y').digest}/temporary/step-0000001100-epoch-000001/checkpoint/manifest.json", b"{}")
    assert list(with_forks(finished).step("report/forks").config.forks) == ["z", "y", "yy", "v"]


def test_forks_of_phases_have_a_page_of_their_own_and_leave_the_report_alone(tmp_path: Path):
    before = with_forks(tmp_path)
    assert "report/forks" not in before
    assert call(tmp_path, "fork", "filter/web", "--as", "filter/web2", "--set", "shards_in_flight=3") == 0
    assert "report/forks" not in with_forks(tmp_path), "it compares phases, and there is none to compare"

    assert call(tmp_path, "fork", "phoenix", "--as", "z", "--set", "z_loss=1e-4", "--reason", "the head") == 0
    assert call(tmp_path, "fork", "z", "--as", "zz", "--set", "z_loss=1e-3") == 0
    graph = with_forks(tmp_path)
    assert graph.step("report").digest == before.step("report").digest
    config = graph.step("report/forks").config
    assert config.forks == {"z": "phoenix", "zz": "z"} and config.fork_reasons == {"z": "the head"}
    assert config.parents["z"] == config.parents["zz"] == "jellyfish"
    assert config.evaluations["z"].step.name == "ema_eval/z"
    assert {change.field: change.after for change in config.recipe["z"]}["z_loss"] == "1e-4"
    assert {"z", "zz"} <= config.phases.keys() and config.evaluations["zz"].step.name == "ema_eval/zz"
    assert call(tmp_path, "drop", "zz") == 0
    assert with_forks(tmp_path).step("report/forks").config.forks == {"z": "phoenix"}
