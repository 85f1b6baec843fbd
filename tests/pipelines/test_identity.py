"""Placement stays out of identity: every shipped pipeline, built for two places, has the same digests."""

import argparse
import dataclasses
import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from marin_dag.code.closure import Closures
from marin_dag.code.fingerprint import FIRST_PARTY
from marin_dag.code.references import Aspect
from marin_dag.code.sources import Place, Sources, searched_folders
from marin_dag.graph.graph import Graph
from marin_dag.graph.resources import Cpu, Gpu, Resources, Tpu
from marin_dag.plan.plan import make_plan
from marin_dag.store.prefix import open_store
from marin_dag.values.fields import RuntimeField, markers
from marin_dag.values.reference import Reference
from pipelines import ladder, merged_cooldown, mixture_search, online_mixing, score, tootsie, web_corpus

ROOT = Path(__file__).parents[2]
SCALED = ("laptop", "125m", "8b", "corpus")
MODULES = {
    "ladder": ladder,
    "merged_cooldown": merged_cooldown,
    "mixture_search": mixture_search,
    "online_mixing": online_mixing,
    "web_corpus": web_corpus,
    "score": score,
}
PIPELINES = (*SCALED, *MODULES)
MODEL = ["--model", "hub:owner/small@0123456789abcdef", "--tasks", "piqa,arc_easy:5"]
EXECUTION = {"score": {"files_in_flight", "tokens_per_batch"}}
"""Some of the fields that are execution, by pipeline."""
PROGRAM = """
import json, sys
from tests.pipelines.test_identity import arguments, digests_of
print(json.dumps({pipeline: digests_of(arguments(pipeline, sys.argv[1])) for pipeline in sys.argv[2:]}))
"""


def write_corpus(folder: Path) -> str:
    folder.mkdir(parents=True)
    for name in ("web", "code"):
        with gzip.GzipFile(folder / f"{name}.jsonl.gz", "w", mtime=0) as file:
            file.writelines(json.dumps({"text": f"{name} page {page}"}).encode() + b"\n" for page in range(1_000))
    return str(folder)


def arguments(pipeline: str, corpus: str) -> argparse.Namespace:
    module = MODULES.get(pipeline, tootsie)
    parser = argparse.ArgumentParser()
    if hasattr(module, "add_arguments"):
        module.add_arguments(parser)
    argv: dict[str, Sequence[str]] = {"125m": ["--scale", "125m"], "8b": ["--scale", "8b"], "score": MODEL}
    argv |= dict.fromkeys(("corpus", "online_mixing"), ("--corpus", corpus))
    own = vars(parser.parse_args(argv.get(pipeline, [])))
    return argparse.Namespace(build=module.build, compile=False, json=False, **own)


def digests_of(parsed: argparse.Namespace) -> dict[str, str]:
    return {step.name: step.key for step in Graph(parsed.build(parsed)).steps}


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_another_prefix_gives_the_same_digests(pipeline: str, tmp_path: Path) -> None:
    parsed = arguments(pipeline, write_corpus(tmp_path / "corpus"))
    plans = [make_plan(Graph(parsed.build(parsed)), open_store(str(tmp_path / name))) for name in ("a", "b")]
    one, other = ({planned.name: planned.step.key for planned in plan.steps} for plan in plans)
    assert one == other == digests_of(parsed)


def test_another_machine_checkout_and_environment_give_the_same_digests(tmp_path: Path) -> None:
    for package in ("marin_dag", "steps", "runtime", "pipelines", "tests"):
        shutil.copytree(ROOT / package, tmp_path / "elsewhere" / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "elsewhere")
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, write_corpus(tmp_path / "far" / "away"), *PIPELINES],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([str(tmp_path / "elsewhere"), *sys.path]),
            "PYTHONHASHSEED": "4711",
            "HOME": str(tmp_path),
            "HOSTNAME": "tpu-worker-7",
            "CLOUDSDK_COMPUTE_REGION": "europe-west4",
            "GOOGLE_CLOUD_PROJECT": "another-project",
            "TPU_ACCELERATOR_TYPE": "v5litepod-256",
            "CUDA_VISIBLE_DEVICES": "3",
            "JAX_PLATFORMS": "tpu",
            "RAY_ADDRESS": "ray://elsewhere:10001",
            "LANG": "tr_TR.UTF-8",
            "TZ": "Asia/Kathmandu",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    corpus = write_corpus(tmp_path / "corpus")
    assert json.loads(found.stdout) == {pipeline: digests_of(arguments(pipeline, corpus)) for pipeline in PIPELINES}


