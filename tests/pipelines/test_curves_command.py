"""`curves` shows each phase with its own updates, from its newest whole state, to people and other tools."""

import errno
import json
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
from pipelines.corpus import laptop_corpus
from pipelines.scales import LAPTOP
from runtime.report.curve_plots import BITS, LOSS
from runtime.tracking.events import EventLog, log_name
from runtime.tracking.exports import TensorBoard
from runtime.tracking.metrics import MetricsRow, MetricsTable
from runtime.tracking.source_losses import SourceLosses, SourceLossesTable
from runtime.training import checkpoint
from runtime.training.run_state import CHECKPOINT, METRICS, SOURCE_LOSSES
from runtime.training.temporary import TemporaryCheckpoints, part_key
from tests.catalogue import check_message
from tests.marin_dag.ledger.test_records import a_record
from tests.runtime.report.drawn import figures
from tests.runtime.tracking.test_curves import events_in, records_in


def run(prefix, capsys, *words):
    code = tootsie.main([*words, "--prefix", str(prefix)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.fixture(scope="module")
def phases():
    return Graph([tootsie.tootsie(LAPTOP, laptop_corpus(LAPTOP))[0]])


def save(prefix, digest, step, *, loss, skipped=(), folder=None):
    """Save a checkpoint, a temporary one without `folder`, with the tables of all updates up to its own."""
    metrics, losses = MetricsTable(), SourceLossesTable()
    for row in range(1, step + 1):
        metrics.append(MetricsRow(row, row * 1000, 4, 28, 1e-3, loss, 0.0, 1.5, 0.1, 10.0, 3.4, int(row in skipped)))
        losses.append([SourceLosses(row, "web", "w", 1.0, 4, 28, 28 * loss, 28 * 3.5)])
    folder = folder or TemporaryCheckpoints(f"{prefix}/work/{digest}/temporary", lease_epoch=3).folder_of(step)
    beside = {part_key(METRICS, 0): metrics.to_parquet, part_key(SOURCE_LOSSES, 0): losses.to_parquet}
    metadata = {"step": step, "consumed_tokens": step * 1000}
    checkpoint.save(f"{folder}/{CHECKPOINT}", {"w": jnp.zeros(2)}, metadata, beside=beside).wait()
    return folder


def publish(prefix, digest, step, *, loss):
    store = open_store(str(prefix))
    record = a_record("kestrel", digest, milestone=step)
    save(prefix, digest, step, loss=loss, folder=store.url(record.output_path))
    Records(store).commit(record)


def damage(folder, name):
    (file,) = Path(folder, name).iterdir()
    file.write_bytes(b"x" + file.read_bytes()[1:])


def test_the_report_names_a_valid_command(tmp_path, capsys):
    words = shlex.split("python pipelines/tootsie.py curves --page curves.html")
    assert words[:3] == ["python", "pipelines/tootsie.py", "curves"]
    code, out, error = run(tmp_path, capsys, *words[2:])
    assert (code, error) == (1, "")
    check_message(out)


def test_each_phase_is_shown_and_exported_with_its_own_updates(tmp_path, capsys, phases):
    prefix = tmp_path / "runs"
    kestrel, ocelot = phases.step("kestrel"), phases.step("ocelot")
    code, out, _ = run(prefix, capsys, "curves")
    assert code == 0
    check_message(out)
    for option, place in (
        ("--page", "page.html"),
        ("--tensorboard", "board"),
        ("--wandb", "wandb"),
    ):
        assert run(prefix, capsys, "curves", option, str(tmp_path / place))[0] == 1, "the page or export was not made"
    save(prefix, kestrel.digest, 10, loss=4.0)
    save(prefix, kestrel.digest, 12, loss=3.0, skipped=(11,))
    last = kestrel.until + 3
    torn = save(prefix, ocelot.digest, last + 5, loss=1.0)
    checkpoint.CheckpointFiles(f"{torn}/{CHECKPOINT}").delete("manifest.json")
    save(prefix, ocelot.digest, last, loss=2.0, skipped=range(1, 6))
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
        "skipped",
    ]
    assert second == f"ocelot step {last:,} {last * 1000:,} tokens loss 2.0000 gradient 1.500".split()
    (kestrels,), (ocelots,) = ((board / name).iterdir() for name in ("kestrel", "ocelot"))
    assert [step for step, _ in events_in(kestrels)] == list(range(1, 13))
    exported = list(events_in(ocelots))
    assert [step for step, _ in exported] == [last - 2, last - 1, last]
    assert {figures["loss_by_source/web"] for _, figures in exported} == {2.0}
    assert {figures["log_normalizer_by_source/web"] for _, figures in exported} == {3.5}
    of_parts = [{name: norm for name, norm in figures.items() if "_by_part/" in name} for _, figures in exported]
    by_part = ("grad_norm_by_part/layers.0.w", "grad_norm_by_part/layers.1.w", "param_norm_by_part/norm")
    assert of_parts == [{}, dict(zip(by_part, (1.5, 2.5, 3.0), strict=True)), {}]
    code, out, _ = run(prefix, capsys, "curves", "kestrel")
    assert code == 0 and len(out.splitlines()) == 1 and out.startswith("kestrel ")
    code, out, _ = run(prefix, capsys, "curves", "phoenix", "kestrel")
    assert code == 0 and out.startswith("kestrel ")
    (unsaved,) = out.splitlines()[1:]
    check_message(unsaved)


def test_curves_are_drawn_with_the_gradients_of_phases_that_logged_enough_norms(tmp_path, capsys, phases):
    file, digest = tmp_path / "curves.html", phases.step("kestrel").digest
    for name, step in (("kestrel", 8), ("ocelot", phases.step("kestrel").until + 2)):
        save(tmp_path, phases.step(name).digest, step, loss=4.0)
    with EventLog(f"{tmp_path}/work/{digest}/events/{log_name('a', 0)}") as events:
        for step in (2, 4, 6, 8, 10):
            gradient = {"layers.w": [1.0, 9.0 if step == 6 else 1.0]}
            events.write("norms", step=step, gradient=gradient, update={}, parameters={})
        bits = {"hot": {"web": 1.5}}
        events.write(
            "validation", step=4, consumed_tokens=4000, bits_per_byte=bits, mean_bits_per_byte={"hot": 1.5},
            tokens_per_domain=64,
        )  # fmt: skip
    code, out, _ = run(tmp_path, capsys, "curves", "--page", str(file))
    assert code == 0
    check_message("\n".join(out.splitlines()[-2:]).replace(str(file), "FILE"))
    made = file.read_text()
    assert out.splitlines()[-2] in made
    found, norms = figures(made)
    by_title = {panel.title: panel for panel in found}
    assert [mark.data["x"] for mark in by_title[BITS].of("Line") if mark.name == "kestrel"] == [[4000]]
    (loss,) = [mark.data for mark in by_title[LOSS].of("Line") if mark.name == "kestrel" and "y" in mark.data][:1]
    assert loss["y"] == [4] * 8 and [mark.name for mark in norms[0].marks] == ["layer 1", "layer 0"]
    assert run(tmp_path, capsys, "curves", "--page", "curves.png")[0] == 1


def test_a_phase_is_printed_before_the_next_is_exported_and_without_a_page_nothing_is_drawn(
    tmp_path, capsys, phases, monkeypatch
):
    for module in ("bokeh", "runtime.report.norm_plots"):
        monkeypatch.setitem(sys.modules, module, None)
    for name in ("kestrel", "ocelot"):
        save(tmp_path, phases.step(name).digest, phases.step("kestrel").until + 2, loss=4.0)
    board = tmp_path / "board"
    board.mkdir()
    (board / "ocelot").write_text("")
    code, out, err = run(tmp_path, capsys, "curves", "--tensorboard", str(board))
    assert code == 1 and "--tensorboard" in err
    assert [line.split()[0] for line in out.splitlines()] == ["kestrel", "ocelot"]
    (board / "ocelot").unlink()
    assert run(tmp_path, capsys, "curves", "--tensorboard", str(board))[0] == 0


def test_the_newest_state_is_shown_and_at_one_step_the_published_one(tmp_path, capsys, phases):
    digest = phases.step("kestrel").digest
    save(tmp_path, digest, 5, loss=1.0)
    publish(tmp_path, digest, 5, loss=2.0)
    assert "loss 2.0000" in run(tmp_path, capsys, "curves")[1]
    save(tmp_path, digest, 6, loss=3.0)
    assert "loss 3.0000" in run(tmp_path, capsys, "curves")[1]


def test_a_run_is_read_from_a_bucket(tmp_path, gcs_bucket, capsys, phases):
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


def test_wandb_gets_a_run_for_each_phase_and_a_line_that_sends_it(tmp_path, phases):
    """Runs in a child process, as W&B starts a service."""
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
    shown, how = done.stdout.splitlines()
    assert shown.startswith("kestrel ")
    program, verb, written = shlex.split(how)
    assert (program, verb, Path(written).parent) == ("wandb", "sync", folder / "wandb")
    records = [Record.FromString(data) for data in records_in(Path(written, f"run-{kestrel.digest[:16]}.wandb"))]
    (sent,) = (record.run for record in records if record.HasField("run"))
    assert (sent.project, sent.display_name) == ("tootsie", "kestrel")
    config = {item.key: json.loads(item.value_json) for item in sent.config.update}
    assert config["until_step"] == kestrel.until and "start" not in config
    assert len([record for record in records if record.HasField("history")]) == 3


def test_lines_to_paste_are_quoted(tmp_path, capsys, phases):
    save(tmp_path / "runs", phases.step("kestrel").digest, 2, loss=2.0)
    board = str(tmp_path / "my board's")
    _, out, _ = run(tmp_path / "runs", capsys, "curves", "--tensorboard", board)
    assert shlex.split(out.splitlines()[-1]) == ["tensorboard", "--logdir", board]


def test_a_damaged_phase_is_one_line_and_hides_no_other(tmp_path, capsys, phases):
    kestrel, ocelot, jellyfish = (phases.step(name) for name in ("kestrel", "ocelot", "jellyfish"))
    folder = save(tmp_path, kestrel.digest, 3, loss=2.0)
    damage(folder, METRICS)
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / f"{ocelot.digest}@5.json").write_text("{")
    save(tmp_path, jellyfish.digest, ocelot.until + 1, loss=2.0)
    code, out, err = run(tmp_path, capsys, "curves")
    assert (code, err) == (1, "")
    first, second, third = out.splitlines()
    assert [line.split()[0] for line in (first, second, third)] == ["kestrel", "ocelot", "jellyfish"]
    assert folder in first and "loss 2.0000" in third


