"""Phase checks: what a phase, an export and an evaluation refuse of their configs and of each other, while planned.

An id is a row of the embeddings and nothing else: under another tokenizer weights give figures, all of them wrong.
"""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from marin_dag.errors import RefusedConfigError
from marin_dag.graph.inputs import Input
from runtime.data.consumption import no_cache
from runtime.optim.ema import average_named
from runtime.training.timeline import KEEP_THE_DATA_POSITION, UnacknowledgedError, refuse_unacknowledged_changes
from steps.hf_import import HfImportConfig
from steps.phase_config import TrainPhaseConfig
from steps.tokenize import TokenizeConfig, TokenizeResult
from steps.tokenizer import TokenizerResult
from steps.train_tokenizer import TrainTokenizerConfig

LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127
SMALLEST_FLOAT32 = 2.0**-126
"""The least with all its digits: below it a device may take a number for 0."""
LARGEST_BATCH_TOKENS = 2**30
"""More than sixty times the batch of Llama 3 405B (16 million); 8 GiB of ids and segment ids, over all hosts."""

Caches = Mapping[str, Input[TokenizeResult]]
Tokenizers = dict[str, Input[TokenizerResult]]
"""What takes a tokenizer, in words for an error -> the tokenizer."""


def check_config(config: TrainPhaseConfig) -> None:
    """What can be known before any cache is there; whether a source is large enough shows when it is.

    Raises:
        ValueError: the config cannot work, or jumps without saying that it is meant.
    """
    unprovided = [str(no_cache(source)) for source in config.mixture.sources if source not in config.caches]
    if unprovided:
        raise ValueError("\n".join(unprovided))
    _refuse_what_float32_cannot_hold(config)
    _refuse_giant_batches(config)
    if config.sequence_length > config.model.max_position_embeddings:
        raise ValueError(
            f"sequence_length is {config.sequence_length:,}, and model.max_position_embeddings "
            f"{config.model.max_position_embeddings:,}; raise that, or take shorter sequences."
        )
    if config.validate_every_steps and config.validation_tokens_per_source < config.sequence_length:
        raise RefusedConfigError(
            f"validation_tokens_per_source is {config.validation_tokens_per_source:,}, and held-out text is measured "
            f"in windows of sequence_length, which is {config.sequence_length:,}; take at least one.",
            {"validation_tokens_per_source": str(config.sequence_length)},
        )
    before = None if config.start is None else config.start.config_of(type(config))
    refuse_several_tokenizers(tokenizers_of_phase("start", config.start, before) | tokenizers_of(config.caches))
    _refuse_larger_vocabularies(config)
    for field in ("packing", "sequence_length") if config.restore in KEEP_THE_DATA_POSITION else ():
        old, new = getattr(before or config, field), getattr(config, field)
        if old != new:
            meant = dict.fromkeys((*config.acknowledge, field, "restore"))
            raise RefusedConfigError(
                f"{field} changes from {old!r} to {new!r}, and the data position counts rows of the old one; start the "
                f"data afresh, or keep the {field}.",
                {"restore": "weights_and_optimizer", "acknowledge": json.dumps(tuple(meant))},
            )
    _refuse_to_replay_what_is_left_out(config)
    if before is not None:
        _refuse_jumps(before, config)
    imported = imported_by(config.start)
    if imported is not None:
        _refuse_more_than_weights(imported, config)


def imported_by(start: Input[Any] | None) -> HfImportConfig | None:
    """What the step behind `start` imports, where it is an import."""
    return None if start is None else start.config_of(HfImportConfig)


def refuse_larger_vocabulary(source: str, num_ids: int, vocab_size: int) -> None:
    """Raises where a source has ids that the model has no row for: their embeddings would be NaN."""
    if num_ids > vocab_size:
        raise ValueError(
            f"model.vocab_size is {vocab_size:,}, and the tokenizer of source {source!r} has {num_ids:,} ids; give the "
            f"model at least as many, or tokenize with another tokenizer."
        )


def tokenizers_of(caches: Caches) -> Tokenizers:
    """Of the caches of a phase or of an evaluation; none of what is no longer part of a graph, or of another kind."""
    configs = {name: cache.config_of(TokenizeConfig) for name, cache in caches.items()}
    return {f"caches[{name!r}]": config.tokenizer for name, config in configs.items() if config is not None}


def tokenizers_of_phase(field: str, phase: Input[Any] | None, config: "TrainPhaseConfig | None") -> Tokenizers:
    """Of the phase or import that a config names in `field`; `config` is the phase's own if it is planned."""
    imported = imported_by(phase)
    if phase is not None and imported is not None:
        return {f"{field} {phase.name!r}": imported.tokenizer}
    if phase is None or config is None:
        return {}
    return {f"{field} {phase.name!r}": found for found in list(tokenizers_of(config.caches).values())[:1]}


def refuse_several_tokenizers(tokenizers: Tokenizers) -> None:
    """Raises ValueError where not all are the output of one step; two that write equal files count as two."""
    known = {what: tokenizer for what, tokenizer in tokenizers.items() if tokenizer.has_step}
    for what, tokenizer in known.items():
        first, its = next(iter(known.items()))
        if tokenizer.digest != its.digest:
            raise ValueError(
                f"{first} is under the tokenizer {its.name!r} ({its.digest[:12]}…), and {what} under "
                f"{tokenizer.name!r} ({tokenizer.digest[:12]}…), where the same ids mean other text; give both the "
                "same step."
            )


