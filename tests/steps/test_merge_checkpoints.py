"""A merge: the weighted average of weights, which is evaluated, exported and started from like a phase's."""

import dataclasses
import tracemalloc
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError

from marin_dag.errors import UserError
from marin_dag.graph.graph import Graph
from marin_dag.graph.inputs import Input
from marin_dag.graph.resources import Tpu
from marin_dag.graph.step import Step
from marin_dag.plan.config_checks import check_configs
from marin_dag.store.prefix import open_store
from pipelines import recipe
from pipelines.scores_command import read_points
from runtime.evaluation.trained_model import TrainedModel
from runtime.interop.huggingface import read_model
from runtime.model.config import LLAMA3_ROPE
from runtime.model.llama.config import LlamaConfig
from runtime.model.llama.model import Llama
from runtime.model.model import abstract_params, leaves_by_name
from runtime.optim.ema import Ema
from runtime.parallel.mesh import make_mesh
from runtime.parallel.mesh_shape import MeshShape
from runtime.tracking.events import EventLog
from runtime.training import checkpoint, checkpoint_reader
from runtime.training.checkpoint_reader import CheckpointError
from steps.ema_eval import EmaEvalResult
from steps.hf_export import HfExportConfig, hf_export
from steps.merge_checkpoints import merge_checkpoints
from steps.merge_config import MergeCheckpointsConfig, uniform
from steps.phase_result import TrainPhaseResult
from steps.phase_state import first_state
from steps.tokenizer import TokenizerResult
from steps.train_phase import train_phase
from tests.catalogue import expect_error
from tests.pipelines.committed import commit
from tests.runtime.interop.small_llama import CONFIG, tokenizer_file
from tests.steps.phase_runs import a_phase
from tests.steps.test_evaluation import facts
from tests.steps.test_phase_checks_of_tokenizers import OTHERS, OURS, WIDE, tokenized

pytestmark = pytest.mark.usefixtures("use_devices")


def random_params(config: LlamaConfig, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: jnp.asarray(rng.standard_normal(leaf.shape, np.float32)), abstract_params(Llama(config))
    )


def saved(folder: Path, seed: int, averages: tuple[str, ...] = (), **changes: Any) -> Input[TrainPhaseResult]:
    """Save random weights as a milestone of a phase after `seed` steps; `changes` are fields of its model."""
    config = dataclasses.replace(CONFIG, **changes)
    state = {"params": random_params(config, seed), "mu": random_params(config, seed + 1)}
    if averages:
        state["averages"] = {name: random_params(config, seed + 10) for name in averages}
    checkpoint.save(f"{folder}/{seed}/checkpoint", state, {"facts": facts(model=dataclasses.asdict(config))}).wait()
    result = TrainPhaseResult(
        step=seed, consumed_tokens=100 * seed, checkpoint="checkpoint", metrics="metrics.parquet", final_loss=1.0
    )
    return Input(name=f"seed-{seed}", digest=f"{seed:064x}", path=f"{folder}/{seed}", result=result)


def merged(run_alone: Any, checkpoints: Any, coefficients: Any, weights: str = "hot") -> Input[TrainPhaseResult]:
    config = MergeCheckpointsConfig(checkpoints=checkpoints, coefficients=coefficients, weights=weights)
    found: Input[TrainPhaseResult] = run_alone(merge_checkpoints, config, "merge")
    return found


def weights_of(phase: Input[TrainPhaseResult], which: str = "hot") -> dict[str, np.ndarray]:
    params = TrainedModel.open(phase.join(phase.result.checkpoint)).params(which, None)
    return {name: np.asarray(leaf) for name, leaf in leaves_by_name(params).items()}


@pytest.mark.parametrize("weights", ["hot", "averaged"])
def test_a_merge_is_the_weighted_sum_of_each_tensor_and_has_the_place_of_its_newest(tmp_path, run_alone, weights):
    checkpoints = [saved(tmp_path, seed, averages=("averaged", "slow")) for seed in (2, 3, 1)]
    coefficients = (0.5, 0.2, 0.3)
    phase = merged(run_alone, checkpoints, coefficients, weights)
    parts = [weights_of(each, weights) for each in checkpoints]
    for name, value in weights_of(phase).items():
        expected = sum(share * part[name].astype(np.float64) for share, part in zip(coefficients, parts, strict=True))
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-6, err_msg=name)
    assert (phase.result.step, phase.result.consumed_tokens, phase.result.averages) == (3, 300, ())


def test_checkpoints_in_other_chunks_merge_to_the_same_values(tmp_path, run_alone, monkeypatch):
    first = saved(tmp_path, 1)
    monkeypatch.setattr(checkpoint_reader, "MAX_CHUNK_IN_BYTES", 2_000)
    second = saved(tmp_path, 2)
    chunks = [Path(each.path, "checkpoint/arrays").rglob("c.*") for each in (first, second)]
    assert len(list(chunks[0])) < len(list(chunks[1]))
    halves = (0.5, 0.5)
    found = [
        weights_of(run_alone(merge_checkpoints, MergeCheckpointsConfig(checkpoints=order, coefficients=halves), name))
        for name, order in (("a", (first, second)), ("b", (second, first)))
    ]
    ours, theirs = weights_of(first), weights_of(second)
    for name, value in found[0].items():
        np.testing.assert_array_equal(value, found[1][name])
        np.testing.assert_array_equal(value, np.float32(0.5) * ours[name] + np.float32(0.5) * theirs[name])