def test_the_table_of_sources_is_read_only_for_exports(tmp_path, capsys, phases):
    folder = save(tmp_path, phases.step("kestrel").digest, 3, loss=2.0)
    damage(folder, SOURCE_LOSSES)
    code, out, _ = run(tmp_path, capsys, "curves")
    assert code == 0 and "loss 2.0000" in out
    code, out, _ = run(tmp_path, capsys, "curves", "--tensorboard", str(tmp_path / "board"))
    (line,) = out.splitlines()
    assert code == 1 and SOURCE_LOSSES in line and not list((tmp_path / "board").iterdir())


def before_reads(monkeypatch, *actions):
    """Do each action before one of the first reads."""
    left, read_beside = list(actions), checkpoint.read_beside

    def read(path, key):
        if left:
            left.pop(0)()
        return read_beside(path, key)

    monkeypatch.setattr(checkpoint, "read_beside", read)


def test_a_checkpoint_deleted_while_it_is_read_is_replaced_by_a_newer_one(tmp_path, capsys, phases, monkeypatch):
    kestrel = phases.step("kestrel").digest
    temporary = TemporaryCheckpoints(f"{tmp_path}/work/{kestrel}/temporary", lease_epoch=3)
    save(tmp_path, kestrel, 3, loss=2.0)

    def continue_to(step):
        save(tmp_path, kestrel, step, loss=1.0)
        temporary.prune(step, keep=1)

    # The second read is of a table whose manifest was there when it was opened.
    before_reads(monkeypatch, lambda: continue_to(4), lambda: None, lambda: continue_to(5))
    code, out, err = run(tmp_path, capsys, "curves", "--tensorboard", str(tmp_path / "board"))
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split()[:3] == ["kestrel", "step", "5"]
    (events,) = (tmp_path / "board/kestrel").iterdir()
    assert len(list(events_in(events))) == 5


