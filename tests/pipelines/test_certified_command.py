"""`certified`: which state one can go back to, and the lines that do it."""

import json
import shlex

import jax.numpy as jnp
import pytest

from marin_dag.graph.graph import Graph
from marin_dag.ledger.records import record_path
from marin_dag.store.prefix import open_store
from pipelines import tootsie
from pipelines.scales import LAPTOP
from runtime.training import checkpoint
from runtime.training.temporary import TemporaryCheckpoints
from tests.marin_dag.ledger.test_records import a_record


def run(prefix, capsys, *words):
    code = tootsie.main([*words, "--prefix", str(prefix)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def save(prefix, digest, step, *, is_certified):
    temporary = TemporaryCheckpoints(f"{prefix}/work/{digest}/temporary", lease_epoch=3)
    metadata = {"step": step, "consumed_tokens": step * 1000}
    checkpoint.save(f"{temporary.folder_of(step)}/checkpoint", {"w": jnp.zeros(2)}, metadata).wait()
    if is_certified:
        temporary.certify(step, good_steps=50)
    return temporary.folder_of(step)


def test_it_lists_the_newest_certified_state_of_each_phase_and_prints_lines_that_go_back_to_it(tmp_path, capsys):
    prefix = tmp_path / "runs"
    phases = Graph([tootsie.tootsie(LAPTOP, tootsie.laptop_corpus(LAPTOP))[0]])
    phoenix, last = phases.step("phoenix"), phases.step("deeper_starling")
    for step, is_certified in ((1000, True), (1100, True), (1150, False)):
        folder = save(prefix, phoenix.digest, step, is_certified=is_certified)
    last_step = last.until - 60
    save(prefix, last.digest, last_step, is_certified=True)
    code, out, _ = run(prefix, capsys, "certified")
    assert code == 0
    listed = [line.split() for line in out.splitlines()]
    assert " ".join(listed[0]) == "phoenix step 1,100 1,100,000 tokens then 50 good updates"
    assert listed[1][:3] == ["deeper_starling", "step", f"{last.until - 60:,}"]
    assert len(listed) == 3 and out.splitlines()[2][12:].endswith(f" certified deeper_starling --prefix {prefix}")
    code, out, _ = run(prefix, capsys, "certified", "phoenix")
    older, said_first = out.splitlines()[1], out.splitlines()[2]
    assert older.split()[1:3] == ["step", "1,000"] and said_first.startswith("the newest first")
    said = {line[:12].strip(): line[12:] for line in out.splitlines()[3:]}
    assert said["lies in"] == folder.replace("1150", "1100")
    publish, fork = (shlex.split(said[what])[2:] for what in ("publish it", "go on from"))
    assert publish[:4] == ["--set", "phoenix.until_step=1100", "--until", "phoenix"]
    assert phases.override("phoenix", "until_step", "1100").step("phoenix").digest == phoenix.digest
    assert run(prefix, capsys, *publish[:4], "--dry-run")[0] == 2
    assert fork[:4] == ["fork", "starling", "--as", "starling-again"]
    (note,) = [line.strip() for line in out.splitlines() if line.startswith("            ")]
    assert note.startswith("its decay begins at step 1,201 and the phase at 1,100: the rate stays at 5.1e-3")
    assert note.endswith("; instead, with: --set learning_rate.start_step=1100 --set until_step=1200")
    code, out, err = run(prefix, capsys, *fork[:-2])
    assert code == 0, err
    assert "from step 1100, certified by 50 good updates" in run(prefix, capsys, "ls")[1]
    _, out, _ = run(prefix, capsys, "certified", "phoenix")
    (another,) = [line for line in out.splitlines() if line.startswith("go on from")]
    assert "fork starling --as starling-again-2 --set start=phoenix@1100" in another, "the first name is taken"
    _, out, _ = run(prefix, capsys, "certified", "deeper_starling")
    (last,) = [shlex.split(line[12:])[2:] for line in out.splitlines() if line.startswith("go on from")]
    start = ["--set", f"start=deeper_starling@{last_step}"]
    assert last[:8] == ["fork", "deeper_starling", "--as", "deeper_starling-again", *start, "--set", "FIELD=VALUE"]
    last[7] = "z_loss=2e-4"
    code, out, err = run(prefix, capsys, *last[:-2])
    assert code == 0, err


def test_where_the_recipe_stops_before_a_certified_state_now_the_state_is_listed_all_the_same(tmp_path, capsys):
    prefix = tmp_path / "runs"
    last = Graph([tootsie.tootsie(LAPTOP, tootsie.laptop_corpus(LAPTOP))[0]]).step("deeper_starling")
    save(prefix, last.digest, last.until - 10, is_certified=True)
    code, out, err = run(
        prefix, capsys, "certified", "deeper_starling", "--set", f"deeper_starling.until_step={last.until - 60}"
    )
    assert (code, err) == (0, "") and f"step {last.until - 10:>11,}" in out
    assert f"deeper_starling stops at step {last.until - 60:,} now, which is no way on from here" in out


def test_where_nothing_is_certified_it_says_so_and_a_step_that_trains_nothing_is_refused(tmp_path, capsys):
    prefix = tmp_path / "runs"
    code, out, _ = run(prefix, capsys, "certified")
    assert (code, out.split(":")[0]) == (0, "nothing of these phases is certified")
    assert "certified kestrel --prefix" in out.splitlines()[1], "to be pasted as it is"
    assert "nothing of kestrel is certified" in run(prefix, capsys, "certified", "kestrel")[1]
    code, _, err = run(prefix, capsys, "certified", "report")
    assert code == 1 and "certified report: it trains nothing; name a phase" in err
    code, _, err = run(prefix, capsys, "certified", "--dry-run")
    assert code == 1 and "--dry-run" in err
    assert not list(prefix.rglob("*"))


def test_of_several_phases_it_says_what_it_says_of_each_and_of_one_that_is_published_where(tmp_path, capsys):
    prefix = tmp_path / "runs"
    graph = Graph([tootsie.tootsie(LAPTOP, tootsie.laptop_corpus(LAPTOP))[0]])
    phoenix, jellyfish = graph.step("phoenix"), graph.step("jellyfish")
    save(prefix, phoenix.digest, 1100, is_certified=True)
    save(prefix, jellyfish.digest, 900, is_certified=True)
    record = a_record("phoenix", phoenix.digest, 1100)
    store = open_store(str(prefix))
    store.write(record_path(record.key), record.model_dump_json().encode())
    of_one = [run(prefix, capsys, "certified", name)[1] for name in ("phoenix", "jellyfish")]
    assert run(prefix, capsys, "certified", "phoenix", "jellyfish") == (0, "\n".join(of_one), "")
    assert f"\npublished   {prefix}/{record.output_path}\n" in of_one[0] and "publish it" not in of_one[0]
    assert "\npublish it  " in of_one[1] and "fork phoenix --as phoenix-again" in of_one[1]


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([], "it has not trained under this prefix as the recipe stands now"),
        ([("phase", None)], "it is at step 1,201 and has saved no state on its way"),
        (
            [("begin", 1201), ("progress", 1250)],
            "it is at step 1,250 and has saved no state on its way, of which one is due every 100 updates",
        ),
        (
            [("checkpoint", 1260), ("progress", 1301)],
            "50 good updates in a row certify a state, and behind its first save, at step 1,260, it has made 41",
        ),
        (
            [("checkpoint", 1210), ("skipped", 1230), ("alarm", 1270), ("end", 1301)],
            "50 good updates in a row certify a state, and behind its saves a monitor alarmed, the last at step 1,270",
        ),
        (
            [("checkpoint", 1210), ("certified", 1210), ("checkpoint", 1260), ("skipped", 1265), ("end", 1301)],
            "step 1,210 was, the last of 1, and no such state lies under this prefix: `gc --certified` let it go, or",
        ),
        (
            [("skipped", 1205), ("checkpoint", 1210), ("skipped", 1230), ("skipped", 1270), ("end", 1301)],
            "50 good updates in a row certify a state, and updates behind its saves were skipped, "
            "the last at step 1,270",
        ),
    ],
)
def test_where_nothing_of_a_phase_is_certified_its_log_tells_why(tmp_path, capsys, events, why):
    starling = Graph([tootsie.tootsie(LAPTOP, tootsie.laptop_corpus(LAPTOP))[0]]).step("starling")
    log = tmp_path / "runs" / "work" / starling.digest / "events" / "20260101-000000-0123abcd.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text(
        "".join(
            json.dumps({"event": event} | ({} if step is None else {"step": step})) + "\n" for event, step in events
        )
    )
    code, out, _ = run(tmp_path / "runs", capsys, "certified", "starling")
    assert code == 0 and out.startswith(f"nothing of starling is certified: {why}")