def refuse_unkept_average(
    field: str, phase: Input[Any], config: "TrainPhaseConfig | None", name: str | None, *, instead: str
) -> None:
    """Raises RefusedConfigError where the phase keeps no average called `name`, with what `field` may say instead.

    An import keeps none; of another kind of phase its result tells.
    """
    if name is None or (config is None and imported_by(phase) is None):
        return
    try:
        average_named(() if config is None else config.averages, name, owner=f"{field}: {phase.name}")
    except ValueError as error:
        raise RefusedConfigError(str(error), {field: instead}) from None


def _refuse_what_float32_cannot_hold(config: TrainPhaseConfig) -> None:
    """Of what an update is told (`phase_config.hyperparameters`): it takes float32, where 1e300 is infinite."""
    numbers = {field: getattr(config, field) for field in ("weight_decay", "eps", "max_norm", "z_loss")}
    rate = {field.name: getattr(config.learning_rate, field.name) for field in dataclasses.fields(config.learning_rate)}
    numbers |= {f"learning_rate.{field}": value for field, value in rate.items() if isinstance(value, float)}
    if config.skip is not None:
        numbers["skip.sigma"] = config.skip.sigma
    for field, value in numbers.items():
        if abs(value) > LARGEST_FLOAT32:
            raise ValueError(f"{field} is {value}, and an update takes it as float32, where it is infinite; lower it.")
    # A rate of zero is what a schedule may end with, and what says that nothing is to be learnt.
    rates = [name for name, value in numbers.items() if name.startswith("learning_rate.") and value]
    for field in ("eps", "max_norm", *rates):
        if numbers[field] < SMALLEST_FLOAT32:
            raise ValueError(
                f"{field} is {numbers[field]}, and an update takes it as float32, where it may be 0; raise it."
            )
    for field, beta in (("b1", config.b1), ("b2", config.b2)):
        if beta >= 1 - 2**-25:  # half way from the largest float32 below 1
            raise ValueError(f"{field} is {beta}, and an update takes it as float32, where it is 1; lower it.")


def _refuse_giant_batches(config: TrainPhaseConfig) -> None:
    """One that no machine holds is told by a plan, and not by the memory of the machine that first draws it."""
    num_tokens = config.global_batch_size * config.sequence_length
    if num_tokens > LARGEST_BATCH_TOKENS:
        raise ValueError(
            f"global_batch_size is {config.global_batch_size:,}, with sequences of {config.sequence_length:,} tokens: "
            f"an update would take {num_tokens:,} tokens, and at most {LARGEST_BATCH_TOKENS:,} are taken; lower it."
        )


def _refuse_larger_vocabularies(config: TrainPhaseConfig) -> None:
    """Of tokenizers that are to be trained; of others it shows when the caches are there."""
    for name, cache in config.caches.items():
        its = cache.config_of(TokenizeConfig)
        trained = None if its is None else its.tokenizer.config_of(TrainTokenizerConfig)
        refuse_larger_vocabulary(name, 0 if trained is None else trained.vocab_size, config.model.vocab_size)


def _refuse_to_replay_what_is_left_out(config: TrainPhaseConfig) -> None:
    """A log says how many sequences each update drew, and nothing of those between them."""
    if config.replay is None:
        return
    its = config.replay.config_of(type(config))
    where = "" if config.skip_batches else f" of {config.replay.name!r}, which this phase replays,"
    num_batches = config.skip_batches or (0 if its is None else its.skip_batches)
    if num_batches:
        raise ValueError(
            f"skip_batches{where} is {num_batches:,}, and a log of draws says nothing of what was left out, so that a "
            "replay would read other text; replay a phase that left nothing out, and leave nothing out beside it."
        )


def _refuse_jumps(before: TrainPhaseConfig, config: TrainPhaseConfig) -> None:
    """A phase that starts from a phase says which jumps are meant."""
    if config.start is not None and config.start.milestone is not None:
        before = before.model_copy(update={"until_step": config.start.milestone})
    try:
        refuse_unacknowledged_changes("", before, config)
    except UnacknowledgedError as error:
        raise RefusedConfigError(str(error), {"acknowledge": json.dumps(error.fields)}) from None


def _refuse_more_than_weights(imported: HfImportConfig, config: TrainPhaseConfig) -> None:
    """A phase that starts from an import takes its weights, as the model that they were trained as.

    Raises:
        RefusedConfigError: with every field that says otherwise.
    """
    assert config.start is not None
    start = f"start {config.start.name!r}"
    problems: list[str] = []
    cure: dict[str, str] = {}
    if config.restore != "weights":
        problems.append(
            f"restore is {config.restore!r}, and {start} is an import: a folder of weights has no optimiser state and "
            "no data position to go on with."
        )
        cure["restore"] = "weights"
    ours, theirs = dataclasses.asdict(config.model), dataclasses.asdict(imported.model)
    others = [field for field in theirs if ours[field] != theirs[field]]
    problems += [f"model.{field} is {ours[field]!r}, and that of {start} is {theirs[field]!r}" for field in others]
    if others:
        problems[-1] += "; a phase continues its parameters, so the model cannot change."
    if len(others) == 1:
        cure[f"model.{others[0]}"] = json.dumps(theirs[others[0]])
    elif others:  # as one, since some of them alone may be no model
        cure["model"] = json.dumps(theirs)
    if config.rope != imported.rope and "rope" not in config.acknowledge:
        problems.append(
            f"rope is {config.rope}, and the weights of {start} were trained under {imported.rope}; take theirs, or, "
            f"if it is meant, write acknowledge={(*config.acknowledge, 'rope')!r} in the phase."
        )
        cure["rope"] = json.dumps(dataclasses.asdict(imported.rope))
    if problems:
        raise RefusedConfigError("\n".join(problems), cure)