def test_a_merge_holds_a_chunk_at_a_time(tmp_path, run_alone, monkeypatch):
    monkeypatch.setattr(checkpoint_reader, "MAX_CHUNK_IN_BYTES", 100_000)
    wide = {"hidden_size": 128, "intermediate_size": 1024, "num_hidden_layers": 6}
    checkpoints = [saved(tmp_path, seed, **wide) for seed in (1, 2, 3)]
    tracemalloc.start()
    try:
        phase = merged(run_alone, checkpoints, (0.25, 0.25, 0.5))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 4 * dataclasses.replace(CONFIG, **wide).num_parameters > 9e6
    assert peak < 4e6, "sixteen chunks of 0.1 MB wait to be written"
    assert weights_of(phase)


def test_a_phase_that_starts_from_a_merge_has_its_weights_and_counts_from_0(tmp_path, run_alone):
    start = merged(run_alone, (saved(tmp_path, 1), saved(tmp_path, 2)), (0.5, 0.5))
    config = a_phase(tokenized(OURS, "web"), start=start, restore="weights", model=CONFIG)
    with EventLog(str(tmp_path / "events.jsonl")) as events:
        run = first_state(config, make_mesh(MeshShape(), jax.devices()), events).run
    expected = weights_of(start)
    for name, value in leaves_by_name(run.state.params).items():
        np.testing.assert_array_equal(value, expected[name])
    assert (run.step, run.consumed_tokens, len(run.metrics)) == (0, 0, 0)


def test_an_export_of_a_merge_has_its_weights_and_says_which_were_merged(tmp_path, run_alone):
    checkpoints = [saved(tmp_path, seed, averages=("averaged",)) for seed in (1, 2)]
    start = merged(run_alone, checkpoints, (0.5, 0.5), "averaged")
    tokenizer_file(tmp_path / "tokenizer.json")
    described = TokenizerResult(
        tokenizer="tokenizer.json", vocab_size=CONFIG.vocab_size, eos_token_id=0, bos_token_id=None, digest="0" * 64
    )
    tokenizer = Input(name="tokenizer", digest="f" * 64, path=str(tmp_path), result=described)
    config = HfExportConfig(phase=start, tokenizer=tokenizer, weights="hot", dtype="float32", model_name="toy")
    export = run_alone(hf_export, config, "export")
    expected = weights_of(start)
    for name, value in leaves_by_name(read_model(export.join(export.result.folder)).params).items():
        np.testing.assert_array_equal(value, expected[name])
    assert (
        "the weighted average of the EMA weights `averaged` of 2 checkpoints"
        in Path(export.path, "model/README.md").read_text()
    )
    assert (export.result.step, export.result.consumed_tokens) == (2, 200)


def another_leaf(tmp_path: Path) -> Any:
    return saved(tmp_path, 1), saved(tmp_path, 2, use_qk_norm=True)


def another_shape(tmp_path: Path) -> Any:
    first, second = saved(tmp_path, 1), saved(tmp_path, 2)
    narrow = dataclasses.replace(CONFIG, hidden_size=16)
    params = random_params(narrow, 2)  # under the description of the wider model
    checkpoint.save(second.join("checkpoint"), {"params": params}, {"facts": facts()}).wait()
    return first, second


def a_nan(tmp_path: Path) -> Any:
    first, second = saved(tmp_path, 1), saved(tmp_path, 2)
    params = jax.tree.map(lambda leaf: leaf.at[(0,) * leaf.ndim].set(np.nan), random_params(CONFIG, 2))
    checkpoint.save(second.join("checkpoint"), {"params": params}, {"facts": facts()}).wait()
    return first, second


def a_torn_chunk(tmp_path: Path) -> Any:
    first, second = saved(tmp_path, 1), saved(tmp_path, 2)
    file = min(Path(second.path, "checkpoint/arrays").glob("params.*/c.*"))
    file.write_bytes(b"\0" + file.read_bytes()[1:])
    return first, second


@pytest.mark.parametrize("make", [another_leaf, another_shape, a_nan, a_torn_chunk], ids=lambda make: make.__name__)
def test_checkpoints_that_cannot_merge_are_an_error_and_leave_no_checkpoint(tmp_path, run_alone, make):
    with expect_error(CheckpointError, ValueError):
        merged(run_alone, make(tmp_path), (0.5, 0.5))
    assert not list((tmp_path / "outputs").rglob("manifest.json"))


