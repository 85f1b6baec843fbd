"""lm-eval's model interface over a JAX model, with the same tokens and numbers as its own Hugging Face adapter.

The split into context and continuation, trailing spaces, the stand-in for an empty context, truncation from the left
and rolling windows follow `lm_eval.models.huggingface.HFLM`, so scores are comparable with published ones.
"""

import collections
import dataclasses
import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tokenizers import Tokenizer

from runtime.evaluation.answers import Answers, answer_key
from runtime.evaluation.definitions import DEFAULT_MAX_NEW_TOKENS, GENERATED, MAX_NEW_TOKENS_NAMES
from runtime.evaluation.device_memory import CURE, DeviceRoom
from runtime.evaluation.generation import Generator, Prompt
from runtime.evaluation.packing import row_length
from runtime.evaluation.placed_model import PlacedModel
from runtime.evaluation.request_tokens import RequestTokens, check_parts
from runtime.evaluation.sampling import Sampling
from runtime.evaluation.scoring import TOKENS_PER_BATCH, OnProgress, Scored, Scorer
from runtime.interop.chat_template import ChatTemplate, ChatTemplateError
from runtime.interop.huggingface import SpecialTokens

STOP_MARGIN = 8
"""Tokens beside a stop string's own that are decoded to find it: decoders treat the first ones of a text apart."""


class GenerationError(ValueError):
    """A way to generate text that this adapter does not offer."""


class GenerationRequest(NamedTuple):
    """A task's settings for generated text: stop strings, a number of tokens, and how tokens are drawn."""

    stop: tuple[str, ...]
    max_new_tokens: int
    sampling: Sampling | None = None
    """None takes the likeliest token."""


