"""`curves`: each phase with its own updates, of the newest state that is whole, for people and for other tools."""

import errno
import json
import re
import shlex
import shutil
import subprocess
import sys
import types
import uuid
from pathlib import Path

import jax.numpy as jnp
import pytest

from marin_dag.graph.graph import Graph
from marin_dag.ledger.records import Records
from marin_dag.plan.forks import Forks
from marin_dag.store.prefix import open_store
from pipelines import tootsie
from pipelines.scales import LAPTOP
from pipelines.timeline import legs_in, phases_in
from runtime.report.page import CURVES_COMMAND
from runtime.report.scales import tokens_label
from runtime.tracking import tensorboard_export
from runtime.tracking.events import EventLog
from runtime.tracking.log_names import log_name
from runtime.tracking.metrics import MetricsRow, MetricsTable
from runtime.tracking.source_losses import SourceLosses, SourceLossesTable
from runtime.training import checkpoint
from runtime.training.run_state import CHECKPOINT, METRICS, SOURCE_LOSSES
from runtime.training.temporary import TemporaryCheckpoints
from tests.marin_dag.ledger.test_records import a_record
from tests.runtime.tracking.test_curves import events_in, records_in


def run(prefix, capsys, *words):
    code = tootsie.main([*words, "--prefix", str(prefix)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture(scope="module")
def phases():
    return Graph([tootsie.tootsie(LAPTOP, tootsie.laptop_corpus(LAPTOP))[0]])


def save(prefix, digest, step, *, loss, left_out=(), folder=None):
    """A checkpoint, a temporary one if no folder is named, with the tables of all updates up to its own."""
    metrics, losses = MetricsTable(), SourceLossesTable()
    for row in range(1, step + 1):
        metrics.append(MetricsRow(row, row * 1000, 4, 28, 1e-3, loss, 0.0, 1.5, 0.1, 10.0, 3.4, int(row in left_out)))
        losses.append([SourceLosses(row, "web", "w", 1.0, 4, 28, 28 * loss, 28 * 3.5)])
    folder = folder or TemporaryCheckpoints(f"{prefix}/work/{digest}/temporary", lease_epoch=3).folder_of(step)
    beside = {METRICS: metrics.to_parquet, SOURCE_LOSSES: losses.to_parquet}
    metadata = {"step": step, "consumed_tokens": step * 1000}
    checkpoint.save(f"{folder}/{CHECKPOINT}", {"w": jnp.zeros(2)}, metadata, beside=beside).wait()
    return folder


def publish(prefix, digest, step, *, loss):
    store = open_store(str(prefix))
    record = a_record("kestrel", digest, milestone=step)
    save(prefix, digest, step, loss=loss, folder=store.url(record.output_path))
    Records(store).commit(record)


def damage(folder, name):
    file = Path(folder, name)
    file.write_bytes(b"x" + file.read_bytes()[1:])


def test_the_command_that_the_report_names_is_one(tmp_path, capsys):
    words = shlex.split(CURVES_COMMAND)
    assert words[:3] == ["python", "pipelines/tootsie.py", "curves"]
    code, out, error = run(tmp_path, capsys, *words[2:])
    assert code == 1 and "so there are no curves" in out and not error


def test_each_phase_is_told_and_written_with_its_own_updates(tmp_path, capsys, phases):
    prefix = tmp_path / "runs"
    kestrel, ocelot = phases.step("kestrel"), phases.step("ocelot")
    code, out, _ = run(prefix, capsys, "curves")
    assert (code, out) == (
        0,
        f"nothing of these phases is saved under {prefix} as the recipe stands now, so there are no curves\n",
    )
    for option, place in (
        ("--validation", "page.html"),
        ("--norms", "norms.html"),
        ("--tensorboard", "board"),
        ("--wandb", "wandb"),
    ):
        assert run(prefix, capsys, "curves", option, str(tmp_path / place))[0] == 1, (
            "it was asked for, and is not there"
        )
    save(prefix, kestrel.digest, 10, loss=4.0)
    save(prefix, kestrel.digest, 12, loss=3.0, left_out=(11,))
    last = kestrel.until + 3
    torn = save(prefix, ocelot.digest, last + 5, loss=1.0)
    checkpoint.CheckpointFiles(f"{torn}/{CHECKPOINT}").delete("manifest.json")
    save(prefix, ocelot.digest, last, loss=2.0, left_out=range(1, 6))
    with EventLog(f"{prefix}/work/{ocelot.digest}/events/{log_name('a', 0)}") as events:
        for step in (last - 1, last + 5):
            events.write("norms", step=step, gradient={"layers.w": [1.5, 2.5]}, update={}, parameters={"norm": 3.0})
    board = tmp_path / "board"
    code, out, _ = run(prefix, capsys, "curves", "--tensorboard", str(board))
    first, second, how = [line.split() for line in out.splitlines()]
    assert (code, how) == (0, ["tensorboard", "--logdir", str(board)])
    assert first == [
        "kestrel",
        "step",
        "12",
        "12,000",
        "tokens",
        "loss",
        "3.0000",
        "gradient",
        "1.500",
        "1",
        "left",
        "out",
    ]
    assert second == f"ocelot step {last:,} {last * 1000:,} tokens loss 2.0000 gradient 1.500".split()
    (kestrels,), (ocelots,) = ((board / name).iterdir() for name in ("kestrel", "ocelot"))
    assert [step for step, _ in events_in(kestrels)] == list(range(1, 13))
    told = list(events_in(ocelots))
    assert [step for step, _ in told] == [last - 2, last - 1, last]
    assert {figures["loss_by_source/web"] for _, figures in told} == {2.0}
    assert {figures["log_normalizer_by_source/web"] for _, figures in told} == {3.5}
    of_parts = [{name: norm for name, norm in figures.items() if "_by_part/" in name} for _, figures in told]
    by_part = ("grad_norm_by_part/layers.0.w", "grad_norm_by_part/layers.1.w", "param_norm_by_part/norm")
    assert of_parts == [{}, dict(zip(by_part, (1.5, 2.5, 3.0), strict=True)), {}]
    code, out, _ = run(prefix, capsys, "curves", "kestrel")
    assert code == 0 and len(out.splitlines()) == 1 and out.startswith("kestrel ")
    code, out, _ = run(prefix, capsys, "curves", "phoenix", "kestrel")
    assert code == 0 and out.startswith("kestrel ")
    assert [line.split(maxsplit=1) for line in out.splitlines()[1:]] == [
        ["phoenix", "nothing of it is saved as the recipe stands now"]
    ]


def test_gradients_by_layer_are_drawn_of_the_phases_that_told_enough_of_them(tmp_path, capsys, phases):
    file = tmp_path / "norms.html"
    for name, step in (("kestrel", 8), ("ocelot", phases.step("kestrel").until + 2)):
        save(tmp_path, phases.step(name).digest, step, loss=4.0)
    code, out, _ = run(tmp_path, capsys, "curves", "--norms", str(file))
    few = "fewer than 4 updates up to the newest checkpoint have told norms (norms_every_steps)"
    assert (code, out.splitlines()[-1]) == (1, f"no gradients are drawn of kestrel, ocelot: {few}")
    assert not file.exists()
    with EventLog(f"{tmp_path}/work/{phases.step('kestrel').digest}/events/{log_name('a', 0)}") as events:
        for step in (2, 4, 6, 8, 10):
            gradient = {"layers.w": [1.0, 9.0 if step == 6 else 1.0]}
            events.write("norms", step=step, gradient=gradient, update={}, parameters={})
    code, out, _ = run(tmp_path, capsys, "curves", "--norms", str(file))
    assert (code, out.splitlines()[-2:]) == (0, [f"no gradients are drawn of ocelot: {few}", f"drawn: {file}"])
    page = file.read_text()
    assert "told at 4 updates, from 2 to 8" in page and "layer 1, updates 6 to 6: 9 times its median" in page
    assert "no gradients are drawn of ocelot" in page
    assert "is no kind of picture" in run(tmp_path, capsys, "curves", "--norms", "norms.png")[2]


def test_the_newest_state_is_told_and_at_one_step_the_published_one(tmp_path, capsys, phases):
    digest = phases.step("kestrel").digest
    save(tmp_path, digest, 5, loss=1.0)
    publish(tmp_path, digest, 5, loss=2.0)
    assert "loss 2.0000" in run(tmp_path, capsys, "curves")[1]
    save(tmp_path, digest, 6, loss=3.0)
    assert "loss 3.0000" in run(tmp_path, capsys, "curves")[1]


def test_a_run_is_read_out_of_a_bucket(tmp_path, gcs_bucket, capsys, phases):
    prefix = f"gs://{gcs_bucket}/{uuid.uuid4().hex}"
    kestrel, ocelot = phases.step("kestrel"), phases.step("ocelot")
    publish(prefix, kestrel.digest, 3, loss=2.0)
    save(prefix, ocelot.digest, kestrel.until + 2, loss=1.0)
    code, out, err = run(prefix, capsys, "curves", "--tensorboard", str(tmp_path / "board"))
    assert code == 0, err
    assert [line.split()[:3] for line in out.splitlines()[:2]] == [
        ["kestrel", "step", "3"],
        ["ocelot", "step", f"{kestrel.until + 2:,}"],
    ]
    (kestrels,), (ocelots,) = ((tmp_path / "board" / name).iterdir() for name in ("kestrel", "ocelot"))
    assert [len(list(events_in(file))) for file in (kestrels, ocelots)] == [3, 2]


def test_wandb_is_given_a_run_a_phase_and_the_line_that_sends_it_can_be_pasted(tmp_path, phases):
    """In a child: W&B starts a service of its own, and its warnings are not ours."""
    from wandb.proto.wandb_internal_pb2 import Record

    kestrel = phases.step("kestrel")
    save(tmp_path / "runs", kestrel.digest, 3, loss=2.0)
    folder = tmp_path / "my folder"
    command = [
        sys.executable,
        "pipelines/tootsie.py",
        "curves",
        "--prefix",
        str(tmp_path / "runs"),
        "--wandb",
        str(folder),
    ]
    done = subprocess.run(command, timeout=480, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    told, how = done.stdout.splitlines()
    assert told.startswith("kestrel ")
    program, verb, written = shlex.split(how)
    assert (program, verb, Path(written).parent) == ("wandb", "sync", folder / "wandb")
    records = [Record.FromString(data) for data in records_in(Path(written, f"run-{kestrel.digest[:16]}.wandb"))]
    (begun,) = (record.run for record in records if record.HasField("run"))
    assert (begun.project, begun.display_name) == ("tootsie", "kestrel")
    config = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert config["until_step"] == kestrel.until and "start" not in config
    assert len([record for record in records if record.HasField("history")]) == 3


def test_lines_to_paste_are_quoted(tmp_path, capsys, phases):
    save(tmp_path / "runs", phases.step("kestrel").digest, 2, loss=2.0)
    board = str(tmp_path / "my board's")
    _, out, _ = run(tmp_path / "runs", capsys, "curves", "--tensorboard", board)
    assert shlex.split(out.splitlines()[-1]) == ["tensorboard", "--logdir", board]


def test_a_damaged_phase_is_told_in_one_line_and_hides_no_other(tmp_path, capsys, phases):
    kestrel, ocelot, jellyfish = (phases.step(name) for name in ("kestrel", "ocelot", "jellyfish"))
    folder = save(tmp_path, kestrel.digest, 3, loss=2.0)
    damage(folder, METRICS)
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / f"{ocelot.digest}@5.json").write_text("{")
    save(tmp_path, jellyfish.digest, ocelot.until + 1, loss=2.0)
    code, out, err = run(tmp_path, capsys, "curves")
    assert (code, err) == (1, "")
    first, second, third = out.splitlines()
    assert first.startswith("kestrel ") and f"{folder}/checkpoint: file metrics.parquet is damaged: its CRC32C" in first
    assert second.startswith("ocelot ") and "not a record of this program" in second
    assert third.startswith("jellyfish ") and "loss 2.0000" in third


def test_what_is_only_of_sources_is_not_read_where_nothing_is_written(tmp_path, capsys, phases):
    folder = save(tmp_path, phases.step("kestrel").digest, 3, loss=2.0)
    damage(folder, SOURCE_LOSSES)
    code, out, _ = run(tmp_path, capsys, "curves")
    assert code == 0 and "loss 2.0000" in out
    code, out, _ = run(tmp_path, capsys, "curves", "--tensorboard", str(tmp_path / "board"))
    (line,) = out.splitlines()
    assert code == 1 and "file source_losses.parquet is damaged" in line and not (tmp_path / "board").exists()


def before_reads(monkeypatch, *actions):
    """Does each before one of the first reads."""
    left, read_beside = list(actions), checkpoint.read_beside

    def read(path, key):
        if left:
            left.pop(0)()
        return read_beside(path, key)

    monkeypatch.setattr(checkpoint, "read_beside", read)


def test_a_checkpoint_that_a_run_deletes_while_it_is_read_is_looked_for_again(tmp_path, capsys, phases, monkeypatch):
    kestrel = phases.step("kestrel").digest
    temporary = TemporaryCheckpoints(f"{tmp_path}/work/{kestrel}/temporary", lease_epoch=3)
    save(tmp_path, kestrel, 3, loss=2.0)

    def go_on(step):
        save(tmp_path, kestrel, step, loss=1.0)
        temporary.prune(step, keep=1)

    # The second read is of the table beside a manifest that was there when it was opened.
    before_reads(monkeypatch, lambda: go_on(4), lambda: None, lambda: go_on(5))
    code, out, err = run(tmp_path, capsys, "curves", "--tensorboard", str(tmp_path / "board"))
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split()[:3] == ["kestrel", "step", "5"]
    (events,) = (tmp_path / "board/kestrel").iterdir()
    assert len(list(events_in(events))) == 5


def test_a_phase_is_looked_for_right_before_it_is_read(tmp_path, capsys, phases, monkeypatch):
    kestrel, ocelot = phases.step("kestrel"), phases.step("ocelot")
    save(tmp_path, kestrel.digest, 3, loss=2.0)
    save(tmp_path, ocelot.digest, kestrel.until + 1, loss=2.0)
    before_reads(monkeypatch, lambda: save(tmp_path, ocelot.digest, kestrel.until + 2, loss=1.0))
    _, out, _ = run(tmp_path, capsys, "curves")
    assert out.splitlines()[1].split()[:3] == ["ocelot", "step", f"{kestrel.until + 2:,}"]


def test_a_checkpoint_that_went_and_left_nothing_is_told_in_one_line(tmp_path, capsys, phases, monkeypatch):
    kestrel, ocelot = phases.step("kestrel"), phases.step("ocelot")
    folder = save(tmp_path, kestrel.digest, 3, loss=2.0)
    save(tmp_path, ocelot.digest, kestrel.until + 1, loss=2.0)
    before_reads(monkeypatch, lambda: shutil.rmtree(folder))
    code, out, err = run(tmp_path, capsys, "curves")
    first, second = out.splitlines()
    assert (code, err) == (1, "") and second.startswith("ocelot ")
    assert first.endswith(f"{folder}: deleted while it was read, and nothing else is saved; ask again.")


def test_a_phase_whose_checkpoints_keep_going_is_given_up(tmp_path, capsys, phases, monkeypatch):
    kestrel = phases.step("kestrel").digest
    folders = [save(tmp_path, kestrel, 1, loss=2.0)]

    def replace():
        folders.append(save(tmp_path, kestrel, len(folders) + 1, loss=2.0))
        shutil.rmtree(folders[-2])

    before_reads(monkeypatch, *[replace] * 50)
    code, out, err = run(tmp_path, capsys, "curves")
    assert (code, err, len(out.splitlines())) == (1, "", 1) and "there is no complete checkpoint here" in out
    assert len(folders) == 11


@pytest.mark.parametrize(("option", "package"), [("--tensorboard", "tensorboardX"), ("--wandb", "wandb")])
def test_a_missing_package_is_one_line_before_anything_is_read_or_written(
    tmp_path, capsys, phases, monkeypatch, option, package
):
    save(tmp_path / "runs", phases.step("kestrel").digest, 3, loss=2.0)
    for name in [name for name in sys.modules if name.partition(".")[0] == package] or [package]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    before_reads(monkeypatch, lambda: pytest.fail("it was read"))
    code, out, err = run(tmp_path / "runs", capsys, "curves", option, str(tmp_path / "x"))
    assert (code, out) == (1, "") and not (tmp_path / "x").exists()
    (line,) = err.splitlines()
    assert line.startswith(f"tootsie: {option} {tmp_path / 'x'}: ")
    assert line.endswith(f"`{package}`, which is not installed; install it: {sys.executable} -m pip install {package}")


def test_a_folder_that_wandb_does_not_take_is_one_line(tmp_path, capsys, phases, monkeypatch):
    """Root may write anywhere, so W&B is a fake that does what it does where it may not."""
    save(tmp_path / "runs", phases.step("kestrel").digest, 3, loss=2.0)
    begun = types.SimpleNamespace(
        settings=types.SimpleNamespace(sync_dir=str(tmp_path / "tmp/wandb/offline-run-1")), finish=lambda: None
    )
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=lambda **_: begun, Settings=lambda **_: None))
    code, _, err = run(tmp_path / "runs", capsys, "curves", "--wandb", str(tmp_path / "mine"))
    (line,) = err.splitlines()
    assert code == 1 and line == (
        f"tootsie: --wandb {tmp_path / 'mine'}: W&B cannot write there and took {begun.settings.sync_dir}; "
        "name another folder."
    )


