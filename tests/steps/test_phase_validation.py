"""Validation while a phase trains: what an evaluation of the same state finds, and not a bit of the run is moved."""

import dataclasses
import logging

import numpy as np
import pytest

from marin_dag.errors import RefusedConfigError
from marin_dag.graph.inputs import Input
from marin_dag.graph.resources import Gpu
from pipelines.corpus import eight_b_corpus
from pipelines.scales import EIGHT_B
from pipelines.tootsie import phases
from runtime.evaluation.bits_per_byte import BitsPerByteError
from runtime.evaluation.gold_answers import GoldAnswer, to_json_lines
from runtime.evaluation.held_out import HeldOut
from runtime.optim.ema import Ema
from runtime.parallel.mesh import mesh_of_cores
from runtime.tracking.events import EventLog
from runtime.training.figures import NonFiniteError
from runtime.training.observer import Observer
from steps.ema_eval import EmaEvalConfig, ema_eval
from steps.gold_answers import GoldAnswersResult
from steps.machine_checks import check_resources
from steps.phase_checks import check_config
from steps.phase_validation import validation_of
from tests.catalogue import check_message, expect_error
from tests.steps.conftest import FolderContext
from tests.steps.phase_runs import MODEL, SEQUENCE_LENGTH, Trajectory, a_phase, cache_of

pytestmark = pytest.mark.usefixtures("use_devices")

AVERAGES = (Ema(decay=0.6, name="quick"), Ema(decay=0.9, name="apart"))


@pytest.fixture
def cache(tmp_path):
    return cache_of(tmp_path / "cache", "web", last_id=MODEL.vocab_size)


def validated(cache, **changes):
    return a_phase(cache, averages=AVERAGES, validate_every_steps=3, **changes)


def found(trajectory):
    events = (event for event in trajectory.events() if event["event"] == "validation")
    return {event["step"]: event["bits_per_byte"] for event in events}


def test_validation_equals_an_evaluation_of_the_same_state(tmp_path, cache):
    run = Trajectory(tmp_path / "run", "f" * 64)
    run.run(validated(cache, publish_every_steps=3))
    measured = found(run)
    assert list(measured) == [0, 3, 6, 8]
    assert len({value for by_step in measured.values() for by in by_step.values() for value in by.values()}) > 9
    for step in (3, 6, 8):
        phase = run.at(step)
        config = EmaEvalConfig(phase=phase, caches={"web": cache}, max_tokens_per_domain=SEQUENCE_LENGTH * 2)
        score = ema_eval.function(config, FolderContext("evaluation", str(tmp_path), str(tmp_path)))
        expected = {"hot": score.hot} | {each.average.name: each.by_domain for each in score.averages}
        assert measured[step] == expected
    assert measured[0]["hot"] == measured[0]["quick"] == measured[0]["apart"]
    assert measured[0]["hot"]["web"] == pytest.approx(np.log2(MODEL.vocab_size), rel=0.02), "an untrained model guesses"


def test_the_kernels_of_its_batch_are_in_the_event_log(tmp_path, cache):
    run = Trajectory(tmp_path / "run", "f" * 64)
    run.run(validated(cache, until_step=1, loss_kernel="reference"))
    (reported,) = [event for event in run.events() if event["event"] == "held_out"]
    assert (reported["num_windows"], reported["windows_per_batch"]) == (2, 16)
    kernels = reported["kernels"]
    named = {"attention": "chunked", "loss": "reference"}
    blocks = {"attention": "query 16", "loss": "all tokens"}
    assert kernels == named | {"reason": kernels["reason"], "blocks": blocks}


def test_validation_changes_no_byte_of_a_run(tmp_path, cache):
    runs = {}
    for name, every in (("with", 1), ("without", 0)):
        runs[name] = Trajectory(tmp_path / name, "f" * 64)
        runs[name].run(a_phase(cache, averages=AVERAGES, validate_every_steps=every))
    assert len(found(runs["with"])) == 9 and found(runs["without"]) == {}
    assert runs["with"].files(8) == runs["without"].files(8)


def answers_of(folder, *labels):
    """Return the right answers of tasks, as `gold_answers` writes them."""
    answer = GoldAnswer([0, 5, 6], [7, 8], [1, 2])
    for label in labels:
        (folder / f"{label}.jsonl").write_bytes(to_json_lines([answer, answer._replace(answer=[9, 10])]))
    result = GoldAnswersResult(
        files={label: f"{label}.jsonl" for label in labels}, num_answers=dict.fromkeys(labels, 2),
        vocab_size=MODEL.vocab_size,
    )  # fmt: skip
    return (Input(name="gold_answers", digest="a" * 64, path=str(folder), result=result),)


def test_answers_of_tasks_are_measured_and_change_no_byte_of_a_run(tmp_path, cache):
    runs = {}
    for name, tasks in (("with", answers_of(tmp_path, "piqa_0shot", "sciq_0shot")), ("without", ())):
        runs[name] = Trajectory(tmp_path / name, "f" * 64)
        runs[name].run(validated(cache, until_step=3, validation_tasks=tasks))
    assert runs["with"].files(3) == runs["without"].files(3) and found(runs["with"]) == found(runs["without"])
    first, last = (event for event in runs["with"].events() if event["event"] == "validation")
    assert first["num_answers"] == {"piqa_0shot": 2, "sciq_0shot": 2}
    assert first["answer_bits_per_byte"].keys() == {"hot", "quick", "apart"}
    guessed = 2 / 3 * np.log2(MODEL.vocab_size)  # two tokens of three bytes
    assert first["answer_bits_per_byte"]["hot"] == dict.fromkeys(
        ("piqa_0shot", "sciq_0shot"), pytest.approx(guessed, rel=0.05)
    )
    assert last["answer_bits_per_byte"]["hot"] != first["answer_bits_per_byte"]["hot"]


