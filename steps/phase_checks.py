"""Phase checks: errors in the configs of phases, exports and evaluations that a plan can find.

A token id is a row of the embeddings and nothing else: under another tokenizer every figure of the weights is wrong.
"""

import dataclasses
import json
from collections.abc import Mapping

from marin_dag.errors import RefusedConfigError
from marin_dag.graph.inputs import Input
from marin_dag.graph.output_ref import OutputRef
from marin_dag.values.reference import Reference
from runtime.data.consumption import no_cache
from runtime.optim.ema import HOT, average_named
from runtime.optim.optimizer import chosen
from runtime.training.restore import RESTORES_OPTIMIZER, RESTORES_POSITION
from steps.gold_answers import GoldAnswersConfig
from steps.hf_import import HfImportConfig
from steps.merge_config import MergeCheckpointsConfig
from steps.phase_config import COMPARED_FIELDS, TrainPhaseConfig
from steps.phase_timeline import check_acknowledged
from steps.tokenize import TokenizeConfig, TokenizeResult
from steps.tokenizer import TokenizerResult
from steps.train_tokenizer import TrainTokenizerConfig

LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127
SMALLEST_FLOAT32 = 2.0**-126
"""The smallest normal number; a device may round smaller ones to 0."""
LARGEST_BATCH_TOKENS = 2**30
"""More than sixty times the batch of Llama 3 405B (16 million); 8 GiB of ids and segment ids, over all hosts."""

Caches = Mapping[str, Input[TokenizeResult]]
Tokenizers = dict[str, Input[TokenizerResult]]
"""Owner, as an error names it -> its tokenizer."""


def check_config(config: TrainPhaseConfig) -> None:
    """Check all that is known before any cache exists; whether a source is large enough shows when it does.

    Raises:
        ValueError: the config cannot work, or has an abrupt change without acknowledgement.
    """
    missing = [str(no_cache(source)) for source in config.mixture.sources if source not in config.caches]
    if missing:
        raise ValueError("\n".join(missing))
    _check_float32_range(config)
    num_tokens = config.global_batch_size * config.sequence_length
    if num_tokens > LARGEST_BATCH_TOKENS:
        raise ValueError(
            f"global_batch_size is {config.global_batch_size:,}, with sequences of {config.sequence_length:,} tokens: "
            f"a training step would have {num_tokens:,} tokens, and {LARGEST_BATCH_TOKENS:,} is the most; lower it."
        )
    if config.sequence_length > config.model.max_position_embeddings:
        raise ValueError(
            f"sequence_length is {config.sequence_length:,}, above model.max_position_embeddings "
            f"({config.model.max_position_embeddings:,}); raise that, or use shorter sequences."
        )
    if config.validate_every_steps and config.validation_tokens_per_source < config.sequence_length:
        raise RefusedConfigError(
            f"validation_tokens_per_source is {config.validation_tokens_per_source:,}, less than one window of "
            f"sequence_length ({config.sequence_length:,} tokens); use at least that.",
            {"validation_tokens_per_source": str(config.sequence_length)},
        )
    before = None if config.start is None else config.start.config_of(type(config))
    tokenizers = tokenizers_of_phase("start", config.start) | tokenizers_of(config.caches)
    check_one_tokenizer(tokenizers | _check_validation_tasks(config))
    for name, cache in config.caches.items():
        its = cache.config_of(TokenizeConfig)
        trained = None if its is None else its.tokenizer.config_of(TrainTokenizerConfig)
        if trained is not None:  # the vocabularies of others are checked once their caches exist
            check_vocabulary(name, trained.vocab_size, config.model.vocab_size)
    old, new = (before or config).sequence_length, config.sequence_length
    if old != new and config.restore in RESTORES_POSITION:
        acknowledged = dict.fromkeys((*config.acknowledge, "sequence_length", "restore"))
        raise RefusedConfigError(
            f"sequence_length changes from {old!r} to {new!r}, and the data position counts rows of the old length; "
            "restart the data, or keep sequence_length.",
            {"restore": "weights_and_optimizer", "acknowledge": json.dumps(tuple(acknowledged))},
        )
    if before is not None:
        _check_optimizer_state(before, config)
        started_at = {"until_step": config.begin_step or before.until_step}
        check_acknowledged(before.model_copy(update=started_at), config)
    described = described_by(config.start)
    if described is not None and is_weights_alone(config.start):
        _check_weights_alone(described, config)


