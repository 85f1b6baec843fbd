"""Gold answers: the right answers of tasks as tokens, whose bits per byte show progress before accuracies do.

OLMo's "easy" suites measure the same. Here a task's figure is a ratio of two sums over its answers, as for held-out
text.
"""

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import fsspec
import numpy as np
from jaxtyping import Int64

from runtime.evaluation.bits_per_byte import PADDING_SEGMENT, BitsPerByteError
from runtime.evaluation.windows import ScoredWindows, WindowSource


class GoldAnswer(NamedTuple):
    """The right answer of one item, after the item's prompt."""

    context: list[int]
    answer: list[int]
    answer_bytes: list[int]
    """Bytes of text of each token of the answer."""


def to_json_lines(answers: Iterable[GoldAnswer]) -> bytes:
    """Return one line for each answer."""
    return "".join(json.dumps(answer) + "\n" for answer in answers).encode()


def read_gold_answers(path: str) -> list[GoldAnswer]:
    """Return the answers in the file of one task."""
    with fsspec.open(path, "rb") as file:
        return [GoldAnswer(*json.loads(line)) for line in file]


def answer_source(path: str, *, sequence_length: int) -> WindowSource:
    """Return windows of prompts with their answers, in which the answers alone count.

    A prompt too long for a window loses its beginning, as in lm-eval; an answer too long for one loses its end.

    Raises:
        BitsPerByteError: there are no answers.
    """
    answers = read_gold_answers(path)
    if not answers:
        raise BitsPerByteError(f"{path}: no answers; remove the task from validation_tasks.")
    rows = _rows([_fitted(answer, sequence_length) for answer in answers], sequence_length)

    def read(numbers: Int64[np.ndarray, "window"]) -> ScoredWindows:
        shape = len(numbers), sequence_length
        found = ScoredWindows(
            np.zeros(shape, np.int32), np.full(shape, PADDING_SEGMENT, np.int32), np.zeros(shape, np.int32)
        )
        for window, number in enumerate(numbers):
            begin = 0
            for segment, (context, answer, answer_bytes) in enumerate(rows[number]):
                first, end = begin + len(context), begin + len(context) + len(answer)
                found.tokens[window, begin:end] = context + answer
                found.segment_ids[window, begin:end] = segment
                found.text_bytes[window, first - 1 : end - 1] = answer_bytes
                begin = end
        return found

    return WindowSource(len(rows), read)


def _fitted(answer: GoldAnswer, length: int) -> GoldAnswer:
    kept = min(len(answer.answer), length - 1)
    context = answer.context[max(0, len(answer.context) + kept - length) :]
    return GoldAnswer(context, answer.answer[:kept], answer.answer_bytes[:kept])


def _rows(answers: Sequence[GoldAnswer], length: int) -> list[list[GoldAnswer]]:
    """Return the answers of each window, in order."""
    rows: list[list[GoldAnswer]] = []
    space = 0
    for answer in answers:
        size = len(answer.context) + len(answer.answer)
        if size > space:
            rows.append([])
            space = length
        rows[-1].append(answer)
        space -= size
    return rows