def test_the_newest_state_is_looked_up_right_before_it_is_read(tmp_path, capsys, phases, monkeypatch):
    kestrel, ocelot = phases.step("kestrel"), phases.step("ocelot")
    save(tmp_path, kestrel.digest, 3, loss=2.0)
    save(tmp_path, ocelot.digest, kestrel.until + 1, loss=2.0)
    before_reads(monkeypatch, lambda: save(tmp_path, ocelot.digest, kestrel.until + 2, loss=1.0))
    _, out, _ = run(tmp_path, capsys, "curves")
    assert out.splitlines()[1].split()[:3] == ["ocelot", "step", f"{kestrel.until + 2:,}"]


def test_a_deleted_checkpoint_without_another_is_one_line(tmp_path, capsys, phases, monkeypatch):
    kestrel, ocelot = phases.step("kestrel"), phases.step("ocelot")
    folder = save(tmp_path, kestrel.digest, 3, loss=2.0)
    save(tmp_path, ocelot.digest, kestrel.until + 1, loss=2.0)
    before_reads(monkeypatch, lambda: shutil.rmtree(folder))
    code, out, err = run(tmp_path, capsys, "curves")
    first, second = out.splitlines()
    assert (code, err) == (1, "") and second.startswith("ocelot ")
    check_message(first)