def test_a_write_that_fails_is_one_line(tmp_path, capsys, phases, monkeypatch):
    def write_events(curves, folder):
        raise OSError(errno.ENOSPC, "No space left on device", str(folder))

    save(tmp_path / "runs", phases.step("kestrel").digest, 3, loss=2.0)
    monkeypatch.setattr(tensorboard_export, "write_events", write_events)
    folder = tmp_path / "board"
    code, _, err = run(tmp_path / "runs", capsys, "curves", "--tensorboard", str(folder))
    said = f"--tensorboard {folder}: it could not be written (No space left on device); name another folder."
    assert (code, err) == (1, f"tootsie: {said}\n")


def test_what_cannot_be_told_or_written_is_refused(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("")
    for folder in ("board", "of-wandb"):
        (tmp_path / folder).mkdir()
    (tmp_path / "board/ocelot").write_text("")
    (tmp_path / "of-wandb/wandb").symlink_to("nowhere")
    move = "is no folder; move it away, or name another folder."
    for words, message in (
        (("kestral",), "curves kestral: there is no such phase. Did you mean 'kestrel'?"),
        (("--tensorboard", "gs://bucket/x"), "--tensorboard gs://bucket/x: it is written on this machine"),
        (("--wandb", str(file)), f"--wandb {file}: {file} {move}"),
        (("--tensorboard", f"{file}/sub"), f"--tensorboard {file}/sub: {file} {move}"),
        (("--tensorboard", str(tmp_path / "board")), f"{tmp_path}/board/ocelot {move}"),
        (("--wandb", str(tmp_path / "of-wandb")), f"{tmp_path}/of-wandb/wandb {move}"),
    ):
        code, out, err = run(tmp_path / "runs", capsys, "curves", *words)
        assert (code, out) == (1, "") and message in err, err
    assert not (tmp_path / "runs").exists()


def measured(prefix, digest, attempt=1, sources=("web", "code"), **means):
    """An event log of one attempt, with what it measured, by step: `step_10={"hot": 1.5}`."""
    folder = Path(prefix, "work", digest, "events")
    folder.mkdir(parents=True, exist_ok=True)
    events = [
        {
            "event": "validation",
            "step": int(step.removeprefix("step_")),
            "bits_per_byte": {which: dict.fromkeys(sources, value) for which, value in found.items()},
            "mean_bits_per_byte": found,
            "tokens_per_domain": 64,
        }
        for step, found in means.items()
    ]
    (folder / log_name(f"2026010{attempt}T000000000000-000000000000", 0)).write_text(
        "".join(f"{json.dumps(event)}\n" for event in events)
    )


def test_what_phases_measured_of_held_out_text_is_drawn_over_the_tokens_of_the_run(tmp_path, capsys, phases):
    prefix, page = tmp_path / "runs", tmp_path / "held out.html"
    kestrel, ocelot = phases.step("kestrel"), phases.step("ocelot")
    save(prefix, kestrel.digest, 4, loss=4.0)
    code, out, _ = run(prefix, capsys, "curves", "--validation", str(page))
    assert (code, out.splitlines()[-1].split(":")[0], page.exists()) == (1, "nothing is drawn", False)
    measured(prefix, kestrel.digest, step_0={"hot": 8.0}, step_4={"hot": 2.0})
    run(prefix, capsys, "curves", "--validation", str(page))
    assert "Values above the axis (the last at 0 tokens) are cut off" in page.read_text(), "no update has come yet"
    first = kestrel.until
    save(prefix, ocelot.digest, first + 2, loss=3.0)
    (average,) = ocelot.config.averages
    measured(prefix, ocelot.digest, **{f"step_{first + 2}": {"hot": 1.5, average.name: 1.25}})
    code, out, _ = run(prefix, capsys, "curves", "--validation", str(page))
    assert (code, out.splitlines()[-1]) == (0, f"drawn: {page}")
    made = page.read_text()
    tables = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", made)]
    tokens = f"{(first + 2) * 1000:,}"
    assert tables[1:] == [
        ["kestrel", "2", "2", "4", "4,000", "2.0000", "–"],
        ["ocelot", "1", "2", f"{first + 2:,}", tokens, "1.5000", "1.2500"],
    ]
    assert 'class="dot main"' in made and "3 measurements of held-out text while 2 phases trained." in made
    begin = legs_in(phases_in(phases.steps))["ocelot"].begin_tokens
    assert f"ocelot: {tokens_label(begin)} to" in made
    code, out, _ = run(prefix, capsys, "curves", "ocelot", "--validation", str(page))
    assert code == 0 and "kestrel" not in page.read_text()


def drawn(prefix, capsys, page, *phases):
    """How the command ends, and of the table of its page phase, number of measurements, sources and last step."""
    code, out, err = run(prefix, capsys, "curves", *phases, "--validation", str(page))
    assert err == ""
    made = page.read_text() if page.exists() else ""
    table = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)[:4] for row in re.findall(r"<tr>(.*?)</tr>", made)]
    return code, out.splitlines()[-1], table[1:]