def _check_validation_tasks(config: TrainPhaseConfig) -> Tokenizers:
    """Return the tokenizers of the tasks; raise ValueError where a task is measured twice, or none ever is."""
    if config.validation_tasks and not config.validate_every_steps:
        raise ValueError(
            "validation_tasks is set, and validate_every_steps is 0, which measures nothing; set validate_every_steps "
            "to a number of training steps."
        )
    known = {each.name: each.config_of(GoldAnswersConfig) for each in config.validation_tasks}
    configs = {name: found for name, found in known.items() if found is not None}
    labels = [task.label for found in configs.values() for task in found.tasks]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise ValueError(f"validation_tasks: {', '.join(twice)} listed twice; remove one.")
    return {f"validation_tasks {name!r}": found.tokenizer for name, found in configs.items()}


def described_by(weights: Reference | None) -> TrainPhaseConfig | HfImportConfig | None:
    """Return the config of the phase or import with these weights, or of the first checkpoint of a merge.

    The result is None for a step outside of the graph, or of another kind.
    """
    if weights is None:
        return None
    if (merge := weights.config_of(MergeCheckpointsConfig)) is not None:
        return next((found for each in merge.checkpoints if (found := described_by(each)) is not None), None)
    return weights.config_of(TrainPhaseConfig) or weights.config_of(HfImportConfig)


def is_weights_alone(start: Reference | None) -> bool:
    """Return whether this is an import or a merge, without averages, optimizer state or data position."""
    kinds = (HfImportConfig, MergeCheckpointsConfig)
    return start is not None and any(start.config_of(kind) is not None for kind in kinds)


def check_vocabulary(source: str, num_ids: int, vocab_size: int) -> None:
    """Raise ValueError where a source has ids without a row in the model: their embeddings would be NaN."""
    if num_ids > vocab_size:
        raise ValueError(
            f"model.vocab_size is {vocab_size:,}, and the tokenizer of source {source!r} has {num_ids:,} ids; raise "
            "vocab_size to at least that, or tokenize with another tokenizer."
        )


def tokenizers_of(caches: Caches) -> Tokenizers:
    """Return the tokenizers of caches whose `tokenize` step is in the graph."""
    configs = {name: cache.config_of(TokenizeConfig) for name, cache in caches.items()}
    return {f"caches[{name!r}]": config.tokenizer for name, config in configs.items() if config is not None}


def tokenizers_of_phase(field: str, phase: Reference | None) -> Tokenizers:
    """Return the tokenizer of the phase, import or merge in `field`, if it is in the graph."""
    described = described_by(phase)
    if phase is None or described is None:
        return {}
    if isinstance(described, HfImportConfig):
        own = [described.tokenizer]
    else:
        own = [*tokenizers_of(described.caches).values()]
    return {f"{field} {phase.name!r}": own[0]} if own else {}


def check_one_tokenizer(tokenizers: Tokenizers) -> None:
    """Raise ValueError where tokenizers come from different steps, even if their files are equal."""
    known = {owner: tokenizer for owner, tokenizer in tokenizers.items() if isinstance(tokenizer, OutputRef)}
    for owner, tokenizer in known.items():
        first, its = next(iter(known.items()))
        if tokenizer.digest != its.digest:
            raise ValueError(
                f"{first} has the tokenizer {its.name!r} ({its.digest[:12]}…), and {owner} has {tokenizer.name!r} "
                f"({tokenizer.digest[:12]}…), where the same ids are other text; use the same tokenizer step for both."
            )


