"""The report's text about the graph, read off the steps."""

import argparse

from pydantic import BaseModel

from marin_dag.graph.fork import Fork
from marin_dag.graph.graph import Graph
from marin_dag.graph.step import StepContext, step
from pipelines import ladder, recipe
from pipelines.phases import parents_of, phases_in, run_phases_in
from pipelines.reporting import fork_report, recipe_of, report_on
from runtime.data.mixture import MixtureSchedule
from runtime.evaluation.task import Task
from runtime.model.config import LLAMA2_ROPE, LLAMA3_ROPE
from runtime.model.llama.config import LlamaConfig
from runtime.optim.ema import Ema
from runtime.optim.schedule import Constant, Cycles, Linear, Rewarm, WsdS
from runtime.report.recipe import described
from steps.hf_export import HfExportConfig, hf_export
from steps.lm_eval import LmEvalConfig, lm_eval
from steps.phase_config import TrainPhaseConfig
from steps.phase_result import TrainPhaseResult
from steps.tokenizer import TokenizerResult
from steps.train_phase import train_phase as published_phase
from tests.catalogue import expect_error

MODEL = LlamaConfig(
    vocab_size=256,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
)


@step(continues="start")
def train_phase(config: TrainPhaseConfig, context: StepContext) -> TrainPhaseResult:
    """Stand for the kind of the steps below; no test runs it."""
    raise NotImplementedError


class WeightsConfig(BaseModel, frozen=True, extra="forbid"):
    folder: str


def phases():
    kestrel = train_phase(
        "kestrel",
        TrainPhaseConfig(
            start=None, until_step=100, model=MODEL, rope=LLAMA2_ROPE, sequence_length=64, global_batch_size=8,
            learning_rate=Constant(1e-3), weight_decay=0.05, b1=0.9, b2=0.95, eps=1e-8, max_norm=1.0,
            z_loss=0.0, mixture=MixtureSchedule.constant({"web": 3.0, "code": 1.0}), caches={}, seed=0,
        ),
    )  # fmt: skip
    ocelot = kestrel.then(
        "ocelot", until_step=120, global_batch_size=24, averages=(Ema(0.995),), rope=LLAMA3_ROPE,
        acknowledge=("rope",),
    )  # fmt: skip
    return {"kestrel": kestrel, "ocelot": ocelot, "spoonbill": ocelot.then("spoonbill", until_step=130, z_loss=1e-4)}


def test_parents_are_the_phases_that_a_phase_starts_from():
    assert parents_of(phases()) == {"ocelot": "kestrel", "spoonbill": "ocelot"}


@step()
def weights_from_elsewhere(config: WeightsConfig, context: StepContext) -> TrainPhaseResult:
    """Stand for an import of any format."""
    raise NotImplementedError(config.folder)


def test_weights_that_no_phase_trained_are_no_parent_and_stand_among_the_settings_of_the_first_phase():
    first = phases()["kestrel"]
    start = weights_from_elsewhere("llama", WeightsConfig(folder="somewhere"))
    imported = first.fork("imported", start=start, restore="weights")
    line = {"imported": imported, "next": imported.then("next", until_step=110)}
    assert parents_of(line) == {"next": "imported"}
    assert phases_in([imported]) == {"imported": imported}
    assert run_phases_in(line)["next"].begin_step == 100
    recipe = recipe_of(line)
    begin, *others = recipe["imported"]
    assert (begin.field, begin.before, begin.after) == ("start", "", "llama (weights)")
    assert tuple(others) == recipe_of({"kestrel": first})["kestrel"]


def test_the_recipe_says_what_changes_and_nothing_else():
    recipe = recipe_of(phases())
    assert [change.field for change in recipe["ocelot"]] == ["global_batch_size", "averages", "rope"]
    assert [(c.field, c.before, c.after) for c in recipe["spoonbill"]] == [("z_loss", "0", "1e-4")]
    first = {change.field: change.after for change in recipe["kestrel"]}
    assert first["mixture"] == "web 75 %, code 25 %"


