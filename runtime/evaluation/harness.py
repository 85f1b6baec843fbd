"""lm-eval's model interface over a JAX model, with the same tokens and numbers as its own Hugging Face adapter.

The split into context and continuation, trailing spaces, the stand-in for an empty context, truncation from the left
and rolling windows follow `lm_eval.models.huggingface.HFLM`, so scores are comparable with published ones.
"""

import collections
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tokenizers import Tokenizer

from runtime.evaluation.scoring import Scored, Scorer
from runtime.evaluation.suites import DEFAULT_MAX_NEW_TOKENS
from runtime.interop.huggingface import SpecialTokens

MAX_NEW_TOKENS_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


class GenerationError(ValueError):
    """A way to generate text that this adapter does not offer."""


class GenerationRequest(NamedTuple):
    """Limits of a task's greedy text: stop strings and a number of tokens."""

    stop: tuple[str, ...]
    max_new_tokens: int


class LlamaHarness(TemplateLM):
    """Answers the three kinds of request of lm-eval."""

    def __init__(self, scorer: Scorer, tokenizer: Tokenizer, special_tokens: SpecialTokens) -> None:
        super().__init__()
        self._scorer = scorer
        self._tokenizer = tokenizer
        self._special_tokens = special_tokens
        prefix = tokenizer.id_to_token(self.prefix_token_id)
        if prefix is None:
            raise ValueError(f"tokenizer: no token has the id {self.prefix_token_id}, which begins a text.")
        self._prefix_text = prefix
        self.num_truncated: collections.Counter[str] = collections.Counter()
        """Requests truncated to the model's context, by task."""

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

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return the natural log-likelihood of each continuation, and whether greedy decoding gives it.

        A continuation longer than the model's context is scored in parts, each after the tokens before it.
        """
        scored: list[Scored] = []
        owners: list[int] = []
        room = self._scorer.max_length
        for number, request in enumerate(requests):
            context, tokens = self._split(*request.args)
            # Counts the first part alone; later parts see as much before them as a window holds.
            self.num_truncated[request.task_name or ""] += len(context) + min(len(tokens), room) > room + 1
            for begin in range(0, max(len(tokens), 1), room):
                before = [*context, *tokens[:begin]]
                scored.append(self._fit(before, tokens[begin : begin + room], request.task_name))
                owners.append(number)
        totals, are_greedy = [0.0] * len(requests), [True] * len(requests)
        for owner, score in zip(owners, self._scorer.score(scored), strict=True):
            totals[owner] += score.log_likelihood
            are_greedy[owner] &= score.is_greedy
        return list(zip(totals, are_greedy, strict=True))

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the natural log-likelihood of each text, every token scored once in disjoint windows."""
        scored: list[Scored] = []
        owners: list[int] = []
        for number, request in enumerate(requests):
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self._scorer.max_length,
                context_len=1,
            )
            for window in windows:
                context, continuation = make_disjoint_window(window)
                scored.append(self._fit(context, continuation, request.task_name))
                owners.append(number)
        totals = [0.0] * len(requests)
        for owner, score in zip(owners, self._scorer.score(scored), strict=True):
            totals[owner] += score.log_likelihood
        return totals

    def check_generation(self, task_name: str, arguments: Mapping[str, Any]) -> None:
        """Raise GenerationError if `generate_until`, which runs last, would."""
        try:
            way = generation_request(arguments)
        except GenerationError as error:
            raise GenerationError(f"{task_name}: {error}") from error
        self._room(way, task_name)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return greedy text after each prompt, cut before the first stop string or the end of the text."""
        by_way: dict[GenerationRequest, list[int]] = {}
        for number, request in enumerate(requests):
            by_way.setdefault(generation_request(request.args[1]), []).append(number)
        answers = [""] * len(requests)
        for way, numbers in by_way.items():
            room = self._room(way, requests[numbers[0]].task_name)
            prompts = []
            for number in numbers:
                prompt = self.tok_encode(requests[number].args[0])
                self.num_truncated[requests[number].task_name or ""] += len(prompt) > room
                prompts.append(tuple(prompt[-room:]) or (self.prefix_token_id,))

            def is_finished(tokens: list[int], way: GenerationRequest = way) -> bool:
                return tokens[-1] == self.eot_token_id or any(stop in self._decode(tokens) for stop in way.stop)

            texts = self._scorer.continue_greedily(prompts, way.max_new_tokens, is_finished)
            for number, tokens in zip(numbers, texts, strict=True):
                answers[number] = self._cut(tokens, way.stop)
        return answers

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        scored = [self._fit(context, continuation, None) for _, context, continuation in requests]
        return [(score.log_likelihood, score.is_greedy) for score in self._scorer.score(scored)]

    def _room(self, way: GenerationRequest, task_name: str | None) -> int:
        """Return how many tokens of a prompt fit beside the generated text."""
        room = self._scorer.max_length - way.max_new_tokens
        if room < 1:
            raise GenerationError(
                f"{task_name}: max_gen_toks is {way.max_new_tokens}, and the model's whole context is "
                f"{self._scorer.max_length} tokens; set a smaller max_gen_toks in the task."
            )
        return room

    def _split(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        if context:
            return self._encode_pair(context, continuation)
        tokens = self.tok_encode(continuation, add_special_tokens=False)
        if tokens[:1] == [self.prefix_token_id]:
            return tokens[:1], tokens[1:]
        return [self.prefix_token_id], tokens

    def _fit(self, context: Sequence[int], continuation: Sequence[int], task_name: str | None) -> Scored:
        """Return input and targets, with the context cut from the left to fit."""
        if not continuation:
            raise ValueError(f"{task_name}: a continuation has no tokens; the tokenizer merges it into the context.")
        tokens = (*context, *continuation)
        return Scored(tokens[-(self._scorer.max_length + 1) :][:-1], tuple(continuation))

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)

    def _cut(self, tokens: list[int], stops: Sequence[str]) -> str:
        if self.eot_token_id in tokens:
            tokens = tokens[: tokens.index(self.eot_token_id)]
        text = self._decode(tokens)
        for stop in stops:
            text = text.split(stop)[0]
        return text


def generation_request(arguments: Mapping[str, Any]) -> GenerationRequest:
    """Parse lm-eval's generation arguments; raise GenerationError for sampling and unknown arguments."""
    remaining = dict(arguments)
    temperature = float(remaining.pop("temperature", 0.0) or 0.0)
    do_sample = remaining.pop("do_sample", None)
    # As lm-eval reads them: a temperature above zero means sampling unless do_sample says otherwise.
    if do_sample or (do_sample is None and temperature > 0):
        at = f" at temperature {temperature}" if temperature else ""
        raise GenerationError(
            f"generation_kwargs: the task samples{at}, and this adapter decodes greedily; set do_sample: false in the "
            "task."
        )
    for name in ("top_p", "top_k"):  # without sampling they have no effect
        remaining.pop(name, None)
    until = remaining.pop("until", [])
    stops = [until] if isinstance(until, str) else list(until)
    given = [remaining.pop(name) for name in MAX_NEW_TOKENS_NAMES if remaining.get(name) is not None]
    if remaining:
        raise GenerationError(f"generation_kwargs: {', '.join(sorted(remaining))} not supported; remove them.")
    return GenerationRequest(tuple(stop for stop in stops if stop), int(given[0]) if given else DEFAULT_MAX_NEW_TOKENS)
