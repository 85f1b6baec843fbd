"""Merge checkpoints: the weighted average of the weights of milestones, branches or imports, as a checkpoint."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from marin_dag.graph.cost import Cost
from marin_dag.graph.resources import Resources
from marin_dag.graph.step import StepContext, step
from runtime.optim.ema import HOT, Ema
from steps.machine_checks import check_one_host
from steps.merge_config import MergeCheckpointsConfig
from steps.phase_checks import (
    Tokenizers,
    check_average_exists,
    check_one_tokenizer,
    described_by,
    tokenizers_of_phase,
)
from steps.phase_config import TrainPhaseConfig
from steps.phase_result import TrainPhaseResult


def check_merge(config: MergeCheckpointsConfig) -> None:
    """Raise ValueError where the checkpoints differ in model, rope, tokenizer or average, or one lacks the weights."""
    tokenizers: Tokenizers = {}
    for checkpoint in config.checkpoints:
        tokenizers |= tokenizers_of_phase("checkpoint", checkpoint)
        check_average_exists("weights", checkpoint, config.weights)
    check_one_tokenizer(tokenizers)
    known = {each.typed: found for each in config.checkpoints if (found := described_by(each)) is not None}
    check_one_model({name: (found.model, found.rope) for name, found in known.items()})
    kept = {name: found.averages for name, found in known.items() if isinstance(found, TrainPhaseConfig)}
    check_one_average(config.weights, kept)


def check_one_average(weights: str, kept: Mapping[str, tuple[Ema, ...]]) -> None:
    """Raise ValueError where the average called `weights` is another one in a checkpoint than in the first."""
    found = {name: each for name, averages in kept.items() for each in averages if each.name == weights}
    for name, average in found.items():
        first, its = next(iter(found.items()))
        if average != its:
            raise ValueError(
                f"weights {weights!r} are {its} in {first!r}, and {average} in {name!r}; merge averages of one decay, "
                f"or weights={HOT!r}."
            )


def check_one_model(described: dict[str, tuple[Any, Any]]) -> None:
    """Raise ValueError where a checkpoint has another model or rope than the first one."""
    fields = {name: _fields(model, rope) for name, (model, rope) in described.items()}
    first = next(iter(fields), "")
    for name, theirs in fields.items():
        for field, value in theirs.items():
            if value != (own := fields[first].get(field)):
                raise ValueError(
                    f"{field} is {own!r} in {first!r}, and {value!r} in {name!r}; merge checkpoints of one model."
                )


def _fields(model: Any, rope: Any) -> dict[str, Any]:
    """Return the fields in which averaged weights must agree: all but the initialization."""
    shape = {f"model.{field}": value for field, value in dataclasses.asdict(model).items() if field != "initialization"}
    return {"model": type(model).__name__, "rope": rope} | shape


def _cost(config: MergeCheckpointsConfig, _: Resources) -> Cost:
    described = described_by(config.checkpoints[0])
    size = 0 if described is None else 4 * described.model.num_parameters
    return Cost(bytes_read=size * len(config.checkpoints), bytes_written=size)


# Versioned and without `packages`, for the reason that `hf_import` gives.
@step(policy="versioned", version="1", check=check_merge, check_on=check_one_host, cost=_cost)
def merge_checkpoints(config: MergeCheckpointsConfig, context: StepContext) -> TrainPhaseResult:
    """Write the float32 average to a checkpoint of weights alone, with one chunk of a tensor in memory at a time.

    The result has the training step and the tokens of the checkpoint with the most tokens. A phase that starts from
    the result counts from 0, as from an import.
    """
    from runtime.model.architectures import ModelDescription
    from runtime.training.checkpoint import read_metadata
    from runtime.training.merging import Part, merged_leaves
    from runtime.training.run_state import CHECKPOINT, METRICS, SOURCE_LOSSES, save_weights

    paths = [each.join(each.result.checkpoint) for each in config.checkpoints]
    names = [each.typed for each in config.checkpoints]
    facts = [read_metadata(path).get("facts", {}) for path in paths]
    described = [ModelDescription.from_facts(each, path) for each, path in zip(facts, paths, strict=True)]
    check_one_model({name: (found.config, found.rope) for name, found in zip(names, described, strict=True)})
    check_one_average(config.weights, {each.typed: each.result.averages for each in config.checkpoints})
    parts = [Part.open(path, config.weights, share) for path, share in zip(paths, config.coefficients, strict=True)]
    newest = max(range(len(parts)), key=lambda index: config.checkpoints[index].result.consumed_tokens)
    merged = [[each.key, share] for each, share in zip(config.checkpoints, config.coefficients, strict=True)]
    save_weights(
        context.output_path,
        merged_leaves(parts),
        facts={"merged": merged, "merged_weights": config.weights}
        | {name: facts[newest][name] for name in ("model", "rope", "sequence_length")},
        on_leaf=lambda done, total: context.progress(done, total, "arrays"),
    )
    context.log.info("merged the %s weights of %s", config.weights, ", ".join(names))
    result = config.checkpoints[newest].result
    return TrainPhaseResult(
        step=result.step,
        consumed_tokens=result.consumed_tokens,
        checkpoint=CHECKPOINT,
        metrics=METRICS,
        source_losses=SOURCE_LOSSES,
        final_loss=None,
    )