@pytest.mark.parametrize("resources", [Gpu("H200", 8), Tpu("v5litepod-256", num_slices=2), Cpu(64)])
@pytest.mark.parametrize("pipeline", SCALED)
def test_another_accelerator_gives_the_same_digests(
    pipeline: str, resources: Resources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = arguments(pipeline, write_corpus(tmp_path / "corpus"))
    before = digests_of(parsed)
    fields = ("kestrel_resources", "main_resources", "branch_resources", "scoring_resources")
    for name, scale in list(tootsie.SCALES.items()):
        moved = dataclasses.replace(scale, **dict.fromkeys(fields, resources))
        monkeypatch.setitem(tootsie.SCALES, name, moved)
    graph = Graph(parsed.build(parsed))
    assert {step.name: step.key for step in graph.steps} == before
    assert any(step.resources == resources for step in graph.steps)


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_other_worker_counts_and_all_else_that_is_execution_give_the_same_digests(
    pipeline: str, tmp_path: Path
) -> None:
    parsed = arguments(pipeline, write_corpus(tmp_path / "corpus"))
    graph = Graph(parsed.build(parsed))
    twisted: list[str] = []
    for step in graph.steps:
        moved = dataclasses.replace(step, config=with_other_execution(step.config, twisted))
        assert moved.digest == step.digest, step.name
    assert EXECUTION.get(pipeline, {"shards_in_flight", "files_in_flight", "checkpoint_every_steps"}) <= set(twisted)
    assert pipeline in ("score", "web_corpus") or "windows_per_batch" in twisted  # they evaluate no phase


def with_other_execution(value: Any, twisted: list[str]) -> Any:
    """Return `value` with every execution field, however deep, set to another value."""
    if isinstance(value, dict):
        return {key: with_other_execution(item, twisted) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(with_other_execution(item, twisted) for item in value)
    is_dataclass = dataclasses.is_dataclass(value) and not isinstance(value, type)
    if isinstance(value, Reference) or not (isinstance(value, BaseModel) or is_dataclass):
        return value
    new = {}
    for name, marks in markers(type(value)).items():
        if any(isinstance(mark, RuntimeField) for mark in marks):
            twisted.append(name)
            new[name] = ["no value", "that a field would take"]
        else:
            new[name] = with_other_execution(getattr(value, name), twisted)
    return value.model_copy(update=new) if isinstance(value, BaseModel) else dataclasses.replace(value, **new)


def test_every_pipeline_that_is_shipped_is_looked_at() -> None:
    recipes = {path.stem for path in (ROOT / "pipelines").glob("*.py") if "__main__" in path.read_text()}
    assert recipes == {"tootsie", *MODULES}
    corpora = {scale.name: scale.corpus for scale in tootsie.SCALES.values()}
    assert {corpora[name] for name in SCALED if name in corpora} == set(corpora.values())


def fingerprint_of_a_phase(alarm_events: Path) -> str:
    """Return the fingerprint of `train_phase` with this file as the module that words the alarms."""
    sources = Sources((ROOT, *searched_folders()), FIRST_PARTY)
    sources.add_file("runtime.training.alarm_events", alarm_events)
    return Closures(sources).closure([Place("steps.train_phase", "train_phase", Aspect.VALUE)]).fingerprint


def test_a_changed_word_of_an_alarm_makes_no_phase_stale(tmp_path):
    path, changed = ROOT / "runtime/training/alarm_events.py", tmp_path / "alarm_events.py"
    before, text = fingerprint_of_a_phase(path), path.read_text()
    reworded = text
    for words in ("Training continues", "training continues", "the gradient norm is", "largest change in"):
        assert words in text
        reworded = reworded.replace(words, f"other words for {len(words)}")
    changed.write_text(reworded)
    assert fingerprint_of_a_phase(changed) == before
    changed.write_text(text.replace('"pace"', '"tempo"'))
    assert fingerprint_of_a_phase(changed) != before, "the name of a monitor is no text of a log"
