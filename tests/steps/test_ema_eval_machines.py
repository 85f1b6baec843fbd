"""The machines of an evaluation: what they do not take is known before its phase is trained."""

import dataclasses

import pytest

from marin_dag.graph.resources import Cpu, Gpu, Resources, Tpu
from marin_dag.graph.step import Step
from runtime.model.llama.config import LlamaConfig
from steps.ema_eval import EmaEvalConfig, ema_eval
from steps.train_phase import train_phase
from tests.catalogue import expect_error
from tests.steps.phase_runs import a_phase, cache_of

WIDE = LlamaConfig(4096, 512, 1024, 2, 4, 2, 128, 4096)


@pytest.fixture(scope="module")
def phase(tmp_path_factory: pytest.TempPathFactory) -> Step:
    """Return a phase of a length that splash refuses, with another kernel."""
    cache = cache_of(tmp_path_factory.mktemp("tokenize"), "web", last_id=8)
    asked = {"model": WIDE, "sequence_length": 1000, "global_batch_size": 8, "attention_kernel": "chunked"}
    return train_phase("odd", a_phase(cache, **asked), resources=Tpu("v6e-4"))


def evaluation(phase: Step, **changes: object) -> EmaEvalConfig:
    return EmaEvalConfig(**{"phase": phase, "caches": {}, "max_tokens_per_domain": 100, **changes})


@pytest.mark.parametrize(
    ("resources", "changes"),
    [
        (Tpu("v6e-4"), {}),
        (Tpu("v6e-4"), {"attention_kernel": "tokamax"}),
        (Cpu(2), {"attention_kernel": "flash"}),
        (Gpu("H200", 8), {"loss_kernel": "mosaic_gpu"}),
        (Tpu("v4-2048"), {}),
        (Gpu("H200", 8, num_hosts=3), {}),
        (Tpu("v4-2048"), {"replica_parallel": 3}),
    ],
)
def test_a_plan_refuses_machines_that_cannot_run_the_evaluation(
    phase: Step,
    resources: Resources,
    changes: dict[str, object],
) -> None:
    assert ema_eval.check_on is not None
    with expect_error(ValueError):
        ema_eval.check_on(evaluation(phase, **changes), resources)


@pytest.mark.parametrize(
    ("resources", "changes"),
    [
        (Tpu("v6e-4"), {"attention_kernel": "chunked"}),
        (Cpu(2), {}),
        (Gpu("H200", 8), {}),
        (Gpu("H200", 8), {"attention_kernel": "chunked", "compute_dtype": "bfloat16"}),
        (Tpu("v4-2048"), {"replica_parallel": 2, "attention_kernel": "chunked"}),
        (Gpu("H200", 8, num_hosts=3), {"replica_parallel": 3}),
    ],
)
def test_suitable_machines_are_planned(phase: Step, resources: Resources, changes: dict[str, object]) -> None:
    assert ema_eval.check_on is not None
    ema_eval.check_on(evaluation(phase, **changes), resources)


def test_the_default_kernel_needs_no_name(phase: Step) -> None:
    assert ema_eval.check_on is not None
    whole = phase.fork("whole", sequence_length=1024, model=dataclasses.replace(WIDE))
    ema_eval.check_on(evaluation(whole), Tpu("v6e-4"))
