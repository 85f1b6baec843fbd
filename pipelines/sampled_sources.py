"""Sources of the sizes between laptop and 8B: a share by hash of eight public data sets, each a part of the recipe.

Revisions are those that public recipes record (`pipelines.eight_b_sources`; FineWeb-Edu: marin-community/marin,
experiments/pretraining_datasets.py). A share is a power of two, so that runs of similar lengths share downloads.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from pipelines import mixtures
from pipelines.eight_b_sources import eight_b_sources
from pipelines.mixtures import Weights
from pipelines.source import Source, by_name
from runtime.text.extraction.formats import ParquetTable
from steps.fetch import HuggingFaceDataset
from steps.input_tokenizer import HubTokenizer

NEOX_TOKENIZER = HubTokenizer(repo="EleutherAI/gpt-neox-20b", revision="c292233c833e336628618a88a648727eb3dff0a7")
"""The tokenizer of the sizes between, which is not gated."""
NEOX_EOS_TOKEN = "<|endoftext|>"
FINEWEB_EDU_TOKENS, FINEWEB_EDU_BYTES = 100e9, 450e9
"""Size of its sample of 100 billion tokens, as the publisher counts them; the bytes of text are an estimate."""
LEAST_SHARE = 2.0**-14
MARGIN = 1.25
"""Publishers count by other tokenizers, and a part of the text is held out."""


class Sampled(NamedTuple):
    """A data set and the recipe's components that it stands for."""

    name: str
    components: tuple[str, ...]
    least_folders: int = 1


SAMPLED = (
    Sampled("dclm_baseline", ("dclm_baseline", "dolmino_dclm")),
    Sampled("fineweb_edu", tuple(mixtures.NEMOTRON)),
    # Each programming language is a folder.
    Sampled("starcoderdata", ("starcoderdata",), least_folders=8),
    Sampled("finemath_3_plus", ("finemath_3_plus", "proofpile_2", "algebraic_stack", "open_web_math", "all_math")),
    Sampled("pes2o", ("pes2o", "arxiv", "arxiv_markdownified")),
    Sampled("wiki", ("wiki", "megawika", "wikipedia_markdown")),
    Sampled("stackexchange", ("stackexchange", "stackexchange_custom", "tulu_sft")),
    Sampled("flan", ("flan", "medu_science_qa")),
)
"""Data sets; the names are those of the 8B's sources, and FineWeb-Edu."""
MIXTURES = {
    "kestrel": mixtures.DCLM,
    "ocelot": mixtures.DCLM,
    "jellyfish": mixtures.COOLDOWN_V1,
    "phoenix_warm": mixtures.PHOENIX_WARM,
    "phoenix": mixtures.PHOENIX,
    "starling": mixtures.STARLING,
    "deeper_starling": mixtures.STARLING,
}
"""Mixtures of the main line by part (`pipelines.length.PARTS`)."""
_SOURCE_OF = {component: sampled.name for sampled in SAMPLED for component in sampled.components}


def sampled_weights(weights: Weights) -> Weights:
    """Return the recipe's weights by the data sets that stand for its components."""
    total: Weights = {}
    for component, weight in weights.items():
        total[_SOURCE_OF[component]] = total.get(_SOURCE_OF[component], 0.0) + weight
    return total


def sampled_sources(tokens: Mapping[str, int]) -> dict[str, Source]:
    """Return the data sets, each with the share that a main line of these `tokens` by part reads at most once.

    A data set with fewer tokens comes whole, and is read again.
    """
    published, wanted = _published(), _tokens_by_source(tokens)
    found = []
    for sampled in SAMPLED:
        source = published[sampled.name]
        assert source.num_tokens is not None
        share = share_for(wanted[sampled.name], source.num_tokens)
        size = share * source.size_in_bytes
        changes = {"share": share, "size_in_bytes": size, "num_tokens": share * source.num_tokens}
        found.append(source.model_copy(update=changes | {"least_folders": sampled.least_folders}))
    return by_name(found)


def _published() -> dict[str, Source]:
    return eight_b_sources() | {"fineweb_edu": _fineweb_edu()}


def _tokens_by_source(tokens: Mapping[str, int]) -> dict[str, float]:
    wanted: dict[str, float] = {}
    for part, weights in MIXTURES.items():
        for name, drawn in mixtures.scaled(sampled_weights(weights), tokens[part]).items():
            wanted[name] = wanted.get(name, 0.0) + drawn
    return wanted


def share_for(wanted_tokens: float, num_tokens: float) -> float:
    """Return the smallest power of two that holds the wanted tokens and `MARGIN`, at most 1."""
    return min(1.0, max(LEAST_SHARE, 2.0 ** math.ceil(math.log2(MARGIN * wanted_tokens / num_tokens))))


def _fineweb_edu() -> Source:
    fetch = HuggingFaceDataset(
        repo="HuggingFaceFW/fineweb-edu",
        revision="3c452cb",
        files=("sample/100BT/*.parquet",),
        expected_bytes=FINEWEB_EDU_BYTES,
    )
    return Source(
        name="fineweb_edu",
        role="web",
        description="HuggingFaceFW/fineweb-edu, its sample of 100 billion tokens",
        licence="ODC-By-1.0",
        fetch=fetch,
        formats=(ParquetTable(),),
        size_in_bytes=FINEWEB_EDU_BYTES,
        num_tokens=FINEWEB_EDU_TOKENS,
        decontamination="report",
    )