def test_why_nothing_is_drawn_is_said_as_it_is(tmp_path, capsys, phases):
    page = tmp_path / "page.html"
    kestrel, ocelot = phases.step("kestrel"), phases.step("ocelot")
    folder = save(tmp_path, kestrel.digest, 3, loss=2.0)
    measured(tmp_path, kestrel.digest, step_5={"hot": 2.0})
    said = "nothing is drawn: no checkpoint has come to the steps at which these phases measured held-out text"
    assert drawn(tmp_path, capsys, page) == (1, said, [])
    measured(tmp_path, kestrel.digest, step_3={"hot": 2.0})
    damage(folder, METRICS)
    assert drawn(tmp_path, capsys, page) == (1, "nothing is drawn: none of these phases could be read", [])
    save(tmp_path, ocelot.digest, kestrel.until + 2, loss=2.0)
    said = "nothing is drawn: none of the phases that could be read has measured held-out text (validate_every_steps)"
    assert drawn(tmp_path, capsys, page) == (1, said, [])
    said = "nothing is drawn: none of these phases has measured held-out text (validate_every_steps)"
    assert drawn(tmp_path, capsys, page, "ocelot") == (1, said, [])


def test_a_phase_that_measured_nothing_is_said_to_be_missing_on_the_picture(tmp_path, capsys, phases):
    page = tmp_path / "page.html"
    kestrel, ocelot = phases.step("kestrel"), phases.step("ocelot")
    save(tmp_path, kestrel.digest, 4, loss=4.0)
    measured(tmp_path, kestrel.digest, step_4={"hot": 2.0})
    save(tmp_path, ocelot.digest, kestrel.until + 2, loss=2.0)
    code, out, _ = run(tmp_path, capsys, "curves", "kestrel", "ocelot", "--validation", str(page))
    said = "ocelot: not measured up to its newest checkpoint, not drawn"
    assert (code, out.splitlines()[-2:]) == (0, [said, f"drawn: {page}"])
    assert f"<p>{said}.</p>" in page.read_text()


