"""`certified PHASE` after a spike: what was seen, and the line that goes around it, to be pasted as it is."""

import json
import shlex

import pytest
from pipelines.going_around import Sighting, sightings
from tests.pipelines.test_certified_command import run, save

from marin_dag.graph.graph import Graph
from marin_dag.ledger.records import record_path
from marin_dag.quantities import in_short
from marin_dag.store.prefix import open_store
from pipelines import tootsie
from pipelines.scales import LAPTOP
from tests.marin_dag.ledger.test_records import a_record

GRAPH = Graph([tootsie.tootsie(LAPTOP, tootsie.laptop_corpus(LAPTOP))[0]])
PHOENIX = GRAPH.step("phoenix")


def log(prefix, digest, *events, attempt="20260101-000000-0123abcd"):
    path = prefix / "work" / digest / "events" / f"{attempt}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


def alarm(monitor, step):
    return {"event": "alarm", "monitor": monitor, "step": step}


def told(out):
    """Label to line; words without a label follow the label before them."""
    found, label = {}, ""
    for line in out.splitlines():
        label = line[:12].strip() or label
        found[label] = f"{found[label]} {line.strip()}" if label in found else line[12:].strip()
    return found


def at(step):
    return {"event": "progress", "step": step}


@pytest.fixture
def spiked(tmp_path):
    """phoenix, which begins at 921, certified thrice, with a spike behind that."""
    prefix = tmp_path / "runs"
    for step in (930, 950, 1100):
        save(prefix, PHOENIX.digest, step, is_good=True)
    log(prefix, PHOENIX.digest, alarm("grad_norm", 1110), alarm("loss_spike", 1150), {"event": "skipped", "step": 1160})
    return prefix


def test_it_tells_what_was_seen_and_the_line_goes_back_a_hundred_updates_before_the_first_of_it(spiked, capsys):
    log(spiked, PHOENIX.digest, alarm("grad_norm", 1110), at(1190), attempt="20260101-000001-0123abcd")
    code, out, _ = run(spiked, capsys, "certified", "phoenix")
    said = told(out)
    assert code == 0
    assert said["since then"] == (
        "grad_norm at step 1,110; 3 findings, the last at step 1,160 (an update left out by the skip rule); "
        "then 30 updates without one"
    )
    words = shlex.split(said["go around"].partition(" from step")[0])[2:]
    assert words[:4] == ["fork", "phoenix", "--as", "phoenix-around"]
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    # 1,100 is nearer than 100 updates; 1,160 + 100 - 950 batches are left out.
    assert settings["start"] == "phoenix@950" and settings["skip_batches"] == "310"
    assert json.loads(settings["acknowledge"]) == ["skip_batches"]
    tokens = 310 * PHOENIX.config.global_batch_size * PHOENIX.config.sequence_length
    assert f"with 310 batches left out, {in_short(tokens)} tokens" in said["go around"]
    assert "PaLM left out" not in out and "docs/checkpoints-and-resume.md, Going around" in out
    assert "--force phoenix --until phoenix" in said["repeat it"]
    _, *compare = shlex.split(said["compare"])
    assert compare == ["-m", "runtime.training.replay", str(spiked)]
    assert "--set phoenix.until_step=950 --until phoenix" in out


def test_the_line_can_be_pasted_and_gives_a_phase_that_a_plan_accepts_and_tells_of(spiked, capsys):
    _, out, _ = run(spiked, capsys, "certified", "phoenix")
    words = shlex.split(told(out)["go around"].partition(" from step")[0])[2:]
    code, out, err = run(spiked, capsys, *words)
    assert code == 0, err
    assert "skip_batches is 310: as it begins" in out
    assert "around grad_norm at step 1110" in run(spiked, capsys, "ls")[1]
    code, out, err = run(spiked, capsys, "--dry-run", "--until", "phoenix-around")
    assert "phoenix-around" in out and "tokens of its data are left out" in out
    assert "acknowledge" not in err
    _, out, _ = run(spiked, capsys, "timeline", "phoenix-around")
    assert "~ skip_batches" in out and "0  ->  310" in out and "acknowledged: a jump at step 950" in out
    _, out, _ = run(spiked, capsys, "mix", "phoenix-around")
    assert "of phoenix-around" in out and "tokens are left out as it begins (skip_batches)" in out


