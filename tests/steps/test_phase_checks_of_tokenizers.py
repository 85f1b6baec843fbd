"""A run has one tokenizer from its first phase to the export: a plan refuses another one."""

import dataclasses
from typing import Any

import pytest
from pydantic import BaseModel

from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import Step, StepContext, step
from marin_dag.plan.config_checks import check_configs
from runtime.data.mixture import MixtureSchedule
from steps.ema_eval import EmaEvalConfig, ema_eval
from steps.hf_export import HfExportConfig, hf_export
from steps.phase_result import TrainPhaseResult
from steps.tokenize import TokenizeConfig, TokenizeResult, tokenize
from steps.train_phase import train_phase
from steps.train_tokenizer import TrainTokenizerConfig, train_tokenizer
from tests.catalogue import expect_error
from tests.steps.phase_runs import MODEL, a_phase
from tests.steps.text_steps import WrittenConfig, written

DOCUMENTS = written("documents", WrittenConfig(shards=(("A text.",),)))
OURS, OTHERS = (
    train_tokenizer(name, TrainTokenizerConfig(documents={"web": DOCUMENTS}, vocab_size=vocab_size))
    for name, vocab_size in (("ours", 258), ("others", 259))
)


def tokenized(tokenizer: Step[Any], name: str) -> Step[Any]:
    return tokenize(f"tokenize/{name}", TokenizeConfig(documents=DOCUMENTS, tokenizer=tokenizer, validation_share=0.1))


WIDE = dataclasses.replace(MODEL, vocab_size=260)
FIRST = train_phase("first", a_phase(tokenized(OURS, "first"), model=WIDE))


def next_phase(tokenizer: Step[Any]) -> Step[Any]:
    return train_phase("next", a_phase(tokenized(tokenizer, "web"), start=FIRST, model=WIDE, until_step=16))


def mixed_phase(tokenizer: Step[Any]) -> Step[Any]:
    caches = {"web": tokenized(OURS, "web"), "code": tokenized(tokenizer, "code")}
    mixture = MixtureSchedule.constant({"web": 0.5, "code": 0.5})
    return train_phase("mixed", a_phase(caches["web"], model=WIDE, caches=caches, mixture=mixture))


def evaluation(tokenizer: Step[Any]) -> Step[Any]:
    return ema_eval(
        "ema_eval", EmaEvalConfig(phase=FIRST, caches={"code": tokenized(tokenizer, "code")}, max_tokens_per_domain=16)
    )


def export(tokenizer: Step[Any]) -> Step[Any]:
    config = HfExportConfig(phase=FIRST, tokenizer=tokenizer, weights="hot", dtype="float32", model_name="toy")
    return hf_export("hf_export", config)


@pytest.mark.parametrize(
    "step_of",
    [
        next_phase,
        mixed_phase,
        evaluation,
        export,
    ],
)
def test_another_tokenizer_than_the_phase_s_is_an_error(
    step_of,
):
    check_configs(Graph([step_of(OURS)]).steps)
    with expect_error(UserError):
        check_configs(Graph([step_of(OTHERS)]).steps)


class ImportedConfig(BaseModel, frozen=True, extra="forbid"):
    """Steps of a user's own kinds name no tokenizer, no caches and no model."""

    folder: str


@step()
def imported_cache(config: ImportedConfig, context: StepContext) -> TokenizeResult:
    raise NotImplementedError(config.folder)


@step()
def imported_phase(config: ImportedConfig, context: StepContext) -> TrainPhaseResult:
    raise NotImplementedError(config.folder)


def test_a_step_with_an_unknown_tokenizer_is_planned():
    cache = imported_cache("cache", ImportedConfig(folder="a"))
    start = imported_phase("start", ImportedConfig(folder="b"))
    steps = [
        train_phase("next", a_phase(cache, start=start, model=WIDE, until_step=16)),
        ema_eval("ema_eval", EmaEvalConfig(phase=start, caches={"web": cache}, max_tokens_per_domain=16)),
        hf_export(
            "hf_export",
            HfExportConfig(phase=start, tokenizer=OURS, weights="hot", dtype="float32", model_name="toy"),
        ),
    ]
    check_configs(Graph(steps).steps)