def test_weights_that_a_checkpoint_lacks_are_an_error(tmp_path, run_alone):
    with expect_error(CheckpointError):
        merged(run_alone, (saved(tmp_path, 1), saved(tmp_path, 2)), (0.5, 0.5), "averaged")


def test_averages_of_one_name_and_two_decays_do_not_merge(tmp_path, run_alone):
    checkpoints = []
    for seed, decay in ((1, 0.5), (2, 0.999)):
        found = saved(tmp_path, seed, averages=("averaged",))
        result = found.result.model_copy(update={"averages": (Ema(decay),)})
        checkpoints.append(Input(name=found.name, digest=found.digest, path=found.path, result=result))
    with expect_error(ValueError):
        merged(run_alone, checkpoints, (0.5, 0.5), "averaged")


FIRST = train_phase("first", a_phase(tokenized(OURS, "first"), model=WIDE, averages=(Ema(0.5),)))
MERGE = recipe.merge("merge", [FIRST.at(step=4), FIRST])


@pytest.mark.parametrize(
    "fields",
    [
        {"checkpoints": (FIRST,), "coefficients": (1.0,)},
        {"checkpoints": (FIRST, FIRST.at(step=8)), "coefficients": (0.5, 0.5)},
        {"checkpoints": (FIRST, FIRST.at(step=4)), "coefficients": (1.0,)},
        {"checkpoints": (FIRST, FIRST.at(step=4)), "coefficients": (0.5, 0.6)},
        {"checkpoints": (FIRST, FIRST.at(step=4)), "coefficients": (0.5, float("nan"))},
        {"checkpoints": (FIRST, FIRST.at(step=4)), "coefficients": (1.5, -0.5)},
        {"checkpoints": (), "coefficients": uniform(0)},
        {"checkpoints": (FIRST, OURS), "coefficients": uniform(2)},
    ],
)
def test_a_merge_of_one_or_with_coefficients_that_are_no_shares_is_refused(fields):
    with expect_error(ValidationError):
        MergeCheckpointsConfig(**fields)


def other(**changes: Any) -> Step[Any]:
    cache = changes.pop("cache", tokenized(OURS, "other"))
    return train_phase("other", a_phase(cache, **{"model": WIDE, "averages": (Ema(0.5),), "seed": 1} | changes))


@pytest.mark.parametrize(
    "step",
    [
        recipe.merge("merge", [FIRST, other(model=dataclasses.replace(WIDE, num_hidden_layers=2))]),
        recipe.merge("merge", [FIRST, other(rope=LLAMA3_ROPE)]),
        recipe.merge("merge", [FIRST, other(cache=tokenized(OTHERS, "other"))]),
        recipe.merge("merge", [FIRST, other(averages=())], weights="averaged"),
        recipe.merge("merge", [FIRST, other(averages=(Ema(0.999),))], weights="averaged"),
        dataclasses.replace(MERGE, resources=Tpu("v4-16")),
        recipe.export(MERGE, OURS, weights="averaged"),
        recipe.export(MERGE, OTHERS),
        other(start=MERGE, until_step=16),
        other(start=MERGE, restore="weights", model=dataclasses.replace(WIDE, num_hidden_layers=2), averages=()),
        *recipe.evaluate([MERGE], caches={"web": tokenized(OTHERS, "other")}),
    ],
    ids=lambda step: step.name,
)
def test_what_a_merge_cannot_be_made_of_or_used_for_is_refused_while_planned(step):
    with expect_error(UserError):
        check_configs(Graph([step]).steps)


def test_a_merge_is_evaluated_exported_scored_written_with_and_started_from_like_a_phase():
    branch = other()
    merges = [MERGE, recipe.merge("of-branches", [FIRST, branch], coefficients=(0.9, 0.1), weights="averaged")]
    results = recipe.evaluate(merges, caches={"web": tokenized(OURS, "web")})
    results += recipe.write_after(["a"], merges, OURS, max_new_tokens=2)
    results += [recipe.score(recipe.export(each, OURS), ["piqa"], limit=2) for each in merges]
    results += [branch.fork("next", start=MERGE, restore="weights", averages=())]
    results += [recipe.merge("of-merges", merges)]
    check_configs(Graph(results).steps)
    assert MERGE.digest != recipe.merge("merge", [FIRST, FIRST.at(step=4)], coefficients=(0.6, 0.4)).digest
    assert MERGE.digest != recipe.merge("merge", [FIRST.at(step=4), FIRST], weights="averaged").digest


def test_scores_list_a_merge_beside_the_phases(tmp_path):
    (evaluation,) = recipe.evaluate([MERGE], caches={"web": tokenized(OURS, "web")})
    result = EmaEvalResult(
        step=8, consumed_tokens=800, hot={"web": 1.5}, hot_mean=1.5, averages=(), num_bytes={}, num_tokens={}
    )
    store = open_store(str(tmp_path))
    commit(store, evaluation, result)
    (point,) = read_points(Graph([evaluation]), store)
    assert (point.phase, point.weights, point.step, point.tokens, point.value) == ("merge", "hot", 8, 800, 1.5)
