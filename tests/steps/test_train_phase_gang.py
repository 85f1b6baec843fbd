"""A training phase on two hosts, through the engine: SIGKILL of one of them at a random step changes not a bit."""

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marin_dag.graph.inputs import Input
from marin_dag.graph.step import Step
from marin_dag.ledger.records import Records
from marin_dag.ledger.requests import Requests
from marin_dag.store.prefix import open_store
from runtime.parallel import mesh
from runtime.tracking.events import read_events
from runtime.training.replay import main as replay
from steps.ema_eval import EmaEvalResult, ema_eval
from steps.phase_result import TrainPhaseResult
from steps.tokenize import TokenizeResult
from tests.marin_dag.kill_everywhere import committed_bytes
from tests.ray_nodes import ROOT, RayNodes
from tests.steps.conftest import FolderContext
from tests.steps.gang_of_a_phase import (
    CHECKPOINT_EVERY_STEPS,
    NUM_HOSTS,
    NUM_WINDOWS,
    REQUESTED_AT_STEP,
    UNTIL_STEP,
    VALIDATE_EVERY_STEPS,
    config_on,
    evaluation_on,
    phase_step,
    replicas_step,
    text_step,
    words_step,
)
from tests.steps.phase_runs import SEQUENCE_LENGTH, Trajectory


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayNodes]:
    with RayNodes(*[{"num_cpus": 1}] * NUM_HOSTS, with_dashboard=False) as cluster:
        yield cluster


