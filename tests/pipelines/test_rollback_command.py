"""The `rollback` command: findings after a spike, and the commands that skip its batches."""

import json

import pytest

from marin_dag.ledger.checked_json import checked_json
from marin_dag.ledger.records import record_path
from marin_dag.store.prefix import open_store
from pipelines.rollback_command import LoggedFinding, findings_in
from tests.catalogue import check_message
from tests.marin_dag.ledger.test_records import a_record
from tests.pipelines.test_checkpoints_command import commands_in, recipe, run, save, with_short_program

GRAPH = recipe()
PHOENIX = GRAPH.step("phoenix")


def log(prefix, digest, *events, attempt="20260101-000000-0123abcd"):
    path = prefix / "work" / digest / "events" / f"{attempt}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


def alarm(monitor, step):
    return {"event": "alarm", "monitor": monitor, "step": step}


def settings_in(out):
    words = commands_in(out).get("roll back", [])
    return dict(word.split("=", 1) for word in words if "=" in word)


@pytest.fixture
def spiked(tmp_path):
    """phoenix, which begins at step 921, with three good checkpoints and a spike after them."""
    for step in (930, 950, 1100):
        save(tmp_path, PHOENIX.digest, step, is_good=True)
    log(
        tmp_path,
        PHOENIX.digest,
        alarm("grad_norm", 1110),
        alarm("loss_spike", 1150),
        {"event": "skipped", "step": 1160},
    )
    return tmp_path


def test_the_fork_starts_a_hundred_steps_before_the_first_finding(spiked, capsys):
    code, out, _ = run(spiked, capsys, "rollback", "phoenix")
    assert code == 0
    check_message(with_short_program(out))
    words = commands_in(out)["roll back"]
    assert words[:4] == ["fork", "phoenix", "--as", "phoenix-rollback"]
    settings = settings_in(out)
    # 1,100 is nearer than 100 steps; 1,160 + 100 - 950 batches are skipped.
    assert settings["start"] == "phoenix@950" and settings["skip_batches"] == "310"
    assert json.loads(settings["acknowledge"]) == ["skip_batches"]


def test_the_printed_fork_is_accepted_and_shown_by_plans(spiked, capsys):
    _, out, _ = run(spiked, capsys, "rollback", "phoenix")
    code, out, err = run(spiked, capsys, *commands_in(out)["roll back"])
    assert code == 0, err
    code, out, err = run(spiked, capsys, "--dry-run", "--until", "phoenix-rollback")
    assert code == 2 and "phoenix-rollback" in out and "acknowledge" not in err
    _, out, _ = run(spiked, capsys, "timeline", "phoenix-rollback", "--json")
    (phase,) = [phase for phase in json.loads(out)["phases"] if phase["name"] == "phoenix-rollback"]
    (change,) = [change for change in phase["changes"] if change["field"] == "skip_batches"]
    assert (change["after"], change["is_acknowledged"]) == ("310", True)


def test_findings_before_a_good_checkpoint_are_over(spiked, capsys):
    save(spiked, PHOENIX.digest, 1170, is_good=True)
    code, out, _ = run(spiked, capsys, "rollback", "phoenix")
    assert code == 0 and not commands_in(out)
    check_message(with_short_program(out))


def test_a_published_state_needs_no_command_to_publish_it(spiked, capsys):
    assert "publish" in commands_in(run(spiked, capsys, "rollback", "phoenix")[1])
    record = a_record("phoenix", PHOENIX.digest, 950)
    open_store(str(spiked)).write(record_path(record.key), checked_json(record))
    _, out, _ = run(spiked, capsys, "rollback", "phoenix")
    assert "publish" not in commands_in(out) and settings_in(out)["start"] == "phoenix@950"


def test_without_an_old_enough_checkpoint_the_start_of_the_phase_serves(tmp_path, capsys):
    starling = GRAPH.step("starling")
    begin = starling.config.begin_step
    log(tmp_path, starling.digest, alarm("loss_spike", begin + 99))
    _, out, _ = run(tmp_path, capsys, "rollback", "starling")
    assert commands_in(out)["try"][:2] == ["rollback", "phoenix"] and not settings_in(out)
    log(tmp_path, starling.digest, alarm("loss_spike", begin + 100))
    _, out, _ = run(tmp_path, capsys, "rollback", "starling")
    settings = settings_in(out)
    assert "start" not in settings and settings["skip_batches"] == "200"
    assert json.loads(settings["acknowledge"]) == [*starling.config.acknowledge, "skip_batches"]


def test_a_phase_that_skips_batches_at_its_start_skips_them_again(tmp_path, capsys):
    sets = ("--set", "starling.skip_batches=7")
    acknowledged = ("--set", 'starling.acknowledge=["skip_batches"]')
    starling = recipe("starling.skip_batches=7").step("starling")
    log(tmp_path, starling.digest, alarm("loss_spike", starling.config.begin_step + 150))
    _, out, _ = run(tmp_path, capsys, "rollback", "starling", *sets, *acknowledged)
    assert settings_in(out)["skip_batches"] == str(150 + 100 + 7)


def test_many_skipped_batches_and_a_changing_mixture_have_notes(tmp_path, capsys):
    segments = {"segments": [{"start_step": 0, "weights": {"web": 1}}, {"start_step": 300, "weights": {"web": 1}}]}
    text = json.dumps(segments)
    kestrel = recipe(f"kestrel.mixture={text}").step("kestrel")
    save(tmp_path, kestrel.digest, 100, is_good=True)
    log(tmp_path, kestrel.digest, alarm("update_norm", 550))
    _, out, _ = run(tmp_path, capsys, "rollback", "kestrel", "--set", f"kestrel.mixture={text}")
    assert settings_in(out)["skip_batches"] == "550"
    check_message(with_short_program(out))


def test_a_fork_of_a_phase_that_restored_less_restores_everything(tmp_path, capsys):
    sets = ("--set", "starling.restore=weights", "--set", 'starling.acknowledge=["restore"]')
    starling = recipe("starling.restore=weights").step("starling")
    begin = starling.config.begin_step
    save(tmp_path, starling.digest, begin + 10, is_good=True)
    log(tmp_path, starling.digest, alarm("loss_spike", begin + 110))
    settings = settings_in(run(tmp_path, capsys, "rollback", "starling", *sets)[1])
    assert settings["start"] == f"starling@{begin + 10}"
    assert (settings["restore"], settings["skip_batches"]) == ("everything", "200")


def test_other_steps_are_an_error(tmp_path, capsys):
    code, _, err = run(tmp_path, capsys, "rollback", "report")
    assert code == 1
    check_message(err)


def test_findings_are_those_of_batches_and_each_counts_once():
    events = [
        *(alarm(monitor, 10) for monitor in ("pace", "copies", "first_loss", "creep", "low_loss")),
        *(alarm("grad_norm", step) for step in (12, 12)),
        {"event": "error", "message": "no space left"},
        {"event": "error", "message": "loss is nan", "step": 14},
    ]
    assert findings_in(events) == [LoggedFinding(12, "grad_norm"), LoggedFinding(14, "failed step")]
