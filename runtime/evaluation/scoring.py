"""Scoring: log-likelihoods and greedy text of many token sequences, by three compiled programs of fixed shape.

Sequences are packed into rows of the model's context length and separated by segment ids, so that there is little
padding and shapes do not depend on tasks. The head runs at scored positions only, since prompts are long and answers
short. Rotary embedding depends on differences of positions, so the place of a sequence in its row changes
log-likelihoods by rounding only.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Float32, Int32

from runtime.model.computation import Computation, matmul_precision, whole
from runtime.model.config import ModelConfig, Rope
from runtime.model.model import Model, Params
from runtime.training.watchdog import Watchdog

TOKENS_PER_BATCH = 4_096
QUERIES_PER_BATCH = 1_024
PADDING_SEGMENT = 0

ItemT = TypeVar("ItemT")


class Scored(NamedTuple):
    """Model input with the tokens to score: the last `len(targets)` positions predict `targets`."""

    inputs: tuple[int, ...]
    targets: tuple[int, ...]


class Score(NamedTuple):
    """Natural log-likelihood of the targets, and whether each is the likeliest token."""

    log_likelihood: float
    is_greedy: bool


class Scorer:
    """A model on one device, ready to score."""

    def __init__(
        self,
        params: Params,
        config: ModelConfig,
        rope: Rope,
        *,
        compute_dtype: DTypeLike,
        attention_kernel: str = "reference",
        tokens_per_batch: int = TOKENS_PER_BATCH,
        on_progress: Callable[[int, int], None] | None = None,
        watchdog: Watchdog | None = None,
    ) -> None:
        """Prepare the programs.

        Args:
            on_progress: receives the number of finished sequences and their total after each batch.
            watchdog: watches the device.
        """
        self.max_length = config.max_position_embeddings
        self.vocab_size = config.vocab_size
        self._on_progress = on_progress
        self._watchdog = Watchdog("batch") if watchdog is None else watchdog
        self._num_waits = 0
        self._params = params
        self._rows_per_batch = max(1, tokens_per_batch // self.max_length)
        model = config.build()
        frequencies = jnp.asarray(model.frequencies(rope))
        programs = _Programs(model, frequencies, whole(compute_dtype, attention_kernel), compute_dtype)
        self._hidden_states = jax.jit(programs.hidden_states)
        self._score = jax.jit(programs.score)
        self._likeliest = jax.jit(programs.likeliest)

    def score(self, sequences: Sequence[Scored]) -> list[Score]:
        """Return one score a sequence, in order. Equal inputs are computed once."""
        for number, sequence in enumerate(sequences):
            self._check_sequence(sequence, f"sequences[{number}]")
        wanted: dict[tuple[int, ...], list[int]] = {}
        for number, sequence in enumerate(sequences):
            wanted.setdefault(sequence.inputs, []).append(number)
        log_likelihoods = np.zeros(len(sequences), np.float64)
        is_greedy = np.ones(len(sequences), np.bool_)
        num_done = 0
        for batch in _batches(pack(list(wanted), self.max_length), self._rows_per_batch):
            hidden, starts = self._hidden(batch)
            queries: list[tuple[int, int, int, int]] = []  # row, position, target, number of the sequence
            for inputs, (row, start) in starts.items():
                for number in wanted[inputs]:
                    targets = sequences[number].targets
                    first = start + len(inputs) - len(targets)
                    queries.extend((row, first + i, target, number) for i, target in enumerate(targets))
            for begin in range(0, len(queries), QUERIES_PER_BATCH):
                block = np.array(queries[begin : begin + QUERIES_PER_BATCH], np.int32)
                padded = np.zeros((QUERIES_PER_BATCH, 4), np.int32)
                padded[: len(block)] = block
                with self._waiting():
                    found = self._score(self._params, hidden, padded[:, 0], padded[:, 1], padded[:, 2])
                    values, greedy = map(np.asarray, found)
                np.add.at(log_likelihoods, block[:, 3], values.astype(np.float64)[: len(block)])
                np.logical_and.at(is_greedy, block[:, 3], greedy[: len(block)])
            num_done += sum(len(wanted[inputs]) for inputs in starts)
            if self._on_progress:
                self._on_progress(num_done, len(sequences))
        return [Score(float(value), bool(flag)) for value, flag in zip(log_likelihoods, is_greedy, strict=True)]

    def continue_greedily(
        self, prompts: Sequence[tuple[int, ...]], num_tokens: int, is_finished: Callable[[list[int]], bool]
    ) -> list[list[int]]:
        """Return the likeliest next tokens of each prompt, until `is_finished(new tokens)` or `num_tokens`.

        Each new token runs the whole row again, which is exact and simple, and quadratic in the length of the text.
        """
        order = sorted(range(len(prompts)), key=lambda number: (-len(prompts[number]), number))
        texts: list[list[int]] = [[] for _ in prompts]
        for batch in _batches(order, self._rows_per_batch):
            running = list(batch)
            for _ in range(num_tokens):
                if not running:
                    break
                rows = [[(*prompts[number], *texts[number])] for number in running]
                hidden, _ = self._hidden(rows)
                last = np.zeros(self._rows_per_batch, np.int32)
                last[: len(rows)] = [len(row[0]) - 1 for row in rows]
                with self._waiting():
                    tokens = np.asarray(self._likeliest(self._params, hidden, last))
                for number, token in zip(running, tokens, strict=False):
                    texts[number].append(int(token))
                running = [number for number in running if not is_finished(texts[number])]
        return texts

    def _waiting(self) -> contextlib.AbstractContextManager[None]:
        self._num_waits += 1
        return self._watchdog.awaits(self._num_waits)

    def _hidden(
        self, rows: Sequence[Sequence[tuple[int, ...]]]
    ) -> tuple[Float[Array, "row position hidden_size"], dict[tuple[int, ...], tuple[int, int]]]:
        """Return hidden states of packed rows, and where in them each sequence starts."""
        shape = (self._rows_per_batch, self.max_length)
        tokens, segment_ids = np.zeros(shape, np.int32), np.full(shape, PADDING_SEGMENT, np.int32)
        starts = {}
        for row, members in enumerate(rows):
            start = 0
            for segment, inputs in enumerate(members, start=PADDING_SEGMENT + 1):
                tokens[row, start : start + len(inputs)] = inputs
                segment_ids[row, start : start + len(inputs)] = segment
                starts[inputs] = (row, start)
                start += len(inputs)
        return self._hidden_states(self._params, tokens, segment_ids), starts

    def _check_sequence(self, sequence: Scored, name: str) -> None:
        inputs, targets = sequence
        if not 1 <= len(targets) <= len(inputs) <= self.max_length:
            raise ValueError(
                f"{name}: {len(inputs)} input tokens and {len(targets)} targets; use one or more targets, no more "
                f"targets than inputs, and no more inputs than the model's context of {self.max_length} tokens."
            )
        if not all(0 <= token < self.vocab_size for token in (*inputs, *targets)):
            raise ValueError(
                f"{name}: token {max(*inputs, *targets)} is above the model's vocab_size of {self.vocab_size}; "
                "use the tokenizer that the model was trained with."
            )


class _Programs(NamedTuple):
    """The functions that are compiled for one model."""

    model: Model
    frequencies: Array
    computation: Computation
    compute_dtype: DTypeLike

    def hidden_states(
        self, params: Params, tokens: Int32[Array, "row position"], segment_ids: Int32[Array, "row position"]
    ) -> Float[Array, "row position hidden_size"]:
        with matmul_precision(self.compute_dtype):
            states = self.model.states(params, tokens, segment_ids, self.frequencies, computation=self.computation)
            return states.hidden.reshape(*tokens.shape, -1)

    def score(
        self,
        params: Params,
        hidden: Float[Array, "row position hidden_size"],
        row: Int32[Array, "query"],
        position: Int32[Array, "query"],
        target: Int32[Array, "query"],
    ) -> tuple[Float32[Array, "query"], Bool[Array, "query"]]:
        """Return the log-likelihood of each target, and whether it is the likeliest token."""
        values = self._logits(params, hidden, row, position)
        chosen = jnp.take_along_axis(values, target[:, None], axis=-1)[:, 0]
        return chosen - jax.nn.logsumexp(values, axis=-1), jnp.argmax(values, axis=-1) == target

    def likeliest(
        self, params: Params, hidden: Float[Array, "row position hidden_size"], position: Int32[Array, "row"]
    ) -> Int32[Array, "row"]:
        """Return the likeliest next token after a position of each row."""
        return jnp.argmax(self._logits(params, hidden, jnp.arange(position.size), position), axis=-1)

    def _logits(
        self,
        params: Params,
        hidden: Float[Array, "row position hidden_size"],
        row: Int32[Array, "query"],
        position: Int32[Array, "query"],
    ) -> Float32[Array, "query vocab_size"]:
        with matmul_precision(self.compute_dtype):
            head = self.model.head(params, computation=self.computation)
            return jnp.einsum("qh,hv->qv", hidden[row, position], head, preferred_element_type=jnp.float32)


def pack(sequences: Sequence[tuple[int, ...]], row_length: int) -> list[list[tuple[int, ...]]]:
    """Return rows of at most `row_length` tokens: the longest first, each in the fullest row with room for it."""
    rows: list[list[tuple[int, ...]]] = []
    rows_by_space: list[list[int]] = [[] for _ in range(row_length + 1)]
    for sequence in sorted(sequences, key=lambda tokens: (-len(tokens), tokens)):
        space = next((space for space in range(len(sequence), row_length + 1) if rows_by_space[space]), None)
        if space is None:
            space = row_length
            rows.append([])
            rows_by_space[space].append(len(rows) - 1)
        index = rows_by_space[space].pop()
        rows[index].append(sequence)
        rows_by_space[space - len(sequence)].append(index)
    return rows


def _batches(items: Sequence[ItemT], size: int) -> Iterator[Sequence[ItemT]]:
    return (items[begin : begin + size] for begin in range(0, len(items), size))
