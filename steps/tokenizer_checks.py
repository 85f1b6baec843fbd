"""Tokenizer checks: what is trained, measured and exported under one tokenizer, known while it is planned.

An id is a row of the embeddings and nothing else: under another tokenizer weights give figures, all of them wrong.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from marin_dag.inputs import Input
from steps.tokenizer import TokenizerResult

if TYPE_CHECKING:
    from steps.tokenize import TokenizeResult
    from steps.train_phase import TrainPhaseResult

Caches = Mapping[str, "Input[TokenizeResult]"]
Tokenizers = dict[str, Input[TokenizerResult]]
"""What takes a tokenizer, in words for an error -> the tokenizer."""


def tokenizers_of(caches: Caches) -> Tokenizers:
    """Of the caches of a phase or of an evaluation; none of what is no longer part of a graph, or of another kind."""
    from steps.tokenize import TokenizeConfig

    configs = {name: cache.config_of(TokenizeConfig) for name, cache in caches.items()}
    return {f"caches[{name!r}]": config.tokenizer for name, config in configs.items() if config is not None}


def tokenizers_of_phase(field: str, phase: "Input[TrainPhaseResult] | None") -> Tokenizers:
    """Of the phase that a config names in `field`."""
    from steps.train_phase import TrainPhaseConfig

    config = None if phase is None else phase.config_of(TrainPhaseConfig)
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