def check_average_exists(field: str, phase: Reference, name: str | None, *, instead: str = HOT) -> None:
    """Raise RefusedConfigError, with `instead` for `field`, where the phase has no average called `name`.

    An import or merge has no averages. Neither a phase outside of the graph nor the names None and "hot" are checked.
    """
    config = phase.config_of(TrainPhaseConfig)
    if name in (None, HOT) or (config is None and not is_weights_alone(phase)):
        return
    try:
        average_named(() if config is None else config.averages, name, owner=f"{field}: {phase.name}")
    except ValueError as error:
        raise RefusedConfigError(str(error), {field: instead}) from None


def _check_float32_range(config: TrainPhaseConfig) -> None:
    """Check what a training step gets as float32 (`phase_config.hyperparameters`), where 1e300 is infinite."""
    numbers = {name: value for name in COMPARED_FIELDS if isinstance(value := getattr(config, name), float)}
    rate = {field.name: getattr(config.learning_rate, field.name) for field in dataclasses.fields(config.learning_rate)}
    numbers |= {f"learning_rate.{field}": value for field, value in rate.items() if isinstance(value, float)}
    if config.skip is not None:
        numbers["skip.sigma"] = config.skip.sigma
    for field, value in numbers.items():
        if abs(value) > LARGEST_FLOAT32:
            raise ValueError(f"{field} is {value}, which is infinite as float32; lower it.")
        if value and abs(value) < SMALLEST_FLOAT32:
            raise ValueError(f"{field} is {value}, which may be 0 as float32; raise it.")
    for field in ("b1", "b2"):
        if numbers[field] >= 1 - 2**-25:  # half way from the largest float32 below 1
            raise ValueError(f"{field} is {numbers[field]}, which is 1 as float32; lower it.")


def _check_optimizer_state(before: TrainPhaseConfig, config: TrainPhaseConfig) -> None:
    """Check that a phase restores no state of another kind of optimizer."""
    old, new = chosen(before.optimizer).kind, chosen(config.optimizer).kind
    if old != new and config.restore in RESTORES_OPTIMIZER:
        restore = "weights" if config.restore == "weights_and_optimizer" else "everything_but_optimizer"
        raise RefusedConfigError(
            f"optimizer changes from {old} to {new}, and restore={config.restore!r} takes the state of {old}, which "
            f"{new} cannot use. Restore without the optimizer, or keep the optimizer.",
            {
                "restore": restore,
                "acknowledge": json.dumps(tuple(dict.fromkeys((*config.acknowledge, "optimizer", "restore")))),
            },
        )


def _check_weights_alone(described: TrainPhaseConfig | HfImportConfig, config: TrainPhaseConfig) -> None:
    """Check that a phase takes only the weights of an import or merge, with the model they were trained as.

    Raises:
        RefusedConfigError: with every field that differs.
    """
    assert config.start is not None
    start, problems, fix = f"start {config.start.name!r}", [], {}
    if config.restore != "weights":
        kind = "a merge" if config.start.config_of(HfImportConfig) is None else "an import"
        problems.append(
            f"restore is {config.restore!r}, and {start} is {kind}, which has weights but no optimizer state and no "
            'data position; use restore="weights".'
        )
        fix["restore"] = "weights"
    ours = dataclasses.asdict(config.model)
    theirs = dataclasses.asdict(described.model) | {"initialization": ours["initialization"]}  # weights are not drawn
    if others := [field for field in theirs if ours[field] != theirs[field]]:
        differ = ", ".join(f"model.{field} is {ours[field]!r}, and {theirs[field]!r} in {start}" for field in others)
        problems.append(f"{differ}; a phase continues its parameters, so the model cannot change.")
        if len(others) == 1:
            fix[f"model.{others[0]}"] = json.dumps(theirs[others[0]])
        else:  # some of them alone may be no model
            fix["model"] = json.dumps(theirs)
    if config.rope != described.rope and "rope" not in config.acknowledge:
        problems.append(
            f"rope is {config.rope}, and the weights of {start} were trained with {described.rope}; use that, or, if "
            f"the change is intended, set acknowledge={(*config.acknowledge, 'rope')!r}."
        )
        fix["rope"] = json.dumps(dataclasses.asdict(described.rope))
    if problems:
        raise RefusedConfigError("\n".join(problems), fix)
