"""Writer: generates texts after prompts and passes each on as it grows; equal prompts and settings give equal texts."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tokenizers import Tokenizer

from runtime.data.token_bytes import REPLACEMENT
from runtime.evaluation.generation import Generator, Prompt
from runtime.evaluation.placed_model import PlacedModel
from runtime.evaluation.sampling import Sampling
from runtime.evaluation.trained_model import TrainedModel
from runtime.interop.chat_template import ChatTemplate
from runtime.interop.huggingface import SpecialTokens

OnText = Callable[[int, str], object]
"""Receives the number of a prompt and the new part of its text; prompts come in order."""


class Text(NamedTuple):
    """The text after a prompt."""

    prompt: str
    text: str
    is_whole: bool
    """Whether the model ended the text; otherwise the limit of tokens did."""


@dataclasses.dataclass(frozen=True)
class Writer:
    """A model with its tokenizer, which writes texts."""

    model: PlacedModel
    tokenizer: Tokenizer
    special_tokens: SpecialTokens
    template: ChatTemplate | None = None
    """If given, each prompt is a message and each text a reply."""

    def write(
        self,
        prompts: Iterable[str],
        *,
        max_new_tokens: int,
        sampling: Sampling | None,
        on_text: OnText = lambda number, text: None,
    ) -> list[Text]:
        """Return the text after each prompt; without `sampling`, each token is the likeliest.

        Raises:
            ValueError: a prompt with its text exceeds the model's context, or the chat template fails.
        """
        prompts = list(prompts)
        stream = _Stream(len(prompts), self._decode, on_text)
        requests = [Prompt(self._encode(text), max_new_tokens, sampling, number) for number, text in enumerate(prompts)]
        ends = {self.special_tokens.eos_token_id, self._end_of_reply()}

        def is_finished(number: int, tokens: list[int]) -> bool:
            stream.show(number, tokens, is_last=False)
            return tokens[-1] in ends

        found: dict[int, list[int]] = {}
        for number, tokens in Generator(self.model).generate(requests, is_finished):
            stream.show(number, tokens, is_last=True)
            found[number] = list(tokens)
        return [
            Text(prompt, self._decode(found[number]), found[number][-1] in ends)
            for number, prompt in enumerate(prompts)
        ]

    def _end_of_reply(self) -> int | None:
        token = None if self.template is None else self.template.end_token
        return None if token is None else self.tokenizer.token_to_id(token)

    def _encode(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a prompt after BOS; for an empty prompt of a tokenizer without BOS, EOS.

        A chat template writes BOS itself.
        """
        if self.template is not None:
            return tuple(self.tokenizer.encode(self.template.prompt(text), add_special_tokens=False).ids)
        eos, bos = self.special_tokens
        tokens = self.tokenizer.encode(text, add_special_tokens=False).ids
        if bos is not None and tokens[:1] != [bos]:
            tokens = [bos, *tokens]
        return tuple(tokens or [eos])

    def _decode(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)


def writer_of_checkpoint(
    checkpoint: str,
    weights: str,
    tokenizer: Tokenizer,
    special_tokens: SpecialTokens,
    *,
    compute_dtype: str = "float32",
) -> Writer:
    """Return the writer of a checkpoint's trained weights ("hot"), or of the EMA weights of that name.

    Raises:
        CheckpointError: there is no complete checkpoint.
    """
    model = TrainedModel.open(checkpoint)
    placed = PlacedModel(
        model.params(weights, None), model.description.config, model.description.rope, compute_dtype=compute_dtype
    )
    return Writer(placed, tokenizer, special_tokens)


class _Stream:
    """A stream that passes texts on in the order of their prompts, while all of them grow at once."""

    def __init__(self, num_texts: int, decode: Callable[[list[int]], str], on_text: OnText) -> None:
        self._decode, self._on_text = decode, on_text
        self._texts, self._are_last = [""] * num_texts, [False] * num_texts
        self._current, self._shown = 0, ""

    def show(self, number: int, tokens: list[int], *, is_last: bool) -> None:
        """Take the tokens of a text so far, and pass on the new text that comes next in order."""
        text = self._decode(tokens)
        # A text may end in a character whose other bytes are still to come.
        self._texts[number] = text if is_last else text.rstrip(REPLACEMENT)
        self._are_last[number] = is_last
        while self._current < len(self._texts):
            text = self._texts[self._current]
            if len(text) > len(self._shown):
                self._on_text(self._current, text[len(self._shown) :])
                self._shown = text
            if not self._are_last[self._current]:
                return
            self._current, self._shown = self._current + 1, ""
