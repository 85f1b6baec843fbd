"""Sources of the 8B: the data sets of the public run, by the names of its recipe."""

from pipelines.source import Source, by_name
from runtime.text.extraction.formats import ChatTable, Format, JsonLines, ParquetTable
from steps.fetch import UNPINNED, Fetch, HuggingFaceDataset, UrlIndex
from steps.input_tokenizer import HubTokenizer

# The recipe's tokenizer (meta-llama/Meta-Llama-3.1-8B is gated). The revision is what the repository's first commit is
# believed to be; it could not be checked where this was written.
LLAMA3_TOKENIZER = HubTokenizer(
    repo="meta-llama/Meta-Llama-3.1-8B", revision="d04e592bb4f6aa9cfee91e2e20afa771667e1d4b"
)

# Revisions are those that the public recipe names (marin-community/marin: experiments/pretraining_datasets.py,
# experiments/dolmino/, experiments/midtraining_datasets.py and its list of instruction data), unless a comment says
# otherwise.
DOLMINO = ("allenai/dolmino-mix-1124", "bb54cab")
PROOF_PILE = ("EleutherAI/proof-pile-2", "901a927")
# The recipe pins no revision of its own markdown sets: it read them from its bucket before they were published. None
# could be looked up where this was written, so these are UNPINNED: a plan names them, and no run begins before they are
# pinned.
COMMON_CRAWL = "https://data.commoncrawl.org/"
DOLMA_FILES = "https://olmo-data.org/"
DOLMA_LIST = "https://huggingface.co/datasets/allenai/dolma/resolve/7f48140/urls/v1_7.txt"
NEMOTRON_LIST = f"{COMMON_CRAWL}contrib/Nemotron/Nemotron-CC/data-jsonl.paths.gz"
GIB, TIB = float(1 << 30), float(1 << 40)
BYTES_PER_TOKEN = 4.0
"""Of English under the Llama-3 tokenizer, roughly; only the plan's estimates use it."""


def eight_b_sources() -> dict[str, Source]:
    """The data sets of the public run by the names of its recipe (`pipelines.mixtures`), used as published.

    Sizes are the recipe's own figures: tokens for the plan's epochs, bytes (Nemotron-CC: compressed) for its transfers.
    """
    return by_name(
        _hub(
            "dclm_baseline",
            "web",
            "mlfoundations/dclm-baseline-1.0",
            "a3b142c",
            "*.jsonl.zst",
            tokens=3.8e12,
            licence="CC-BY-4.0",
        ),
        _hub(
            "starcoderdata",
            "code",
            "bigcode/starcoderdata",
            "9fc30b5",
            "*.parquet",
            tokens=250e9,
            licence="per file; gated",
            formats=(ParquetTable(text_field="content"),),
        ),
        _hub("proofpile_2", "math", *PROOF_PILE, "*/train/*.jsonl.zst", tokens=55e9, licence="per part"),
        _nemotron("nemotron_hq_actual", "*/quality=high/kind=actual/*.jsonl.gz", 935.43 * GIB),
        _nemotron("nemotron_hq_synth", "*/quality=high/kind=synthetic/*.jsonl.gz", 2.72 * TIB),
        _nemotron("nemotron_medium_high", "*/quality=medium-high/*.jsonl.gz", 844.51 * GIB),
        _nemotron("nemotron_medium", "*/quality=medium/*.jsonl.gz", 3.38 * TIB),
        _nemotron("nemotron_medium_low", "*/quality=medium-low/*.jsonl.gz", 1.54 * TIB),
        _nemotron("nemotron_low_actual", "*/quality=low/kind=actual/*.jsonl.gz", 718.06 * GIB),
        _nemotron("nemotron_low_synth", "*/quality=low/kind=synthetic/*.jsonl.gz", 642.78 * GIB),
        _hub("dolmino_dclm", "web", *DOLMINO, "data/dclm/*.json.zst", tokens=700e9),
        _hub("flan", "textbook", *DOLMINO, "data/flan/*.json.gz", tokens=17e9),
        _hub("pes2o", "papers", *DOLMINO, "data/pes2o/*.json.gz", tokens=58.1e9),
        _hub("stackexchange", "questions", *DOLMINO, "data/stackexchange/*.json.gz", tokens=17.1e9),
        _hub("wiki", "encyclopedia", *DOLMINO, "data/wiki/*.json.gz", tokens=3.65e9),
        # With tinyGSM-MIND, as the recipe's own glob has it, although its comments say that it is left out.
        _hub("all_math", "math", *DOLMINO, "data/math/*", tokens=10.7e9),
        _dolma("algebraic_stack", "math", "*algebraic-stack-*", 11.5e9),
        _dolma("arxiv", "papers", "*/arxiv-*", 27.9e9),
        _dolma("megawika", "encyclopedia", "*megawika-*", 4.44e9),
        _dolma("open_web_math", "math", "*open-web-math-*", 5.06e9),
        _hub("finemath_3_plus", "math", "HuggingFaceTB/finemath", "8f233cf", "finemath-3plus/*.parquet", tokens=34e9),
        _hub(
            "arxiv_markdownified",
            "papers",
            "marin-community/ar5iv-no-problem-markdown",
            UNPINNED,
            "*.jsonl.gz",
            tokens=None,
        ),
        _hub(
            "stackexchange_custom",
            "questions",
            "marin-community/stackexchange-markdown",
            UNPINNED,
            "*.jsonl.gz",
            tokens=None,
        ),
        _hub(
            "wikipedia_markdown",
            "encyclopedia",
            "marin-community/wikipedia-markdown",
            UNPINNED,
            "*.jsonl.gz",
            tokens=None,
        ),
        _hub("medu_science_qa", "textbook", "marin-community/medu-science-qa", UNPINNED, "*.jsonl.gz", tokens=None),
        _hub(
            "tulu_sft",
            "questions",
            "allenai/tulu-3-sft-mixture",
            "55e9fd6",
            "*.parquet",
            tokens=None,
            formats=(ChatTable(),),
        ),
    )


