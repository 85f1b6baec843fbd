"""Corpus: the clean and tokenized sources of one run, and the recipe's mixtures by their names."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from marin_dag.graph.step import Step
from pipelines import recipe
from pipelines.eight_b_sources import LLAMA3_TOKENIZER, eight_b_sources
from pipelines.length import tokens_by_part
from pipelines.mixtures import Weights
from pipelines.sampled_sources import NEOX_EOS_TOKEN, NEOX_TOKENIZER, sampled_sources, sampled_weights
from pipelines.scales import Scale
from pipelines.source import Source, clean_documents
from pipelines.sources import corpus_sources, evaluation_items_step, laptop_sources
from runtime.data.mixture import MixtureSchedule, MixtureSegment
from steps.input_tokenizer import InputTokenizerConfig, input_tokenizer


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The data side of the graph, for phases and evaluations."""

    tokenizer: Step
    evaluation_items: Step
    documents: Mapping[str, Step]
    """Clean documents by key of the source."""
    caches: Mapping[str, Step]
    """Token caches by key of the source."""
    weights: Callable[[Weights], Weights]
    """Maps the recipe's weights to the keys of these sources."""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Labels in reports by key of the source, where they differ: those of a user's corpus."""

    def mixture(self, weights: Weights, *later: tuple[int, Weights]) -> dict[str, Any]:
        """Return the fields of a phase that say what it reads; `later` are changes, each from its absolute step.

        The caches are those of the mixture only, so that no other source can make the phase stale.
        """
        segments = [MixtureSegment(0, self.weights(weights))]
        segments += [MixtureSegment(start_step, self.weights(changed)) for start_step, changed in later]
        schedule = MixtureSchedule(tuple(segments))
        return {"mixture": schedule, "caches": {name: self.caches[name] for name in schedule.sources}}


def laptop_corpus(scale: Scale) -> Corpus:
    """Return real text that any Python environment holds or a package index serves, by role."""
    return _corpus(sources_at(scale), scale)


def corpus_of(folder: str, scale: Scale) -> Corpus:
    """Return a user's JSON lines, each file a source whose name gives its role."""
    return _corpus(corpus_sources(folder), scale)


def eight_b_corpus(scale: Scale) -> Corpus:
    """Return the recipe's data sets by its names, under the Llama-3 tokenizer."""
    tokenizer = input_tokenizer("tokenizer", InputTokenizerConfig(tokenizer=LLAMA3_TOKENIZER))
    return dataclasses.replace(_corpus(sources_at(scale), scale, tokenizer), weights=dict)


def sampled_corpus(scale: Scale) -> Corpus:
    """Return a share of public data sets, as large as the scale's length needs, under GPT-NeoX's tokenizer."""
    config = InputTokenizerConfig(tokenizer=NEOX_TOKENIZER, eos_token=NEOX_EOS_TOKEN, bos_token=None)
    tokenizer = input_tokenizer("tokenizer", config)
    return dataclasses.replace(_corpus(sources_at(scale), scale, tokenizer), weights=sampled_weights)


CORPORA = {"packages": laptop_corpus, "published": eight_b_corpus, "shares": sampled_corpus}
"""Corpora by `Scale.corpus`."""


def sources_at(scale: Scale) -> dict[str, Source]:
    """Return the sources of a scale's own corpus."""
    match scale.corpus:
        case "packages":
            return laptop_sources()
        case "published":
            return eight_b_sources()
        case "shares":
            return sampled_sources(tokens_by_part(scale))


def _corpus(sources: Mapping[str, Source], scale: Scale, tokenizer: Step | None = None) -> Corpus:
    """Return a corpus under the tokenizer, or one that is trained on it."""
    items = evaluation_items_step()
    documents = clean_documents(sources.values(), items)
    labels = {source.identity: source.name for source in sources.values() if source.identity != source.name}
    sizes = {source.identity: (source.role, source.size_in_bytes) for source in sources.values()}
    if tokenizer is None:
        size = {"vocab_size": scale.model.vocab_size, "bytes_per_source": scale.tokenizer_bytes_per_source}
        tokenizer = recipe.tokenizer(documents, **size)
    caches = recipe.token_caches(documents, tokenizer, validation_share=scale.validation_share, labels=labels)
    return Corpus(tokenizer, items, documents, caches, lambda weights: weights_by_source(weights, sizes), labels)


def weights_by_source(weights: Mapping[str, float], sources: Mapping[str, tuple[str, float]]) -> Weights:
    """Return the recipe's `weights` by the given sources, each of which is (role, size in bytes).

    Sources of one role share its weight by size. The weight of a role without a source goes to the web sources, or
    without any to all sources by size.
    """
    roles = {source.name: source.role for source in eight_b_sources().values()}
    total: Weights = {}
    for component, weight in weights.items():
        players = next(found for role in (roles[component], "web", None) if (found := _playing(role, sources)))
        size_of_all = sum(players.values())
        for source, size in sorted(players.items()):
            total[source] = total.get(source, 0.0) + weight * size / size_of_all
    return total


def _playing(role: str | None, sources: Mapping[str, tuple[str, float]]) -> dict[str, float]:
    return {name: size for name, (played, size) in sources.items() if role in (played, None)}