class LlamaHarness(RequestTokens, LM):
    """Answers the three kinds of request of lm-eval."""

    def __init__(
        self,
        model: PlacedModel,
        tokenizer: Tokenizer,
        special_tokens: SpecialTokens,
        *,
        end_token_ids: Collection[int] = (),
        template: ChatTemplate | None = None,
        tokens_per_batch: int = TOKENS_PER_BATCH,
        room: DeviceRoom | None = None,
        answers: Answers | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        """Prepare the programs.

        Args:
            model: the placed model.
            tokenizer: the model's.
            special_tokens: the model's.
            end_token_ids: tokens that end a text beside EOS.
            template: the model's chat template, if prompts are conversations.
            tokens_per_batch: tokens of a batch on each device.
            room: tokens that fit on each device; None is without limits.
            answers: what an earlier attempt found, and where new answers are kept.
            on_progress: receives how many requests of a kind are done, of how many.
        """
        LM.__init__(self)
        RequestTokens.__init__(self, tokenizer, special_tokens)
        self._end_token_ids = {self.eot_token_id, *end_token_ids}
        self._template = template
        self._answers = Answers() if answers is None else answers
        self._on_progress = on_progress
        self._max_length = model.config.max_position_embeddings
        self._scorer = Scorer(model, tokens_per_batch=tokens_per_batch, answers=self._answers, on_progress=on_progress)
        self._device_room = DeviceRoom() if room is None else room
        self._generator = Generator(model, cached_tokens=self._device_room.cached_tokens)
        self.num_truncated: collections.Counter[str] = collections.Counter()
        """Requests truncated to the model's context, by task."""

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return the natural log-likelihood of each continuation, and whether greedy decoding gives it.

        A continuation longer than the model's context is scored in parts, each after the tokens before it.
        """
        room = self._max_length
        parts: list[list[Scored]] = []
        for request in requests:
            context, tokens = self.split(*request.args)
            # Counts the first part alone; later parts see as much before them as a window holds.
            self.num_truncated[request.task_name or ""] += len(context) + min(len(tokens), room) > room + 1
            parts.append([])
            for begin in range(0, max(len(tokens), 1), room):
                before = [*context, *tokens[:begin]]
                parts[-1].append(self._fit(before, tokens[begin : begin + room], request.task_name))
        return self._totals(parts)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the natural log-likelihood of each text, every token scored once in disjoint windows."""
        parts: list[list[Scored]] = []
        for request in requests:
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self._max_length,
                context_len=1,
            )
            pairs = map(make_disjoint_window, windows)
            parts.append([self._fit(context, continuation, request.task_name) for context, continuation in pairs])
        return [total for total, _ in self._totals(parts)]

    def _totals(self, parts: Sequence[Sequence[Scored]]) -> list[tuple[float, bool]]:
        """Return the log-likelihood of all parts of each request, and whether all are greedy."""
        scores = iter(self._scorer.score([part for of_request in parts for part in of_request]))
        found = []
        for of_request in parts:
            own = [next(scores) for _ in of_request]
            found.append((sum((score.log_likelihood for score in own), 0.0), all(score.is_greedy for score in own)))
        return found

    @property
    def tokenizer_name(self) -> str:
        """Name of the tokenizer in lm-eval's cache of requests, which is not used."""
        return ""

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return the prompt of a conversation; a template that refuses system messages gets none, as in lm-eval.

        Without `add_generation_prompt` the prompt ends in the middle of the last message.
        """
        assert self._template is not None  # lm-eval calls this only with `apply_chat_template`, which needs a template
        try:
            return self._template.conversation(chat_history, continues=not add_generation_prompt)
        except ChatTemplateError:
            others = [message for message in chat_history if message["role"] != "system"]
            if len(others) == len(chat_history):
                raise
            return self._template.conversation(others, continues=not add_generation_prompt)

    def check_requests(self, requests: Sequence[Instance]) -> None:
        """Check requests before any is answered.

        Raises:
            GenerationError: this adapter does not write text in such a way.
            ValueError: a request fits the model's context, and a device has no room for it.
        """
        for request in requests:
            limit = self._device_room.row_tokens
            if request.request_type == GENERATED:
                self._way(request)
                limit = self._device_room.longest_text
            if limit is not None and (size := self._size(request, limit)) > limit:
                raise ValueError(
                    f"{request.task_name}, item {request.doc_id}: prompt and answer need room for {size:,} tokens, and "
                    f"a device has room for {limit:,} beside the parameters; {CURE}, or fewer worked examples."
                )

    def _size(self, request: Instance, limit: int) -> int:
        """Return the tokens of a text with its prompt, or of the row of a scored request; or a bound within `limit`.

        Without a normalizer, a text has no more tokens than bytes, but for special ones.
        """
        if request.request_type == GENERATED:
            way, room = self._way(request)
            return min(len(self.tok_encode(request.args[0])), room) + way.max_new_tokens
        most = row_length(sum(len(text.encode()) for text in request.args) + STOP_MARGIN)
        if self._tokenizer.normalizer is None and most <= limit:
            return most
        parts = self.split(*request.args) if len(request.args) == 2 else [self.tok_encode(request.args[0])]
        return row_length(min(self._max_length, sum(map(len, parts))))

    def _way(self, request: Instance) -> tuple[GenerationRequest, int]:
        """Return the settings of a requested text, and how many tokens of its prompt fit beside the text."""
        try:
            way = generation_request(request.args[1])
        except GenerationError as error:
            raise GenerationError(f"{request.task_name}: {error}") from error
        room = self._max_length - way.max_new_tokens
        if room < 1:
            raise GenerationError(
                f"{request.task_name}: max_gen_toks is {way.max_new_tokens}, and the model's whole context is "
                f"{self._max_length} tokens; set a smaller max_gen_toks in the task."
            )
        return way, room

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the text after each prompt, cut before the first stop string or the end of the text."""
        asked = [self._way(request) for request in requests]
        ways = [way for way, _ in asked]
        prompts: list[Prompt] = []
        keys: list[str] = []
        num_equal: collections.Counter[str] = collections.Counter()
        for request, (way, room) in zip(requests, asked, strict=True):
            prompt = self.tok_encode(request.args[0])
            self.num_truncated[request.task_name or ""] += len(prompt) > room
            tokens = tuple(prompt[-room:]) or (self.prefix_token_id,)
            sampling = None if way.sampling is None else dataclasses.asdict(way.sampling)
            key = answer_key("cut text", tokens, way.stop, way.max_new_tokens, sampling)
            # Draws of the same request differ, and do not depend on other requests.
            repeat = 0 if sampling is None else num_equal[key]
            num_equal[key] += 1
            prompts.append(Prompt(tokens, way.max_new_tokens, way.sampling, _request_number(tokens, repeat)))
            keys.append(key if repeat == 0 else answer_key(key, repeat))
        self._write(prompts, ways, keys)
        return self._answers.take(keys)

    def _write(self, prompts: Sequence[Prompt], ways: Sequence[GenerationRequest], keys: Sequence[str]) -> None:
        """Write the texts that are not among the answers yet; equal requests once."""
        numbers = {key: number for number, key in enumerate(keys) if key not in self._answers}
        missing = sorted(numbers.values())
        total = len({*keys})

        def is_finished(number: int, tokens: list[int]) -> bool:
            return self._is_finished(tokens, ways[missing[number]].stop)

        done = total - len(missing)
        for index, tokens in self._generator.generate([prompts[number] for number in missing], is_finished):
            number = missing[index]
            self._answers.keep(keys[number], self._cut(tokens, ways[number].stop))
            done += 1
            self._answers.flush(now=done == total)
            if self._on_progress:
                self._on_progress(done, total)

    def _is_finished(self, tokens: list[int], stops: Sequence[str]) -> bool:
        if tokens[-1] in self._end_token_ids:
            return True
        if not stops:
            return False
        # A stop string that ends with the last token is within as many tokens as it has bytes.
        end = self._decode(tokens[-max(len(stop.encode()) for stop in stops) - STOP_MARGIN :])
        return any(stop in end for stop in stops)

    def _fit(self, context: Sequence[int], continuation: Sequence[int], task_name: str | None) -> Scored:
        """Return input and targets, with the context cut from the left to fit."""
        check_parts(context, continuation, task_name)
        tokens = (*context, *continuation)
        return Scored(tokens[-(self._max_length + 1) :][:-1], tuple(continuation))

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)

    def _cut(self, tokens: list[int], stops: Sequence[str]) -> str:
        # Other tokens that end a text stay, as in lm-eval; special tokens have no text.
        if self.eot_token_id in tokens:
            tokens = tokens[: tokens.index(self.eot_token_id)]
        text = self._decode(tokens)
        for stop in stops:
            text = text.split(stop)[0]
        return text