def test_a_newer_attempt_that_saved_nothing_yet_hides_nothing(tmp_path, capsys, phases):
    digest = phases.step("kestrel").digest
    save(tmp_path, digest, 4, loss=4.0)
    measured(tmp_path, digest, 1, step_0={"hot": 8.0}, step_4={"hot": 2.0})
    measured(tmp_path, digest, 2, sources=("web", "code", "books"), step_8={"hot": 1.0})
    page = tmp_path / "page.html"
    assert drawn(tmp_path, capsys, page) == (0, f"drawn: {page}", [["kestrel", "2", "2", "4"]])


def test_a_phase_is_drawn_to_its_own_stop_and_a_longer_one_from_there(tmp_path, capsys, phases):
    prefix, page = tmp_path / "runs", tmp_path / "page.html"
    kestrel, ocelot = phases.step("kestrel"), phases.step("ocelot")
    stop = kestrel.until
    save(prefix, kestrel.digest, stop + 100, loss=4.0)
    measured(prefix, kestrel.digest, **{f"step_{step}": {"hot": 2.0} for step in (0, stop, stop + 50, stop + 100)})
    save(prefix, ocelot.digest, stop + 2, loss=3.0)
    measured(prefix, ocelot.digest, **{f"step_{stop + 2}": {"hot": 1.5}})
    of_ocelot = ["ocelot", "1", "2", f"{stop + 2:,}"]
    assert drawn(prefix, capsys, page)[2] == [["kestrel", "2", "2", f"{stop:,}"], of_ocelot]
    assert f"kestrel: 0 to {tokens_label(stop * 1000)} tokens" in page.read_text()
    longer = ("fork", "kestrel", "--as", "longer", "--set", f"until_step={stop + 100}", "--reason", "to see it go on")
    assert run(prefix, capsys, *longer)[0] == 0
    of_longer = ["longer", "2", "2", f"{stop + 100:,}"]
    assert drawn(prefix, capsys, page)[2] == [["kestrel", "2", "2", f"{stop:,}"], of_longer, of_ocelot]
    assert "longer: " not in page.read_text().replace("longer, hot weights", ""), "a branch, which has no band"


