"""Gold answers: the right answers of tasks as tokens of one tokenizer, for validations of a phase."""

from pydantic import BaseModel

from marin_dag.graph.step import Input, StepContext, step
from steps.task_inputs import TaskInputs, check_items, task_files
from steps.tokenizer import TokenizerResult


class GoldAnswersConfig(TaskInputs, frozen=True, extra="forbid"):
    """The tasks, and the tokenizer of the phases that measure them."""

    tokenizer: Input[TokenizerResult]


class GoldAnswersResult(BaseModel, frozen=True, extra="forbid"):
    """A file of answers for each task; paths are relative to the step's output."""

    files: dict[str, str]
    """Task and number of shots, such as "piqa_0shot" -> file."""
    num_answers: dict[str, int]
    vocab_size: int
    """Number of ids of the tokenizer."""


def check_answers(config: GoldAnswersConfig) -> None:
    """Raise ValueError for tasks without items, and for tasks whose answers the model writes."""
    check_items(config)
    if written := [task.label for task in config.tasks if task.max_new_tokens]:
        raise ValueError(
            f"tasks: the model writes the answers of {', '.join(written)}; name tasks with choices, or score an export."
        )


@step(policy="tracked", packages=("lm_eval", "tokenizers"), check=check_answers)
def gold_answers(config: GoldAnswersConfig, context: StepContext) -> GoldAnswersResult:
    """Write the tokens of each right answer, split as for a score of the exported model."""
    import fsspec

    from runtime.data.plain_tokenizer import plain_document
    from runtime.data.token_bytes import token_bytes
    from runtime.evaluation.gold_answers import to_json_lines
    from runtime.evaluation.gold_requests import gold_answers as find_gold_answers
    from runtime.evaluation.request_tokens import RequestTokens
    from runtime.interop.huggingface import SpecialTokens, exported_tokenizer

    tokenizer = config.tokenizer.result
    path = config.tokenizer.join(tokenizer.tokenizer)
    special_tokens = SpecialTokens(tokenizer.eos_token_id, tokenizer.bos_token_id)
    exported, _ = exported_tokenizer(path, special_tokens, vocab_size=tokenizer.vocab_size)
    ids = frozenset(each for each in special_tokens if each is not None)
    found = find_gold_answers(
        config.tasks,
        task_files(config),
        RequestTokens(exported, special_tokens),
        token_bytes(plain_document(exported.to_str(), ids)),
        limit=config.limit,
    )
    files = {label: f"{label}.jsonl" for label in found}
    for label, answers in found.items():
        with fsspec.open(f"{context.output_path}/{files[label]}", "wb") as file:
            file.write(to_json_lines(answers))
        context.log.info("%s: %d answers", label, len(answers))
    num_answers = {label: len(answers) for label, answers in found.items()}
    return GoldAnswersResult(files=files, num_answers=num_answers, vocab_size=tokenizer.vocab_size)
