"""The `checkpoints` command: lists checkpoints, and prints commands that start from a good one."""

import json
import shlex

import jax.numpy as jnp
import pytest

from marin_dag.cli.session import program_words
from marin_dag.graph.assignments import build_graph
from marin_dag.graph.graph import Graph
from marin_dag.ledger.checked_json import checked_json
from marin_dag.ledger.records import record_path
from marin_dag.store.prefix import open_store
from pipelines import tootsie
from pipelines.corpus import laptop_corpus
from pipelines.scales import LAPTOP
from runtime.training import checkpoint
from runtime.training.temporary import TemporaryCheckpoints
from tests.catalogue import check_message
from tests.marin_dag.ledger.test_records import a_record


def run(prefix, capsys, *words):
    code = tootsie.main([*words, "--prefix", str(prefix)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def commands_in(out):
    """Return label -> words of the command after it, without python and the script."""
    lines = [line for line in out.splitlines() if line[:12].strip()]
    return {line[:12].strip(): shlex.split(line[12:])[2:] for line in lines if " --" in line[12:]}


def with_short_program(out):
    """Return the output with the program of the recipe instead of the one that runs the tests."""
    python, script = program_words()
    return out.replace(f"{python} {script}", "python pipelines/tootsie.py").replace(python, "python")


def save(prefix, digest, step, *, is_good):
    temporary = TemporaryCheckpoints(f"{prefix}/work/{digest}/temporary", lease_epoch=3)
    metadata = {"step": step, "consumed_tokens": step * 1000}
    checkpoint.save(f"{temporary.folder_of(step)}/checkpoint", {"w": jnp.zeros(2)}, metadata).wait()
    if is_good:
        temporary.mark_good(step, good_steps=50)
    return temporary.folder_of(step)


def recipe(*assignments):
    """Return the graph of the laptop recipe with assignments as `--set` takes them."""
    return build_graph(lambda: Graph([tootsie.tootsie(LAPTOP, laptop_corpus(LAPTOP))[0]]), assignments)


@pytest.fixture(scope="module")
def graph():
    return recipe()


def test_without_a_name_the_newest_checkpoint_of_each_phase_is_listed(tmp_path, capsys, graph):
    phoenix, last = graph.step("phoenix"), graph.step("deeper_starling")
    for step, is_good in ((1000, True), (1100, True), (1150, False)):
        save(tmp_path, phoenix.digest, step, is_good=is_good)
    save(tmp_path, last.digest, last.until - 60, is_good=True)
    for words in (("checkpoints",), ("checkpoints", "--good")):
        code, out, _ = run(tmp_path, capsys, *words)
        assert code == 0
        check_message(out)


def test_with_a_name_all_its_checkpoints_are_listed_with_commands_to_start_from_the_newest_good_one(
    tmp_path, capsys, graph
):
    phoenix = graph.step("phoenix")
    for step, is_good in ((1000, True), (1100, True), (1150, False)):
        folder = save(tmp_path, phoenix.digest, step, is_good=is_good)
    code, out, _ = run(tmp_path, capsys, "checkpoints", "phoenix")
    assert code == 0
    assert [line.split()[2] for line in out.splitlines()[:3]] == ["1,150", "1,100", "1,000"]
    assert folder.replace("1150", "1100") in out
    commands = commands_in(out)
    assert commands["publish"][:4] == ["--set", "phoenix.until_step=1100", "--until", "phoenix"]
    assert recipe("phoenix.until_step=1100").step("phoenix").digest == phoenix.digest
    assert run(tmp_path, capsys, *commands["publish"][:4], "--dry-run")[0] == 2
    fork = commands["start here"]
    assert fork[:6] == ["fork", "phoenix", "--as", "phoenix-again", "--set", "start=phoenix@1100"]
    fork[7] = "z_loss=2e-4"
    code, _, err = run(tmp_path, capsys, *fork[:-2])
    assert code == 0, err
    _, out, _ = run(tmp_path, capsys, "checkpoints", "phoenix")
    assert "phoenix-again-2" in commands_in(out)["start here"], "the first name is in use"


def test_a_published_checkpoint_needs_no_command_to_publish_it(tmp_path, capsys, graph):
    phoenix, jellyfish = graph.step("phoenix"), graph.step("jellyfish")
    save(tmp_path, phoenix.digest, 1100, is_good=True)
    save(tmp_path, jellyfish.digest, 900, is_good=True)
    record = a_record("phoenix", phoenix.digest, 1100)
    open_store(str(tmp_path)).write(record_path(record.key), checked_json(record))
    outputs = [run(tmp_path, capsys, "checkpoints", name)[1] for name in ("phoenix", "jellyfish")]
    assert run(tmp_path, capsys, "checkpoints", "phoenix", "jellyfish") == (0, "\n".join(outputs[::-1]), "")
    assert "publish" not in commands_in(outputs[0]) and "publish" in commands_in(outputs[1])


def test_without_checkpoints_nothing_is_written_and_other_steps_are_an_error(tmp_path, capsys):
    prefix = tmp_path / "runs"
    for words in (("checkpoints",), ("checkpoints", "--good"), ("checkpoints", "kestrel")):
        code, out, _ = run(prefix, capsys, *words)
        assert code == 0
        check_message(out)
    code, _, err = run(prefix, capsys, "checkpoints", "report")
    assert code == 1
    check_message(err)
    assert not list(prefix.rglob("*"))


@pytest.mark.parametrize(
    "events",
    [
        [("phase", None)],
        [("begin", 1201), ("progress", 1250)],
        [("checkpoint", 1260), ("progress", 1301)],
        [("checkpoint", 1210), ("skipped", 1230), ("alarm", 1270), ("end", 1301)],
        [("checkpoint", 1210), ("good_checkpoint", 1210), ("checkpoint", 1260), ("skipped", 1265), ("end", 1301)],
        [("skipped", 1205), ("checkpoint", 1210), ("skipped", 1230), ("skipped", 1270), ("end", 1301)],
    ],
)
def test_a_phase_without_good_checkpoints_has_a_reason_from_its_logs(tmp_path, capsys, graph, events):
    starling = graph.step("starling")
    log = tmp_path / "work" / starling.digest / "events" / "20260101-000000-0123abcd.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text(
        "".join(
            json.dumps({"event": event} | ({} if step is None else {"step": step})) + "\n" for event, step in events
        )
    )
    code, out, _ = run(tmp_path, capsys, "checkpoints", "starling")
    assert code == 0
    check_message(out)
