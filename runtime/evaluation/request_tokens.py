"""Request tokens: how the texts of lm-eval's requests become tokens, as in its own Hugging Face adapter."""

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from runtime.interop.huggingface import SpecialTokens


class RequestTokens:
    """The part of lm-eval's model interface that needs a tokenizer alone."""

    def __init__(self, tokenizer: Tokenizer, special_tokens: SpecialTokens) -> None:
        self._tokenizer = tokenizer
        self._special_tokens = special_tokens
        prefix = tokenizer.id_to_token(self.prefix_token_id)
        if prefix is None:
            raise ValueError(f"tokenizer: no token has the id {self.prefix_token_id}, which begins a text.")
        self._prefix_text = prefix
        self._last_context: tuple[str | None, list[int]] = None, []

    @property
    def eot_token_id(self) -> int:
        return self._special_tokens.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """BOS if the model has one, else EOS: documents follow an EOS in training."""
        bos = self._special_tokens.bos_token_id
        return self._special_tokens.eos_token_id if bos is None else bos

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Encode with the special tokens of the tokenizer's post-processor, unless the text begins with one."""
        if add_special_tokens is None:
            add_special_tokens = not string.startswith(self._prefix_text)
        return self._tokenizer.encode(string, add_special_tokens=add_special_tokens).ids

    def split(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Return the tokens of a context and of its continuation; blanks at the end of the context go to the latter."""
        if context:
            text = context.rstrip()
            if text != self._last_context[0]:  # the choices of a question follow each other, and share its tokens
                self._last_context = text, self.tok_encode(text)
            before = self._last_context[1]
            return before, self.tok_encode(context + continuation)[len(before) :]
        tokens = self.tok_encode(continuation, add_special_tokens=False)
        if tokens[:1] == [self.prefix_token_id]:
            return tokens[:1], tokens[1:]
        return [self.prefix_token_id], tokens


def check_parts(context: Sequence[int], continuation: Sequence[int], task_name: str | None) -> None:
    """Raise ValueError where one of the parts of a request has no tokens."""
    if not continuation:
        raise ValueError(f"{task_name}: a continuation has no tokens; the tokenizer merges it into the context.")
    if not context:
        raise ValueError(f"{task_name}: a context has no tokens but blanks, which belong to the continuation.")