def test_tasks_without_a_measurement_or_for_another_vocabulary_are_refused(tmp_path, cache):
    tasks = answers_of(tmp_path, "piqa_0shot")
    with expect_error(ValueError):
        check_config(a_phase(cache, validation_tasks=tasks))
    result = tasks[0].result.model_copy(update={"vocab_size": 99})
    wide = Input(name="gold_answers", digest="a" * 64, path=str(tmp_path), result=result)
    with expect_error(ValueError):
        Trajectory(tmp_path / "run", "f" * 64).run(validated(cache, validation_tasks=(wide,)))


def test_a_resumed_run_measures_the_remaining_steps(tmp_path, cache):
    whole, cut = Trajectory(tmp_path / "whole", "f" * 64), Trajectory(tmp_path / "cut", "f" * 64)
    whole.run(validated(cache))
    with expect_error(Exception):
        cut.run(validated(cache), stop_after=4)
    first = found(cut)
    cut.run(validated(cache))
    assert (list(first), list(found(cut))) == ([0, 3], [6, 8])
    assert first | found(cut) == found(whole)


def test_a_growing_source_is_measured_by_a_later_attempt(tmp_path, cache, caplog):
    growing = cache_of(tmp_path / "code", "code", last_id=8)
    growing.is_growing = True
    context = FolderContext("a phase", str(tmp_path), str(tmp_path))
    alone, beside = ({"code": growing}, {"code": growing, "web": cache})
    mesh, phase = mesh_of_cores(1), validated(cache)
    with EventLog(str(tmp_path / "events.jsonl")) as events, caplog.at_level(logging.WARNING):
        assert validation_of(phase.model_copy(update={"caches": alone}), context, mesh, events, Observer()) is None
        found = validation_of(phase.model_copy(update={"caches": beside}), context, mesh, events, Observer())
    assert found is not None and found.held_out.domains.keys() == {"web"}
    assert len(caplog.records) == 2
    check_message(caplog.messages[0])


def test_text_without_a_finite_figure_stops_the_run(tmp_path, cache, monkeypatch):
    score, calls = HeldOut.scores, []

    def diverged(*arguments, **keywords):
        calls.append(arguments)
        if len(calls) == 5:  # three sets of weights at step 0, then the second at step 3
            raise BitsPerByteError("the loss on held-out text is not finite: the model has diverged.")
        return score(*arguments, **keywords)

    monkeypatch.setattr(HeldOut, "scores", diverged)
    run = Trajectory(tmp_path / "run", "f" * 64)
    with expect_error(BitsPerByteError):
        run.run(validated(cache))
    assert run.records == {}


def test_a_state_without_a_finite_figure_is_not_published(tmp_path, cache, monkeypatch):
    score, good = HeldOut.scores, []

    def diverges(*arguments, **keywords):
        if not good:
            raise BitsPerByteError("the loss on held-out text is not finite: the model has diverged.")
        good.pop()
        return score(*arguments, **keywords)

    monkeypatch.setattr(HeldOut, "scores", diverges)
    run, phase = Trajectory(tmp_path / "run", "f" * 64), validated(cache, publish_every_steps=3)
    for steps in ([0, 3, 6], [6]):  # the second attempt goes on from what was saved, and finds the same
        good[:] = [step for step in steps for _ in range(3)]  # of three sets of weights each
        with expect_error(BitsPerByteError):
            run.run(phase)
        assert run.records.keys() == {3, 6}


def test_a_phase_is_measured_as_it_begins(tmp_path, cache):
    first, second = Trajectory(tmp_path / "first", "e" * 64), Trajectory(tmp_path / "second", "f" * 64)
    first.run(validated(cache, until_step=4))
    second.run(validated(cache, start=first.at(4)))
    assert (list(found(first)), list(found(second))) == ([0, 3, 4], [4, 6, 8])
    assert found(first)[4] == found(second)[4]


def test_a_plan_refuses_a_batch_of_held_out_text_for_a_kernel():
    kestrel = phases(EIGHT_B, eight_b_corpus(EIGHT_B))["kestrel"].config
    kernels = {"attention_kernel": "chunked", "loss_kernel": "mosaic_gpu", "scatter_kernel": "xla"}
    config = kestrel.model_copy(update={**kernels, "sequence_length": 128, "global_batch_size": 64})
    machines = Gpu("H200", 8, num_hosts=2)
    with expect_error(ValueError):
        check_resources(config, machines)
    check_resources(config.model_copy(update={"validate_every_steps": 0}), machines)


def test_a_bad_step_is_an_error_before_its_validation(tmp_path, cache):
    run = Trajectory(tmp_path / "run", "f" * 64)
    wild = dataclasses.replace(a_phase(cache).learning_rate, peak_value=1e38, end_value=1e38)
    with expect_error(NonFiniteError):
        run.run(validated(cache, learning_rate=wild, weight_decay=1e38))


def test_a_plan_refuses_less_text_than_a_window(cache):
    too_little = validated(cache, validation_tokens_per_source=SEQUENCE_LENGTH - 1)
    with expect_error(RefusedConfigError):
        check_config(too_little)
    check_config(too_little.model_copy(update={"validate_every_steps": 0}))