def test_settings_are_described_in_words():
    decay, rewarm = (
        Linear(1.7e-3, 1.7e-4, start_step=740_500, decay_steps=79_500),
        Rewarm(1.7e-4, 1.7e-3, start_step=0, warmup_steps=2_000),
    )
    assert described(decay) == "linear 1.7e-3 → 1.7e-4 over 79,500 steps from step 740,500"
    assert described(rewarm) == "rewarm 1.7e-4 → 1.7e-3 over 2,000 steps from step 0, then constant"
    assert described(LLAMA2_ROPE) == "theta 10,000, no scaling"
    assert described(LLAMA3_ROPE) == "theta 500,000, Llama-3 scaling ×8"
    assert described(WsdS(1e-3, 1e-4, 1_000, (Cycles(0, 10_000, 1_000),))) == (
        "WSD-S 1e-3 ⇄ 1e-4, warm-up 1,000 steps, cycles from step 0: 10,000 with 1,000 of decay"
    )
    assert (described(None), described(3072), described(0.05), described(True)) == ("none", "3,072", "0.05", "True")


def test_a_branch_that_changes_its_precision_alone_says_so():
    made = phases()
    made["focused"] = made["ocelot"].then(
        "focused", until_step=130, compute_dtype="float32", acknowledge=("compute_dtype",)
    )
    assert [(c.field, c.before, c.after) for c in recipe_of(made)["focused"]] == [
        ("compute_dtype", "bfloat16", "float32")
    ]


@step()
def tokenizer(config: WeightsConfig, context: StepContext) -> TokenizerResult:
    """The kind of a tokenizer; nothing here runs it."""
    raise NotImplementedError


def test_the_scores_of_an_export_bring_the_export_and_two_for_one_are_refused():
    phase = published_phase("kestrel", phases()["kestrel"].config)
    words = tokenizer("tokenizer", WeightsConfig(folder=""))
    fields = {"phase": phase, "tokenizer": words, "weights": "hot", "dtype": "float32", "model_name": "Kestrel"}
    export = hf_export("hf_export/kestrel", HfExportConfig(**fields))
    piqa, boolq = (
        lm_eval(f"lm_eval/{name}", LmEvalConfig(export=export, tasks=(Task(name, 0, ()),), limit=None))
        for name in ("piqa", "boolq")
    )
    config = report_on([piqa], title="", introduction="").config
    assert list(config.exports) == list(config.scores) == ["kestrel"]
    with expect_error(ValueError):
        report_on([piqa, boolq], title="", introduction="")


def test_a_merge_and_its_fork_are_on_the_report_with_all_that_was_measured_of_them():
    line = [published_phase(name, step.config) for name, step in phases().items()][:1]
    line.append(line[0].fork("z_loss", z_loss=1e-4))
    merged = recipe.merge("merged", line)
    words = tokenizer("tokenizer", WeightsConfig(folder=""))
    model = recipe.export(merged, words)
    page = report_on([*recipe.evaluate([*line, merged], caches={}), model], title="", introduction="")
    config = page.config
    assert config.others == ("merged",) and list(config.phases) == ["kestrel", "z_loss"]
    assert list(config.evaluations) == ["kestrel", "z_loss", "merged"] and list(config.exports) == ["merged"]
    assert list(report_on([model], title="", introduction="").config.others) == ["merged"]
    fork = merged.fork("m3", coefficients=(0.3, 0.7))
    made = Fork(name="m3", base="merged", changes={}, author="ada", reason="", created="")
    (with_fork,) = fork_report(Graph([page, *recipe.evaluate([fork], caches={})]), [made], [])
    assert with_fork.config.others == ("merged", "m3") and not with_fork.config.forks


def test_texts_after_two_lists_of_prompts_are_on_the_report_also_of_a_phase_with_a_folder_in_its_name():
    phase = published_phase("kestrel", phases()["kestrel"].config)
    line = [phase, phase.fork("z_loss/one", z_loss=1e-4)]
    words = tokenizer("tokenizer", WeightsConfig(folder=""))
    first = recipe.write_after(["The sea"], line, words)
    second = recipe.write_after(["1 + 1"], line, words, name="sums")
    config = report_on([*first, *second], title="", introduction="").config
    assert list(config.texts) == ["kestrel", "z_loss/one", "kestrel/sums/kestrel", "z_loss/one/sums/z_loss/one"]


def test_the_report_of_a_ladder_has_its_law_and_every_rung():
    graph = Graph(ladder.build(argparse.Namespace()))
    config, law = graph.step("report").config, graph.step("law")
    assert config.law.step is law
    assert {item.step for item in config.evaluations.values()} == {
        item.step for item in law.config.evaluations.values()
    }
    assert {f"w{width}" for width in ladder.LAPTOP.widths} <= set(config.phases)