def test_a_phase_whose_checkpoints_are_deleted_each_time_is_an_error(tmp_path, capsys, phases, monkeypatch):
    kestrel = phases.step("kestrel").digest
    folders = [save(tmp_path, kestrel, 1, loss=2.0)]

    def replace():
        folders.append(save(tmp_path, kestrel, len(folders) + 1, loss=2.0))
        shutil.rmtree(folders[-2])

    before_reads(monkeypatch, *[replace] * 50)
    code, out, err = run(tmp_path, capsys, "curves")
    assert (code, err, len(out.splitlines())) == (1, "", 1)
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
    check_message(line.replace(sys.executable, "python"))


def test_a_folder_that_wandb_cannot_write_is_one_line(tmp_path, capsys, phases, monkeypatch):
    """Root may write anywhere, so a fake stands in for W&B without permission."""
    save(tmp_path / "runs", phases.step("kestrel").digest, 3, loss=2.0)
    fake = types.SimpleNamespace(
        settings=types.SimpleNamespace(sync_dir=str(tmp_path / "tmp/wandb/offline-run-1")), finish=lambda: None
    )
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=lambda **_: fake, Settings=lambda **_: None))
    code, _, err = run(tmp_path / "runs", capsys, "curves", "--wandb", str(tmp_path / "mine"))
    (line,) = err.splitlines()
    assert code == 1
    check_message(line)


def test_a_write_that_fails_is_one_line(tmp_path, capsys, phases, monkeypatch):
    def write(export, *arguments):
        raise OSError(errno.ENOSPC, "No space left on device", export.folder)

    save(tmp_path / "runs", phases.step("kestrel").digest, 3, loss=2.0)
    monkeypatch.setattr(TensorBoard, "write", write)
    folder = tmp_path / "board"
    code, _, err = run(tmp_path / "runs", capsys, "curves", "--tensorboard", str(folder))
    assert code == 1
    check_message(err)


def test_unknown_phases_and_unusable_folders_are_refused(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("")
    for words in (
        ("kestral",),
        ("--tensorboard", "gs://bucket/x"),
        ("--wandb", str(file)),
        ("--tensorboard", f"{file}/sub"),
    ):
        code, out, err = run(tmp_path / "runs", capsys, "curves", *words)
        assert (code, out) == (1, "")
        check_message(err)
    assert not (tmp_path / "runs").exists()


def test_forks_are_read_once_without_a_page(tmp_path, capsys, phases, monkeypatch):
    save(tmp_path, phases.step("kestrel").digest, 3, loss=2.0)
    reads, every = [], Forks.all
    monkeypatch.setattr(Forks, "all", lambda forks: reads.append(forks) or every(forks))
    assert run(tmp_path, capsys, "curves")[0] == 0 and len(reads) == 1


def test_a_page_of_another_kind_is_refused(tmp_path, capsys):
    code, out, err = run(tmp_path, capsys, "curves", "--page", str(tmp_path / "page.png"))
    assert (code, out) == (1, "")
    check_message(err)
