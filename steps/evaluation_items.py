"""Evaluation items: the pinned evaluation package or own sets in, a file a task and the index of their n-grams out."""

from pydantic import BaseModel, Field

from marin_dag.errors import UserError
from marin_dag.graph.step import Input, StepContext, step
from steps.download import DownloadResult

NGRAM_INDEX = "ngrams"
MOST_NGRAM_WORDS = 127
"""What an index can tell of a run's length, in one byte."""


class EvaluationItemsConfig(BaseModel, frozen=True, extra="forbid"):
    package: Input[DownloadResult]
    ngram_words: int = Field(default=13, ge=1)
    """A document that shares this many words in a row with an item is contaminated; 13: GPT-3 (arXiv:2005.14165,
    appendix C)."""
    min_field_words: int = Field(default=8, ge=1)
    """A field of an item shorter than an n-gram is matched whole, from this many words on."""


class EvaluationItemsResult(BaseModel, frozen=True, extra="forbid"):
    """Rows have the columns that lm-eval's own task definitions read; paths are relative to the step's output."""

    files: dict[str, str]
    """By lm-eval's name of the task; MMLU is one a subject (`mmlu_anatomy`)."""
    fewshot_files: dict[str, str]
    """Examples for few-shot prompts, for the tasks that have their own (MMLU's "dev" split)."""
    num_items: dict[str, int]
    ngram_index: str
    """Folder for `runtime.text.decontamination.ItemIndex`: built once here, read by every decontamination."""
    num_ngrams: int


class OwnItemsConfig(BaseModel, frozen=True, extra="forbid"):
    """Evaluation sets of any kind: JSON lines, of which every string of every row is looked for."""

    download: Input[DownloadResult]
    """Each of its files that ends in .jsonl is a task, named by the file and its folder."""
    ngram_words: int = Field(default=13, ge=1)
    """As of the package's items."""
    min_field_words: int = Field(default=8, ge=1)


def _check(config: EvaluationItemsConfig | OwnItemsConfig) -> None:
    if config.ngram_words > MOST_NGRAM_WORDS:
        raise ValueError(
            f"ngram_words is {config.ngram_words}; an index holds runs of at most {MOST_NGRAM_WORDS} words, and a "
            "document that shares so many with an item is as surely a copy. Lower it."
        )
    if config.min_field_words > config.ngram_words:
        raise ValueError(
            f"min_field_words is {config.min_field_words}, more than ngram_words ({config.ngram_words}); a field is "
            "matched whole only if it is shorter than an n-gram. Lower it, or raise ngram_words."
        )


@step(policy="tracked", packages=("numpy", "pyarrow"), check=_check)
def evaluation_items(config: EvaluationItemsConfig, context: StepContext) -> EvaluationItemsResult:
    from runtime.evaluation.items import write_items

    files = config.package.result.files
    if len(files) != 1:
        raise UserError(f"{context.name}: package is {len(files)} files; the evaluation package is one wheel.")
    written, fewshot, num_items = write_items(config.package.join(files[0].path), context.output_path)
    return _with_index(config, context, written, fewshot, num_items)


@step(policy="tracked", packages=("numpy", "pyarrow"), check=_check)
def own_evaluation_items(config: OwnItemsConfig, context: StepContext) -> EvaluationItemsResult:
    """The files as they are, and the index of their n-grams."""
    from runtime.text.decontamination import copy_item_files

    found = [file for file in config.download.result.files if file.name.endswith(".jsonl")]
    given = {file.name.removesuffix(".jsonl").replace("/", "-"): config.download.join(file.path) for file in found}
    if not given or len(given) < len(found):
        wrong = "two files would be one task" if given else "no file ends in .jsonl"
        names = [file.name for file in config.download.result.files]
        raise UserError(f"{context.name}: {wrong} among {names}; name a folder of evaluation sets, a file a task.")
    num_items = copy_item_files(given, f"{context.output_path}/items")
    if empty := [f"{task}.jsonl" for task, number in num_items.items() if number == 0]:
        raise UserError(
            f"{context.name}: {', '.join(empty)} of {config.download.name} has no items, and nothing of it would be "
            "looked for; write them, or take the file away."
        )
    files = {task: f"items/{task}.jsonl" for task in sorted(given)}
    return _with_index(config, context, files, {}, num_items)


def _with_index(
    config: EvaluationItemsConfig | OwnItemsConfig,
    context: StepContext,
    files: dict[str, str],
    fewshot_files: dict[str, str],
    num_items: dict[str, int],
) -> EvaluationItemsResult:
    """Of the files that are written; the index is written beside them."""
    from runtime.text.decontamination import build_index, read_item_fields

    num_ngrams = build_index(
        read_item_fields({task: f"{context.output_path}/{path}" for task, path in files.items()}),
        f"{context.output_path}/{NGRAM_INDEX}",
        ngram_words=config.ngram_words,
        min_field_words=config.min_field_words,
    )
    return EvaluationItemsResult(
        files=files, fewshot_files=fewshot_files, num_items=num_items, ngram_index=NGRAM_INDEX, num_ngrams=num_ngrams
    )
