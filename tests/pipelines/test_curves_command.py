"""`curves`: each phase with its own updates, of the newest state that is whole, for people and for other tools."""

from pathlib import Path

import jax.numpy as jnp
import pytest

from marin_dag.cli import main
from marin_dag.graph import Graph
from pipelines import tootsie
from pipelines.scales import LAPTOP
from runtime.tracking.metrics import MetricsRow, MetricsTable
from runtime.tracking.source_losses import SourceLosses, SourceLossesTable
from runtime.training import checkpoint
from runtime.training.run_state import CHECKPOINT, METRICS, SOURCE_LOSSES
from runtime.training.temporary import TemporaryCheckpoints
from tests.runtime.tracking.test_curves import events_in


def run(prefix, capsys, *words):
    code = main(
        tootsie.build,
        add_arguments=tootsie.add_arguments,
        name="tootsie",
        commands=tootsie.OWN_COMMANDS,
        argv=[*words, "--prefix", str(prefix)],
    )
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def save(prefix, digest, step, *, loss, left_out=()):
    """A temporary checkpoint with the tables of all updates up to its own."""
    metrics, losses = MetricsTable(), SourceLossesTable()
    for row in range(1, step + 1):
        metrics.append(MetricsRow(row, row * 1000, 4, 28, 1e-3, loss, 0.0, 1.5, 0.1, 10.0, 3.4, int(row in left_out)))
        losses.append([SourceLosses(row, "web", "w", 1.0, 4, 28, 28 * loss)])
    folder = TemporaryCheckpoints(f"{prefix}/work/{digest}/temporary", lease_epoch=3).folder_of(step)
    beside = {METRICS: metrics.to_parquet, SOURCE_LOSSES: losses.to_parquet}
    metadata = {"step": step, "consumed_tokens": step * 1000}
    checkpoint.save(f"{folder}/{CHECKPOINT}", {"w": jnp.zeros(2)}, metadata, beside=beside).wait()
    return folder


def damage(folder, name):
    file = Path(folder, name)
    file.write_bytes(b"x" + file.read_bytes()[1:])


def test_each_phase_is_told_and_written_with_its_own_updates(tmp_path, capsys):
    prefix = tmp_path / "runs"
    phases = Graph([tootsie.tootsie(LAPTOP, tootsie.laptop_corpus(LAPTOP))[0]])
    kestrel, ocelot = phases.step("kestrel"), phases.step("ocelot")
    code, out, _ = run(prefix, capsys, "curves")
    assert code == 0 and out.startswith("nothing of these phases is saved")
    save(prefix, kestrel.digest, 10, loss=4.0)
    save(prefix, kestrel.digest, 12, loss=3.0, left_out=(11,))
    last = kestrel.until + 3
    torn = save(prefix, ocelot.digest, last + 5, loss=1.0)
    checkpoint.CheckpointFiles(f"{torn}/{CHECKPOINT}").delete("manifest.json")
    save(prefix, ocelot.digest, last, loss=2.0, left_out=range(1, 6))
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
    code, out, _ = run(prefix, capsys, "curves", "kestrel")
    assert code == 0 and len(out.splitlines()) == 1 and out.startswith("kestrel ")


def test_what_is_only_of_sources_is_not_read_where_nothing_is_written(tmp_path, capsys):
    phases = Graph([tootsie.tootsie(LAPTOP, tootsie.laptop_corpus(LAPTOP))[0]])
    folder = save(tmp_path, phases.step("kestrel").digest, 3, loss=2.0)
    damage(folder, SOURCE_LOSSES)
    code, out, _ = run(tmp_path, capsys, "curves")
    assert code == 0 and "loss 2.0000" in out


@pytest.mark.parametrize("command", ["curves", "mix", "timeline", "waits"])
def test_what_may_write_a_file_does_not_say_that_it_writes_nothing(tmp_path, capsys, command):
    code, out, err = run(tmp_path, capsys, command, "--dry-run")
    said = "it starts nothing, and writes nothing but what an option of its own asks for; leave --dry-run out."
    assert (code, out, err) == (1, "", f"tootsie: --dry-run: `{command}` does not take it; {said}\n")


def test_what_cannot_be_told_or_written_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for words, message in (
        (("kestral",), "curves kestral: there is no such phase. Did you mean 'kestrel'?"),
        (("--tensorboard", "gs://bucket/x"), "--tensorboard gs://bucket/x: it is written on this machine"),
        (("--wandb", str(tmp_path / "file")), f"--wandb {tmp_path / 'file'}: it is a file; name a folder."),
    ):
        code, out, err = run(tmp_path / "runs", capsys, "curves", *words)
        assert (code, out) == (1, "") and message in err, err
    assert not (tmp_path / "runs").exists()