def _hub(
    name: str,
    role: str,
    repo: str,
    revision: str,
    pattern: str,
    *,
    tokens: float | None,
    licence: str = "ODC-By-1.0",
    formats: tuple[Format, ...] | None = None,
) -> Source:
    size = BYTES_PER_TOKEN * (tokens or 0)
    fetch = HuggingFaceDataset(repo=repo, revision=revision, files=(pattern,), expected_bytes=size)
    if formats is None:
        formats = (ParquetTable(),) if pattern.endswith(".parquet") else (JsonLines(),)
    return _published(
        name, role, fetch, formats, size, description=f"{repo}, {pattern}", licence=licence, tokens=tokens
    )


def _nemotron(name: str, pattern: str, size: float) -> Source:
    # Not on the hub: the publisher lists the files. The list could not be fetched, and so not be pinned, here.
    fetch = UrlIndex(index=NEMOTRON_LIST, index_sha256=None, base=COMMON_CRAWL, files=(pattern,), expected_bytes=size)
    return _published(
        name,
        "web",
        fetch,
        (JsonLines(id_field="warc_record_id"),),
        size,
        description=f"Nemotron-CC, {pattern}",
        licence="Common Crawl's terms of use",
        tokens=None,
    )


def _dolma(name: str, role: str, pattern: str, tokens: float) -> Source:
    # The hub's repository of Dolma 1.7 holds the list of the files alone; the list is pinned by its revision.
    size = BYTES_PER_TOKEN * tokens
    fetch = UrlIndex(index=DOLMA_LIST, index_sha256=None, base=DOLMA_FILES, files=(pattern,), expected_bytes=size)
    return _published(
        name,
        role,
        fetch,
        (JsonLines(),),
        size,
        description=f"Dolma 1.7, {pattern}",
        licence="ODC-By-1.0",
        tokens=tokens,
    )


def _published(
    name: str,
    role: str,
    fetch: Fetch,
    formats: tuple[Format, ...],
    size: float,
    *,
    description: str,
    licence: str,
    tokens: float | None,
) -> Source:
    """A corpus that its publisher cleaned; the recipe trained on it as it is, so hits are only told."""
    return Source(
        name=name,
        role=role,
        description=description,
        licence=licence,
        fetch=fetch,
        formats=formats,
        rules=(),
        minhash=None,
        size_in_bytes=size,
        decontamination="report",
        num_tokens=tokens,
    )
