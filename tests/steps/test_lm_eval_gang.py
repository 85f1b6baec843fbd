"""Scores on two hosts, through the engine, are those of one host, also where a host is killed in the middle."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marin_dag.graph.inputs import Input
from marin_dag.ledger.records import Records
from marin_dag.store.prefix import open_store
from runtime.evaluation.item_scores import ITEM_SCORES, read_item_scores
from steps.download import DownloadResult
from steps.lm_eval import SAMPLES_FILE, LmEvalResult, lm_eval
from tests.marin_dag.kill_everywhere import committed_bytes
from tests.ray_nodes import ROOT, RayNodes
from tests.steps.conftest import FolderContext
from tests.steps.gang_of_scores import KINDS, NUM_HOSTS, config_on, parts, scores_step


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayNodes]:
    with RayNodes(*[{"num_cpus": 1}] * NUM_HOSTS, with_dashboard=False) as cluster:
        yield cluster


def drive(cluster: RayNodes, folder: Path) -> str:
    """Run once; return the messages of the driver."""
    command = [sys.executable, "tests/steps/gang_of_scores.py", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=cluster.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def answered(folder: Path) -> dict[str, list[str]]:
    """Return the keys of the answers that each attempt found."""
    found: dict[str, list[str]] = {}
    for path in sorted((folder / "runs/work" / scores_step(folder).digest / "answers").iterdir()):
        keys = [json.loads(line)[0] for line in path.read_text().splitlines()]
        found.setdefault(path.name.rpartition("-")[0], []).extend(keys)
    return found


def alone(tmp_path: Path, folder: Path) -> tuple[LmEvalResult, Path]:
    """Return the result and folder of the same scores by this process alone."""
    store = open_store(str(folder / "runs"))
    inputs = {}
    for field, step in parts().items():
        record = Records(store).get(step.key)
        result = DownloadResult.model_validate(record.result)
        inputs[field] = Input(name=step.name, digest=step.digest, path=store.url(record.output_path), result=result)
    context = FolderContext("scores", str(tmp_path), f"{tmp_path}-work")
    return lm_eval.function(config_on(folder / "own", **inputs), context), tmp_path


def samples_in(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines()]


@pytest.mark.usefixtures("use_devices")
def test_two_hosts_of_which_one_is_killed_score_as_one_host_does_and_ask_nothing_twice(
    cluster: RayNodes, tmp_path: Path
) -> None:
    folder = tmp_path / "gang"
    folder.mkdir()
    (folder / "dies").write_text("0 20\n")
    output = drive(cluster, folder)
    assert (folder / "dies").read_text() == "" and "attempt 2" in output, output
    by_attempt = answered(folder)
    keys = [key for of_attempt in by_attempt.values() for key in of_attempt]
    assert len(by_attempt) == 2 and len({*keys}) == len(keys)

    result, files = committed_bytes(folder / "runs")[scores_step(folder).key]
    expected, place = alone(tmp_path / "alone", folder)
    found = LmEvalResult.model_validate(result)
    assert [score.task for score in found.scores] == [score.task for score in expected.scores]
    assert {score.task for score in found.scores} == KINDS.keys()
    assert [score.value for score in found.scores] == pytest.approx([score.value for score in expected.scores])
    ours, theirs = (read_item_scores(content) for content in (files[ITEM_SCORES], (place / ITEM_SCORES).read_bytes()))
    assert ours == theirs
    for mine, other in zip(
        samples_in(files[SAMPLES_FILE]), samples_in((place / SAMPLES_FILE).read_bytes()), strict=True
    ):
        kind = KINDS.get(mine["task"].partition("_")[0], "loglikelihood")
        assert (mine["task"], mine["doc_id"], mine["requests"]) == (other["task"], other["doc_id"], other["requests"])
        if kind == "generate_until":
            assert mine["responses"] == other["responses"]
        else:
            assert flat(mine["responses"]) == pytest.approx(flat(other["responses"]), abs=1e-4)


def flat(responses: Any) -> list[float]:
    return [responses] if not isinstance(responses, list) else [part for each in responses for part in flat(each)]
