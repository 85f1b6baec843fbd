"""Judged documents: the incoming documents of a step together with its judge."""

import dataclasses
from collections.abc import Sequence

from marin_dag.errors import UserError
from marin_dag.graph.step import Step
from marin_dag.store.store import Store
from pipelines.document_judges import (
    DecontaminationJudge,
    DedupJudge,
    FilterJudge,
    Judge,
    KeepAllJudge,
    Verdict,
    inputs_of,
)
from pipelines.stored_documents import Numbered, StoredDocuments, open_documents
from runtime.text.documents import Document
from runtime.text.drops import read_samples
from steps.decontaminate import DecontaminateConfig
from steps.dedup import DedupConfig
from steps.documents import DocumentsConfig, DocumentsResult
from steps.filter import FilterConfig


@dataclasses.dataclass(frozen=True)
class Judged:
    """The incoming documents of a step, and its judge."""

    step: Step
    documents: StoredDocuments
    judge: Judge
    samples: Sequence[tuple[Numbered, Verdict]] = ()
    """A few drops of each reason by a step that reads no documents, such as pages without text."""


def open_judged(store: Store, step: Step, made: Step | None = None) -> Judged:
    """Return the documents that a step reads, or writes if it reads none, with its judge.

    `made` is the step without --set, if `step` is a variant of it.

    Raises:
        UserError: no documents belong to the step, or a step that is needed is not done.
    """
    config = step.config
    if not isinstance(config, DocumentsConfig):
        is_own = issubclass(step.kind.result_type, DocumentsResult)
        documents = open_documents(store, step if is_own else _documents_of(step))
        return Judged(step, documents, KeepAllJudge(), _samples(documents) if is_own else ())
    documents = open_documents(store, _documents_of(step))
    judge: Judge
    match config:
        case FilterConfig():
            judge = FilterJudge(store, step, made or step, documents)
        case DedupConfig():
            judge = DedupJudge(store, step, documents)
        case DecontaminateConfig():
            judge = DecontaminationJudge(store, step)
        case _:
            raise TypeError(f"{step.name}: no judge for {type(config).__name__}; add one to open_judged.")
    return Judged(step, documents, judge)


def has_documents(step: Step) -> bool:
    """Return whether a step gives documents or reads those of one step."""
    return issubclass(step.kind.result_type, DocumentsResult) or bool(inputs_of(step, "documents"))


def _samples(documents: StoredDocuments) -> list[tuple[Numbered, Verdict]]:
    path = documents.result.dropped_samples
    rows = [] if path is None else read_samples(documents.url(path))
    return [
        (
            Numbered(number, Document(row["id"], row["excerpt"], "")),
            Verdict(row["excerpt"], row["reason"], row["detail"]),
        )
        for number, row in enumerate(rows)
    ]


def _documents_of(step: Step) -> Step:
    for given in inputs_of(step, "documents"):
        return given
    raise UserError(
        f"documents: {step.name} ({step.kind.name}) neither gives documents nor reads those of one step. Name a step "
        "of extract, filter, dedup, decontaminate or tokenize; `ls` lists all."
    )