def test_forks_are_read_once_where_nothing_is_drawn(tmp_path, capsys, phases, monkeypatch):
    save(tmp_path, phases.step("kestrel").digest, 3, loss=2.0)
    reads, every = [], Forks.all
    monkeypatch.setattr(Forks, "all", lambda forks: reads.append(forks) or every(forks))
    assert run(tmp_path, capsys, "curves")[0] == 0 and len(reads) == 1


def test_a_picture_that_could_not_be_written_is_refused_before_anything_is_read(tmp_path, capsys):
    code, out, err = run(tmp_path, capsys, "curves", "--validation", str(tmp_path / "page.png"))
    assert (code, out) == (1, "") and "end it in .html" in err


def test_a_phase_is_held_against_another_of_the_recipe_or_the_table_of_any_run(tmp_path, capsys, phases):
    prefix = tmp_path / "runs"
    kestrel, ocelot = phases.step("kestrel"), phases.step("ocelot")
    save(prefix, kestrel.digest, 12, loss=3.125, left_out=(11,))
    last = kestrel.until + 3
    beside = save(prefix, ocelot.digest, last, loss=3.0)
    code, out, _ = run(prefix, capsys, "curves", "kestrel", "--against", "ocelot")
    said = "0.1250 nats above ocelot at 12,000 tokens: 3.1250 and 3.0000 over the last 11,000"
    assert (code, out.splitlines()[1].strip()) == (0, said)
    for margin, is_behind in (("0.1", True), ("0.125", False), ("0", True)):
        code, out, _ = run(prefix, capsys, "curves", "kestrel", "--against", "ocelot", "--margin", margin)
        told = [f"BEHIND by more than {margin} since 1,000 tokens"] if is_behind else []
        assert (code, [line.strip() for line in out.splitlines()[1:]]) == (int(is_behind), [said, *told])
    shutil.copy(f"{beside}/{METRICS}", tmp_path / METRICS)
    code, out, _ = run(prefix, capsys, "curves", "--against", str(tmp_path / METRICS), "--margin", "0")
    lines = [line.strip() for line in out.splitlines()]
    assert code == 1 and lines[1].startswith(f"0.1250 nats above {tmp_path / METRICS} at 12,000 tokens")
    assert lines[2].startswith("BEHIND") and lines[4].startswith("0.0000 nats below") and len(lines) == 5
    code, out, _ = run(prefix, capsys, "curves", "ocelot", "--against", "kestrel")
    assert code == 1 and out.splitlines()[1].strip() == "no tokens in common with kestrel, which has 12,000"
    code, out, _ = run(prefix, capsys, "curves", "--against", "kestrel", "--margin", "9")
    assert code == 0 and "no tokens in common" in out, "kestrel was compared"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--against", "kestrl"), "--against kestrl: there is no such phase. Did you mean 'kestrel'?"),
        (("--against", "phoenix"), "--against phoenix: nothing of it is saved as the recipe stands now."),
        (("--against", "gone.parquet"), "gone.parquet: it could not be read (No such file"),
        (("--against", "torn.parquet"), "torn.parquet: no table of metrics ("),
        (("--against", "other.parquet"), "other.parquet: no table of metrics ("),
        (("--against", "web://a/b.parquet"), "web://a/b.parquet: no table of metrics (Protocol not known: web)"),
        (("--against", "gs://a/b.parquet"), "gs://a: Cloud Storage cannot be reached ("),
        (("--margin", "0.1"), "--margin: of what? Name a reference too"),
        (("--against", "kestrel", "--margin", "-1"), "--margin is -1; it is in nats a token, 0 or more"),
        (("--against", "kestrel", "--margin", "nan"), "--margin is nan; it is in nats a token, 0 or more"),
    ],
)
def test_what_is_no_reference_or_no_margin_is_refused(tmp_path, capsys, phases, monkeypatch, words, said):
    prefix = tmp_path / "runs"
    folder = save(prefix, phases.step("kestrel").digest, 3, loss=3.0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://nowhere.invalid")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    Path("torn.parquet").write_bytes(b"PAR1")
    shutil.copy(f"{folder}/{SOURCE_LOSSES}", "other.parquet")
    code, out, error = run(prefix, capsys, "curves", *words)
    assert code not in (0, 2) and said in error + out


def test_a_reference_that_is_damaged_is_told_as_one(tmp_path, capsys, phases):
    folder = save(tmp_path, phases.step("kestrel").digest, 3, loss=3.0)
    damage(folder, METRICS)
    code, out, error = run(tmp_path, capsys, "curves", "ocelot", "--against", "kestrel")
    assert code == 1 and "--against kestrel: " in error + out and "damaged" in error + out