def test_what_was_certified_since_is_over(spiked, capsys):
    save(spiked, PHOENIX.digest, 1170, is_good=True)
    _, out, _ = run(spiked, capsys, "certified", "phoenix")
    assert "since then" not in out and "skip_batches" not in out


def test_a_state_that_is_published_is_gone_on_from_as_it_is(spiked, capsys):
    record = a_record("phoenix", PHOENIX.digest, 950)
    open_store(str(spiked)).write(record_path(record.key), record.model_dump_json().encode())
    _, out, _ = run(spiked, capsys, "certified", "phoenix")
    assert "phoenix.until_step=950" not in out and "start=phoenix@950" in out


def test_where_none_of_its_states_is_old_enough_its_own_start_is_if_it_lies_far_enough_back(tmp_path, capsys):
    prefix = tmp_path / "runs"
    starling = GRAPH.step("starling")
    begin = starling.config.begin_step
    log(prefix, starling.digest, alarm("loss_spike", begin + 99), at(begin + 99))
    _, out, _ = run(prefix, capsys, "certified", "starling")
    assert "none of its states is 100 updates older than the first" in out
    assert "certified phoenix" in told(out)["look at"] and "skip_batches" not in out
    log(prefix, starling.digest, alarm("loss_spike", begin + 100), at(begin + 100))
    _, out, _ = run(prefix, capsys, "certified", "starling")
    words = shlex.split(told(out)["go around"].partition(" from step")[0])[2:]
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    assert "start" not in settings and settings["skip_batches"] == "200"
    assert json.loads(settings["acknowledge"]) == [*starling.config.acknowledge, "skip_batches"]


def test_a_phase_that_left_batches_out_itself_leaves_those_out_again(tmp_path, capsys):
    prefix = tmp_path / "runs"
    sets = ("--set", "starling.skip_batches=7")
    acknowledged = ("--set", 'starling.acknowledge=["skip_batches"]')
    starling = GRAPH.override("starling", "skip_batches", "7").step("starling")
    log(prefix, starling.digest, alarm("loss_spike", starling.config.begin_step + 150))
    _, out, _ = run(prefix, capsys, "certified", "starling", *sets, *acknowledged)
    assert f"--set skip_batches={150 + 100 + 7}" in out


def test_more_than_palm_left_out_is_said_and_so_is_a_mixture_that_changes_meanwhile(tmp_path, capsys):
    prefix = tmp_path / "runs"
    kestrel = GRAPH.step("kestrel")
    save(prefix, kestrel.digest, 100, is_good=True)
    log(prefix, kestrel.digest, alarm("update_norm", 550))
    segments = {"segments": [{"start_step": 0, "weights": {"web": 1}}, {"start_step": 300, "weights": {"web": 1}}]}
    _, out, _ = run(prefix, capsys, "certified", "kestrel")
    assert "--set skip_batches=550" in out and "PaLM left out 200 to 500; there is no nearer state" in out
    changing = GRAPH.override("kestrel", "mixture", json.dumps(segments)).step("kestrel")
    save(prefix, changing.digest, 100, is_good=True)
    log(prefix, changing.digest, alarm("update_norm", 550))
    _, out, _ = run(prefix, capsys, "certified", "kestrel", "--set", f"kestrel.mixture={json.dumps(segments)}")
    assert "they are of the mixture at step 100, and not of the one from 300 on" in out


def test_where_its_own_beginning_restored_less_the_fork_restores_everything(tmp_path, capsys):
    prefix = tmp_path / "runs"
    sets = ("--set", "starling.restore=weights", "--set", 'starling.acknowledge=["restore"]')
    starling = GRAPH.override("starling", "restore", "weights").step("starling")
    begin = starling.config.begin_step
    save(prefix, starling.digest, begin + 10, is_good=True)
    log(prefix, starling.digest, alarm("loss_spike", begin + 110))
    _, out, _ = run(prefix, capsys, "certified", "starling", *sets)
    assert f"--set start=starling@{begin + 10} --set restore=everything --set skip_batches=200" in out


def test_only_what_other_batches_may_mend_is_gone_around_and_once_however_many_attempts_met_it():
    events = [
        *(alarm(monitor, 10) for monitor in ("pace", "copies", "first_loss", "creep", "low_loss")),
        *(alarm("grad_norm", step) for step in (12, 12)),
        {"event": "error", "message": "no space left"},
        {"event": "error", "message": "loss is nan", "step": 14},
    ]
    assert sightings(events) == [Sighting(12, "grad_norm"), Sighting(14, "an update that could not stand")]
