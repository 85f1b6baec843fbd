"""Evaluation items: the pinned evaluation package in, one JSON-lines file a task out."""

from pydantic import BaseModel

from marin_dag.errors import UserError
from marin_dag.step import Input, StepContext, step
from steps.download import DownloadResult


class EvaluationItemsConfig(BaseModel, frozen=True, extra="forbid"):
    package: Input[DownloadResult]


class EvaluationItemsResult(BaseModel, frozen=True, extra="forbid"):
    """Rows have the columns that lm-eval's own task definitions read; paths are relative to the step's output."""

    files: dict[str, str]
    """By lm-eval's name of the task; MMLU is one a subject (`mmlu_anatomy`)."""
    fewshot_files: dict[str, str]
    """Examples for few-shot prompts, for the tasks that have their own (MMLU's "dev" split)."""
    num_items: dict[str, int]


@step(policy="tracked", packages=("pyarrow",))
def evaluation_items(config: EvaluationItemsConfig, context: StepContext) -> EvaluationItemsResult:
    from runtime.evaluation.items import write_items

    files = config.package.result.files
    if len(files) != 1:
        raise UserError(f"{context.name}: package is {len(files)} files; the evaluation package is one wheel.")
    written, fewshot, num_items = write_items(config.package.join(files[0].path), context.output_path)
    return EvaluationItemsResult(files=written, fewshot_files=fewshot, num_items=num_items)
