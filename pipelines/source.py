"""Source: one corpus, what it stands for, and its steps from the publisher to clean documents."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pydantic import BaseModel

from marin_dag.graph.step import Step
from runtime.text.extraction.formats import Format
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
from steps.decontaminate import DecontaminateConfig, DecontaminateResult, decontaminate
from steps.dedup import DedupConfig, DedupResult, dedup
from steps.download import DownloadConfig, download
from steps.download_share import DownloadShareConfig, download_share
from steps.evaluation_items import EvaluationItemsResult
from steps.extract import ExtractConfig, extract
from steps.fetch import Fetch
from steps.filter import FilterConfig, filter_documents

PRIORITY = ("textbook", "encyclopedia", "papers", "math", "questions", "code", "web")
"""The roles, in the order in which sources keep a text that several have: texts written to teach first, the web last.

The recipe names about thirty data sets; a laptop has seven sources and a user's folder may have two. Each source plays
a role, and a mixture is the recipe's mixture with the weights of a role added up."""
# The first word of a file's name in a user's folder, and the role that it gives.
ROLE_WORDS = {role: role for role in PRIORITY} | {
    "c4": "web", "crawl": "web", "lean": "math", "arxiv": "papers", "plos": "papers", "wiki": "encyclopedia",
    "wikipedia": "encyclopedia", "factbook": "encyclopedia", "stackexchange": "questions", "qa": "questions",
    "howto": "questions", "textbooks": "textbook", "books": "textbook", "flan": "textbook", "instructions": "textbook",
}  # fmt: skip


def role_of_file(stem: str) -> str:
    """Return the role of a user's source by the first word of its file's name; web for an unknown word."""
    return ROLE_WORDS.get(re.split("[^a-z0-9]", stem.lower())[0], "web")


class Source(BaseModel, frozen=True, extra="forbid"):
    """A corpus: where it is from, how it is read and cleaned, and its place in mixtures."""

    name: str
    """The label of its steps, also in reports."""
    role: str
    """A role of `PRIORITY`."""
    description: str
    licence: str
    fetch: Fetch
    share: float = 1.0
    """Share of a data set's files to download, by hash."""
    least_folders: int = 1
    """Folders of which a share below 1 holds at least one file each."""
    formats: tuple[Format, ...]
    rules: tuple[Rule, ...] = ()
    """Empty for a corpus that is used as published."""
    minhash: MinHash | None = None
    """None for a corpus that is used as published."""
    size_in_bytes: float
    """Its approximate amount of text; sources of one role share the role's weight by size."""
    decontamination: Literal["drop", "report"] = "drop"
    num_tokens: float | None = None
    """The publisher's count or an estimate, if any; used until the source is tokenized."""
    key: str = ""
    """The name in mixtures and evaluations, and so in identities; `name` if empty. A source that a user named has a key
    of its own, so that renaming changes no identity."""
    origin: str = ""
    """The name that messages give its only file, if the user knows the file under another name than its stored one."""

    @property
    def identity(self) -> str:
        return self.key or self.name


# No text should look like this, whatever it is about.
DEGENERATE: tuple[Rule, ...] = (SingleCharacter(), RepeatedPeriod())

# Reference pages are lists of short entries: FineWeb's limit on short lines would drop a third of them, and the names
# that a page explains recur more often than Gopher allows for prose.
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
# Docstrings hold formulae, examples and tables of parameters, which rules for prose would drop.
DOCSTRING_RULES: tuple[Rule, ...] = (*DEGENERATE, Length(min_words=30, max_words=100_000))
HOWTO_RULES: tuple[Rule, ...] = (*DEGENERATE, Length(min_words=25, max_words=100_000))

TESTS = ("*/tests/*", "*/test_*.py", "*/conftest.py")


def filtered_documents(
    name: str,
    fetch: Any,
    formats: tuple[Format, ...],
    rules: tuple[Rule, ...],
    *,
    origin: str = "",
    share: float = 1.0,
    least_folders: int = 1,
) -> Step[Any]:
    """Chain download, of a share if it is below 1, extract and, with rules, filter."""
    if share == 1.0:
        fetched = download(f"download/{name}", DownloadConfig(fetch=fetch))
    else:
        config = DownloadShareConfig(fetch=fetch, share=share, least_folders=least_folders)
        fetched = download_share(f"download/{name}", config)
    found: Step[Any] = extract(f"extract/{name}", ExtractConfig(download=fetched, formats=formats, origin=origin))
    if rules:
        found = filter_documents(f"filter/{name}", FilterConfig(documents=found, rules=rules))
    return found


def documents_of(
    source: Source, items: Step[EvaluationItemsResult], against: Sequence[Step[DedupResult]] = ()
) -> Step[DecontaminateResult]:
    """Chain the steps from a source to its clean documents; a source published clean needs no filter and no dedup.

    `against` are the deduplicated sources whose copy of a text stays instead of this one's.
    """
    documents = filtered_documents(
        source.name,
        source.fetch,
        source.formats,
        source.rules,
        origin=source.origin,
        share=source.share,
        least_folders=source.least_folders,
    )
    if source.minhash is not None:
        documents = dedup(
            f"dedup/{source.name}", DedupConfig(documents=documents, against=tuple(against), minhash=source.minhash)
        )
    return decontaminate(
        f"decontaminate/{source.name}",
        DecontaminateConfig(documents=documents, evaluation_items=items, action=source.decontamination),
    )


def clean_documents(sources: Iterable[Source], items: Step[EvaluationItemsResult]) -> dict[str, Step]:
    """Return the clean documents by key; a text of two sources stays in the one with the higher priority."""
    sources = list(sources)
    found: dict[str, Step] = {}
    earlier: list[Step] = []
    for source in sorted(sources, key=lambda source: (PRIORITY.index(source.role), source.identity)):
        found[source.identity] = documents_of(source, items, earlier)
        if source.minhash is not None:
            earlier.append(next(item.step for field, item in found[source.identity].inputs if field == "documents"))
    return {source.identity: found[source.identity] for source in sources}


def by_name(sources: Iterable[Source], *, folder: str = "") -> dict[str, Source]:
    """Return the sources by name; raise ValueError if two, which may be files of `folder`, have one name."""
    found: dict[str, Source] = {}
    for source in sources:
        if (other := found.setdefault(source.name, source)) is not source:
            files = ", ".join(sorted(each.origin or each.name for each in (other, source)))
            where = f"{folder}: " if folder else ""
            raise ValueError(
                f"{where}two sources have the name {source.name}: {files}. Rename one of them; a name has ASCII "
                "letters and digits, and hyphens for all else."
            )
    return found
