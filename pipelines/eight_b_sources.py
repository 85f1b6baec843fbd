"""Sources of the 8B model: the data sets of the public run, by the names of its recipe, used as published."""

from typing import Any

from pipelines.source import Source, by_name
from runtime.text.extraction.formats import ChatTable, Format, JsonLines, ParquetTable
from steps.fetch import UNPINNED, HuggingFaceDataset, UrlIndex
from steps.input_tokenizer import HubTokenizer

# The recipe's tokenizer (meta-llama/Meta-Llama-3.1-8B is gated). The revision is believed to be the repository's first
# commit, and was not checked.
LLAMA3_TOKENIZER = HubTokenizer(
    repo="meta-llama/Meta-Llama-3.1-8B", revision="d04e592bb4f6aa9cfee91e2e20afa771667e1d4b"
)

COMMON_CRAWL = "https://data.commoncrawl.org/"
DOLMA_FILES = "https://olmo-data.org/"
DOLMA_LIST = "https://huggingface.co/datasets/allenai/dolma/resolve/7f48140/urls/v1_7.txt"
NEMOTRON_LIST = f"{COMMON_CRAWL}contrib/Nemotron/Nemotron-CC/data-jsonl.paths.gz"
BYTES_PER_TOKEN = 4.0
"""A rough figure for English under the Llama-3 tokenizer; only the plan's estimates use it."""

# Revisions are those of the public recipe (marin-community/marin: experiments/pretraining_datasets.py,
# experiments/dolmino/, experiments/midtraining_datasets.py and its list of instruction data). It pins none for its own
# markdown sets, which it read from its bucket before they were published: these are UNPINNED, so that plans accept them
# and runs refuse them.
DOLMINO = ("allenai/dolmino-mix-1124", "bb54cab")
FINEMATH = ("HuggingFaceTB/finemath", "8f233cf")
ODC_BY = "ODC-By-1.0"

# Name, role, repository and revision, pattern, tokens by the recipe (None if unknown), licence.
HUB: tuple[tuple[Any, ...], ...] = (
    ("dclm_baseline", "web", ("mlfoundations/dclm-baseline-1.0", "a3b142c"), "*.jsonl.zst", 3.8e12, "CC-BY-4.0"),
    ("starcoderdata", "code", ("bigcode/starcoderdata", "9fc30b5"), "*.parquet", 250e9, "per file; gated"),
    ("proofpile_2", "math", ("EleutherAI/proof-pile-2", "901a927"), "*/train/*.jsonl.zst", 55e9, "per part"),
    ("dolmino_dclm", "web", DOLMINO, "data/dclm/*.json.zst", 700e9, ODC_BY),
    ("flan", "textbook", DOLMINO, "data/flan/*.json.gz", 17e9, ODC_BY),
    ("pes2o", "papers", DOLMINO, "data/pes2o/*.json.gz", 58.1e9, ODC_BY),
    ("stackexchange", "questions", DOLMINO, "data/stackexchange/*.json.gz", 17.1e9, ODC_BY),
    ("wiki", "encyclopedia", DOLMINO, "data/wiki/*.json.gz", 3.65e9, ODC_BY),
    # The pattern includes tinyGSM-MIND, as the recipe's does, although its comments exclude it.
    ("all_math", "math", DOLMINO, "data/math/*", 10.7e9, ODC_BY),
    ("finemath_3_plus", "math", FINEMATH, "finemath-3plus/*.parquet", 34e9, ODC_BY),
    ("arxiv_markdownified", "papers", ("marin-community/ar5iv-no-problem-markdown", UNPINNED), "*.jsonl.gz", None,
     ODC_BY),
    ("stackexchange_custom", "questions", ("marin-community/stackexchange-markdown", UNPINNED), "*.jsonl.gz", None,
     ODC_BY),
    ("wikipedia_markdown", "encyclopedia", ("marin-community/wikipedia-markdown", UNPINNED), "*.jsonl.gz", None,
     ODC_BY),
    ("medu_science_qa", "textbook", ("marin-community/medu-science-qa", UNPINNED), "*.jsonl.gz", None, ODC_BY),
    ("tulu_sft", "questions", ("allenai/tulu-3-sft-mixture", "55e9fd6"), "*.parquet", None, ODC_BY),
)  # fmt: skip
OTHER_FORMATS: dict[str, Format] = {"starcoderdata": ParquetTable(text_field="content"), "tulu_sft": ChatTable()}

