"""Scoring: log-likelihoods and greedy text of many token sequences, by three compiled programs of fixed shape.

Sequences are packed into rows of the model's context length and kept apart by segment ids, so that little is computed
for padding and the shapes do not depend on the tasks. The head is applied at the scored positions only: prompts are
long, answers short. Rotary embedding sees differences of positions alone, so where in a row a sequence lies changes
its log-likelihoods by rounding and no more.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Float32, Int32

from runtime.model.computation import matmul_precision, whole
from runtime.model.config import ModelConfig, Rope
from runtime.model.model import Params
from runtime.training.watchdog import Watchdog

TOKENS_PER_BATCH = 4_096
QUERIES_PER_BATCH = 1_024
PADDING_SEGMENT = 0

ItemT = TypeVar("ItemT")


class Scored(NamedTuple):
    """Model input, and the tokens to score: `targets` are predicted at the last `len(targets)` positions."""

    inputs: tuple[int, ...]
    targets: tuple[int, ...]


class Score(NamedTuple):
    """Natural log-likelihood of the targets, and whether each of them was the likeliest token."""

    log_likelihood: float
    is_greedy: bool


class Scorer:
    """One model on one device, ready to score."""

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
        """`on_progress` is told after each batch how many sequences of how many are done; `watchdog` watches that the
        device answers."""
        self.max_length = config.max_position_embeddings
        self.vocab_size = config.vocab_size
        self._on_progress = on_progress
        self._watchdog = Watchdog("batch") if watchdog is None else watchdog
        self._num_asked = 0
        self._params = params
        model = config.build()
        self._frequencies = jnp.asarray(model.frequencies(rope))
        self._rows_per_batch = max(1, tokens_per_batch // self.max_length)
        computation = whole(compute_dtype, attention_kernel)

        @jax.jit
        def hidden_states(
            params: Params, tokens: Int32[Array, "row position"], segment_ids: Int32[Array, "row position"]
        ) -> Float[Array, "row position hidden_size"]:
            with matmul_precision(compute_dtype):
                states = model.states(params, tokens, segment_ids, self._frequencies, computation=computation)
                return states.hidden.reshape(*tokens.shape, -1)

        def logits(
            params: Params,
            hidden: Float[Array, "row position hidden_size"],
            row: Int32[Array, "query"],
            position: Int32[Array, "query"],
        ) -> Float32[Array, "query vocab_size"]:
            with matmul_precision(compute_dtype):
                head = model.head(params, computation=computation)
                return jnp.einsum("qh,hv->qv", hidden[row, position], head, preferred_element_type=jnp.float32)

        @jax.jit
        def score(
            params: Params,
            hidden: Float[Array, "row position hidden_size"],
            row: Int32[Array, "query"],
            position: Int32[Array, "query"],
            target: Int32[Array, "query"],
        ) -> tuple[Float32[Array, "query"], Bool[Array, "query"]]:
            values = logits(params, hidden, row, position)
            chosen = jnp.take_along_axis(values, target[:, None], axis=-1)[:, 0]
            return chosen - jax.nn.logsumexp(values, axis=-1), jnp.argmax(values, axis=-1) == target

        @jax.jit
        def likeliest(
            params: Params, hidden: Float[Array, "row position hidden_size"], position: Int32[Array, "row"]
        ) -> Int32[Array, "row"]:
            return jnp.argmax(logits(params, hidden, jnp.arange(position.size), position), axis=-1)

        self._hidden_states = hidden_states
        self._score = score
        self._likeliest = likeliest

    def score(self, sequences: Sequence[Scored]) -> list[Score]:
        """One score a sequence, in the order given. Equal inputs are computed once."""
        for number, sequence in enumerate(sequences):
            self._refuse_misfit(sequence, f"sequences[{number}]")
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
                with self._asking():
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
        """The likeliest next tokens of each prompt, until `is_finished(new tokens)` or `num_tokens` of them.

        Each new token runs the whole row again: exact and simple, and quadratic in the length of the text.
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
                with self._asking():
                    tokens = np.asarray(self._likeliest(self._params, hidden, last))
                for number, token in zip(running, tokens, strict=False):
                    texts[number].append(int(token))
                running = [number for number in running if not is_finished(texts[number])]
        return texts

    def _asking(self) -> contextlib.AbstractContextManager[None]:
        """While the device is asked."""
        self._num_asked += 1
        return self._watchdog.awaits(self._num_asked)

    def _hidden(
        self, rows: Sequence[Sequence[tuple[int, ...]]]
    ) -> tuple[Float[Array, "row position hidden_size"], dict[tuple[int, ...], tuple[int, int]]]:
        """Hidden states of packed rows, and where in them each sequence begins."""
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

    def _refuse_misfit(self, sequence: Scored, name: str) -> None:
        inputs, targets = sequence
        if not 1 <= len(targets) <= len(inputs) <= self.max_length:
            raise ValueError(
                f"{name}: {len(inputs)} input tokens and {len(targets)} targets; there must be at least one target, "
                f"no more targets than inputs, and no more inputs than the model's context of {self.max_length}."
            )
        if not all(0 <= token < self.vocab_size for token in (*inputs, *targets)):
            raise ValueError(
                f"{name}: token {max(*inputs, *targets)} is outside of the model's vocab_size of {self.vocab_size}; "
                "this is not the tokenizer that the model was trained with."
            )


def pack(sequences: Sequence[tuple[int, ...]], row_length: int) -> list[list[tuple[int, ...]]]:
    """Rows of at most `row_length` tokens: longest first, each into the fullest row that still holds it."""
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