def drive(cluster: RayNodes, folder: Path, other: str) -> str:
    """Run once; return the messages of the driver."""
    command = [sys.executable, "tests/steps/gang_of_a_phase.py", str(folder), other]
    done = subprocess.run(command, cwd=ROOT, env=cluster.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def undisturbed(cluster: RayNodes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an undisturbed phase and its evaluation. A request to save while the phase runs changes no output."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "requests").touch()
    drive(cluster, folder, "evaluation")
    return folder


@pytest.fixture(scope="module")
def killed(cluster: RayNodes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the same phase with a random host killed, and of a phase with a copy on each host."""
    folder, chance = tmp_path_factory.mktemp("killed"), random.Random(1)
    (folder / "dies").write_text(
        f"{chance.randrange(NUM_HOSTS)} {chance.randrange(CHECKPOINT_EVERY_STEPS + 1, UNTIL_STEP)}"
    )
    output = drive(cluster, folder, "replicas")
    assert "attempt 2" in output, output
    return folder


def work_of(folder: Path) -> Path:
    return folder / "runs" / "work" / phase_step().digest


def given(folder: Path) -> list[list[list[str]]]:
    """Return the batches of each host, step by step, for each attempt that trained."""
    seen = work_of(folder) / "seen"
    attempts = sorted({path.name.split(".")[0] for path in seen.iterdir()})
    return [
        [(seen / f"{attempt}.host{host}").read_text().splitlines() for host in range(NUM_HOSTS)] for attempt in attempts
    ]


def digested_steps(work: Path) -> list[int]:
    """The steps whose digests the first host of each attempt logged."""
    logs = sorted(path for path in (work / "events").iterdir() if not path.name.endswith(".host1.jsonl"))
    return [event["step"] for log in logs for event in read_events(str(log)) if event["event"] == "digest"]


def made_by(folder: Path, step: Step[Any]) -> tuple[dict, dict[str, bytes]]:
    """Return the result and files of a step; for a phase, those of its last milestone."""
    return committed_bytes(folder / "runs")[step.key]


def test_one_host_killed_at_a_random_step_the_gang_ends_with_the_leaves_and_batches_of_an_undisturbed_one(
    undisturbed: Path, killed: Path, capsys: pytest.CaptureFixture
):
    host, dies_at = map(int, (killed / "died").read_text().split())
    assert made_by(killed, text_step()) == made_by(undisturbed, text_step())
    (result, files), (result_again, files_again) = (made_by(folder, phase_step()) for folder in (undisturbed, killed))
    assert result_again == result
    assert files_again.keys() == files.keys()
    assert [name for name in files if files[name] != files_again[name]] == []
    assert {re.split("[./]", name.split("/arrays/")[1])[0] for name in files if "/arrays/" in name} == {
        *("params", "optimizer", "averages", "key", "history")
    }
    assert 0 < TrainPhaseResult.model_validate(result).num_skipped < UNTIL_STEP

    (whole,) = given(undisturbed)
    first, *_, last = given(killed)
    first_step = UNTIL_STEP - len(last[0])
    assert first_step % CHECKPOINT_EVERY_STEPS == 0 and first_step <= dies_at, (
        "it went on from a checkpoint, not from scratch"
    )
    for number in range(NUM_HOSTS):
        assert len(set(whole[number])) == UNTIL_STEP
        assert last[number] == whole[number][first_step:]
        assert first[number] == whole[number][: len(first[number])]
    assert len(first[host]) == dies_at
    works = [work_of(undisturbed), work_of(killed)]
    logged = [step for work in works for step in digested_steps(work)]
    num_compared = len(logged) - len(set(logged))
    assert num_compared >= len([step for step in digested_steps(works[0]) if step > first_step]) > 0
    assert replay(list(map(str, works))) == 0
    assert capsys.readouterr().out.startswith(f"{num_compared} ")


def test_both_hosts_of_a_gang_carry_out_a_request_at_the_same_step(undisturbed: Path):
    requests = Requests(open_store(str(undisturbed / "runs")))
    (request,) = requests.of(phase_step().digest)
    answer = requests.reply_to(request)
    assert answer is not None
    first, second = sorted((work_of(undisturbed) / "events").iterdir(), key=lambda path: ".host1." in path.name)
    logs = [read_events(str(path)) for path in (first, second)]
    saved = [[event["step"] for event in log if event["event"] == "checkpoint"] for log in logs]
    assert saved[0] == saved[1] and REQUESTED_AT_STEP in saved[0]
    assert [len([event for event in log if event["event"] == "request"]) for log in logs] == [1, 0]


def test_one_undisturbed_gang_compares_nothing(undisturbed: Path):
    assert digested_steps(work_of(undisturbed)) == [2, 4, 6, 8, 10, 11]
    assert replay([str(work_of(undisturbed))]) == 2


def text_of(folder: Path, step: Step[TokenizeResult] | None = None) -> Input[TokenizeResult]:
    """The text, or what another step made, as a step of that run is given it."""
    step = text_step() if step is None else step
    store = open_store(str(folder / "runs"))
    record = Records(store).get(step.key)
    return Input(
        name=step.name,
        digest=step.digest,
        path=store.url(record.output_path),
        result=TokenizeResult.model_validate(record.result),
    )


@pytest.fixture
def split_over_two(use_devices, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has the mesh of the gang: two devices that share the parameters, which cores of one host do not."""
    use_devices(NUM_HOSTS)
    monkeypatch.setattr(mesh, "mesh_of_cores", lambda _, **parallel: mesh.whole_mesh(**parallel))


def validations(log: Path) -> dict[int, dict]:
    return {event["step"]: event["bits_per_byte"] for event in read_events(str(log)) if event["event"] == "validation"}


@pytest.mark.usefixtures("split_over_two")
def test_two_hosts_commit_the_bytes_and_validate_to_the_figures_of_one_host_with_both_devices(
    undisturbed: Path, tmp_path: Path
):
    alone = Trajectory(tmp_path, "e" * 64)
    alone.run(config_on(text_of(undisturbed)))
    result, files = made_by(undisturbed, phase_step())
    assert alone.at(UNTIL_STEP).result == TrainPhaseResult.model_validate(result)
    expected = alone.files(UNTIL_STEP)
    assert [name for name in files if "/parts/" not in name and files[name] != expected[name]] == []
    assert {name for name in files if "/parts/" not in name} == expected.keys()

    validated = validations(tmp_path / "work" / "events" / "attempt-1.jsonl")
    assert list(validated) == [*range(0, UNTIL_STEP, VALIDATE_EVERY_STEPS), UNTIL_STEP]
    assert all(found.keys() == {"hot", "averaged", "slow"} for found in validated.values())
    logs = sorted((work_of(undisturbed) / "events").iterdir())
    assert [validations(log) for log in logs] == [validated] * NUM_HOSTS


def test_two_hosts_that_hold_a_copy_each_commit_the_bytes_that_two_cores_of_one_host_commit(
    killed: Path, use_devices, tmp_path: Path
):
    result, files = made_by(killed, replicas_step())
    use_devices(NUM_HOSTS)
    alone = Trajectory(tmp_path, "e" * 64)
    alone.run(config_on(text_of(killed)).model_copy(update={"seed": 1}))
    assert alone.at(UNTIL_STEP).result == TrainPhaseResult.model_validate(result)
    expected = alone.files(UNTIL_STEP)
    assert [name for name in files if "/parts/" not in name and files[name] != expected[name]] == []
    assert {name for name in files if "/parts/" not in name} == expected.keys()
    _, second = [json.loads(content) for name, content in sorted(files.items()) if "/parts/" in name]
    assert second == {}, "the first host holds all of the first copy"


def test_a_host_reads_its_own_rows_alone_and_writes_what_it_alone_holds(undisturbed: Path):
    rows = UNTIL_STEP * 4 // NUM_HOSTS
    read = [int(path.read_text()) for path in sorted((work_of(undisturbed) / "seen").glob("*-read"))]
    held_out = [NUM_WINDOWS // NUM_HOSTS + 1, NUM_WINDOWS // NUM_HOSTS]
    assert read == [(rows + windows) * SEQUENCE_LENGTH for windows in held_out]
    _, files = made_by(undisturbed, phase_step())
    parts = [json.loads(content) for name, content in sorted(files.items()) if "/parts/" in name]
    assert len(parts) == NUM_HOSTS
    chunks = [{name for name in part if "/arrays/" in name and not name.endswith("zarr.json")} for part in parts]
    assert chunks[0].isdisjoint(chunks[1])
    assert "checkpoint/arrays/params.norm/c.0" in chunks[0] and "checkpoint/arrays/params.norm/c.1" in chunks[1]
    assert chunks[0] | chunks[1] == {name for name in files if "/arrays/" in name and not name.endswith("zarr.json")}
    (log,) = (work_of(undisturbed) / "events").glob("*host1.jsonl")
    assert [event["event"] for event in read_events(str(log))][-1] == "end"


@pytest.mark.usefixtures("split_over_two")
def test_two_hosts_evaluate_to_the_figures_of_one_each_reading_its_own_windows_alone(undisturbed: Path, tmp_path: Path):
    committed = committed_bytes(undisturbed / "runs")
    (made, files) = next(found for found in committed.values() if "read-by-0.txt" in found[1])
    result = EmaEvalResult.model_validate(made)
    assert len(result.averages) == 2 and all(each.by_domain != result.hot for each in result.averages)
    # Of six batches of four windows the last holds one: host 0 reads two of each and that one, host 1 two of each.
    assert {host: int(files[f"read-by-{host}.txt"]) // SEQUENCE_LENGTH for host in range(NUM_HOSTS)} == {0: 11, 1: 10}
    assert result.hot["books"] == pytest.approx(result.hot["web"], rel=1e-6) != result.hot["code"]

    (result_of_phase, _) = made_by(undisturbed, phase_step())
    (checkpoint,) = (undisturbed / "runs" / "outputs").glob(f"*/*/step-{UNTIL_STEP}/checkpoint/manifest.json")
    phase = Input(
        name="phase",
        digest="d" * 64,
        path=str(checkpoint.parents[1]),
        result=TrainPhaseResult.model_validate(result_of_phase),
    )
    context = FolderContext("evaluation", str(tmp_path), str(tmp_path))
    words = text_of(undisturbed, words_step())
    alone = ema_eval.function(evaluation_on(phase, text_of(undisturbed), words), context)
    assert alone == result
    assert context.reported == [(done, 18, "batches", {}) for done in range(1, 19)]