def generation_request(arguments: Mapping[str, Any]) -> GenerationRequest:
    """Parse lm-eval's generation arguments; raise GenerationError for those that are unknown or impossible."""
    remaining = {name: value for name, value in arguments.items() if value is not None}
    temperature = float(remaining.pop("temperature", 0.0) or 0.0)
    do_sample = remaining.pop("do_sample", None)
    drawing = {name: remaining.pop(name, None) for name in ("top_p", "top_k", "seed")}
    sampling = None
    # As lm-eval reads them: a temperature above zero means sampling unless do_sample says otherwise.
    if do_sample or (do_sample is None and temperature > 0):
        given = {name: value for name, value in drawing.items() if value is not None}
        try:
            sampling = Sampling(temperature, **given)
        except ValueError as error:
            raise GenerationError(f"generation_kwargs: {error}") from error
    until = remaining.pop("until", [])
    stops = [until] if isinstance(until, str) else list(until)
    # With an empty stop string, lm-eval's own adapter ends each text after one token.
    if wrong := [stop for stop in stops if not isinstance(stop, str) or not stop]:
        raise GenerationError(f"generation_kwargs: until has {wrong[0]!r}; write a text of one character or more.")
    limits = [remaining.pop(name) for name in MAX_NEW_TOKENS_NAMES if remaining.get(name) is not None]
    if remaining:
        raise GenerationError(f"generation_kwargs: {', '.join(sorted(remaining))} not supported; remove them.")
    max_new_tokens = int(limits[0]) if limits else DEFAULT_MAX_NEW_TOKENS
    return GenerationRequest(tuple(stops), max_new_tokens, sampling)


def _request_number(tokens: Sequence[int], repeat: int) -> int:
    """Return a number below 2**32 for the draws of a request."""
    return zlib.crc32(np.array([*tokens, repeat], np.int64).tobytes())
