"""`certified`: which state one can go back to, and the lines that do it."""

import shlex

import jax.numpy as jnp

from marin_dag.cli import main
from marin_dag.graph import Graph
from pipelines import tootsie
from pipelines.scales import LAPTOP
from runtime.training import checkpoint
from runtime.training.temporary import TemporaryCheckpoints


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
    assert len(listed) == 3 and listed[2][:2] == ["to", "go"]
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
    code, out, err = run(prefix, capsys, *fork[:-2])
    assert code == 0, err
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


def test_where_nothing_is_certified_it_says_so_and_a_step_that_trains_nothing_is_refused(tmp_path, capsys):
    prefix = tmp_path / "runs"
    code, out, _ = run(prefix, capsys, "certified")
    assert (code, out.split(":")[0]) == (0, "nothing of these phases is certified")
    assert "nothing of kestrel is certified" in run(prefix, capsys, "certified", "kestrel")[1]
    code, _, err = run(prefix, capsys, "certified", "report")
    assert code == 1 and "certified report: it trains nothing; name a phase" in err
    code, _, err = run(prefix, capsys, "certified", "--dry-run")
    assert code == 1 and "--dry-run: `certified` does not take it; it only looks" in err
    assert not list(prefix.rglob("*"))