# Name, pattern, GiB to transfer (compressed). The publisher lists the files; the list is not pinned.
NEMOTRON = (
    ("nemotron_hq_actual", "*/quality=high/kind=actual/*.jsonl.gz", 935.43),
    ("nemotron_hq_synth", "*/quality=high/kind=synthetic/*.jsonl.gz", 2_785.28),
    ("nemotron_medium_high", "*/quality=medium-high/*.jsonl.gz", 844.51),
    ("nemotron_medium", "*/quality=medium/*.jsonl.gz", 3_461.12),
    ("nemotron_medium_low", "*/quality=medium-low/*.jsonl.gz", 1_576.96),
    ("nemotron_low_actual", "*/quality=low/kind=actual/*.jsonl.gz", 718.06),
    ("nemotron_low_synth", "*/quality=low/kind=synthetic/*.jsonl.gz", 642.78),
)

# Name, role, pattern, tokens. The hub's repository of Dolma 1.7 holds only the list of files, which its
# revision pins.
DOLMA = (
    ("algebraic_stack", "math", "*algebraic-stack-*", 11.5e9),
    ("arxiv", "papers", "*/arxiv-*", 27.9e9),
    ("megawika", "encyclopedia", "*megawika-*", 4.44e9),
    ("open_web_math", "math", "*open-web-math-*", 5.06e9),
)


def eight_b_sources() -> dict[str, Source]:
    """Return the data sets of the public run by the names of its recipe (`pipelines.mixtures`)."""
    return by_name([*map(_hub, HUB), *map(_nemotron, NEMOTRON), *map(_dolma, DOLMA)])


def _hub(row: tuple[Any, ...]) -> Source:
    name, role, (repo, revision), pattern, tokens, licence = row
    size = BYTES_PER_TOKEN * (tokens or 0)
    fetch = HuggingFaceDataset(repo=repo, revision=revision, files=(pattern,), expected_bytes=size)
    format_ = OTHER_FORMATS.get(name, ParquetTable() if pattern.endswith(".parquet") else JsonLines())
    return _published(name, role, fetch, format_, f"{repo}, {pattern}", licence, tokens)


def _nemotron(row: tuple[str, str, float]) -> Source:
    name, pattern, gigabytes = row
    size = gigabytes * (1 << 30)
    fetch = UrlIndex(index=NEMOTRON_LIST, index_sha256=None, base=COMMON_CRAWL, files=(pattern,), expected_bytes=size)
    format_ = JsonLines(id_field="warc_record_id")
    return _published(name, "web", fetch, format_, f"Nemotron-CC, {pattern}", "Common Crawl's terms of use")


def _dolma(row: tuple[str, str, str, float]) -> Source:
    name, role, pattern, tokens = row
    size = BYTES_PER_TOKEN * tokens
    fetch = UrlIndex(index=DOLMA_LIST, index_sha256=None, base=DOLMA_FILES, files=(pattern,), expected_bytes=size)
    return _published(name, role, fetch, JsonLines(), f"Dolma 1.7, {pattern}", ODC_BY, tokens)


def _published(
    name: str,
    role: str,
    fetch: HuggingFaceDataset | UrlIndex,
    format_: Format,
    description: str,
    licence: str,
    num_tokens: float | None = None,
) -> Source:
    """Return a source without cleaning: the recipe trained on it as published, so contamination is only reported."""
    names = {"name": name, "role": role, "description": description, "licence": licence}
    size = {"size_in_bytes": fetch.expected_bytes, "num_tokens": num_tokens}
    return Source(**names, **size, fetch=fetch, formats=(format_,), decontamination="report")
