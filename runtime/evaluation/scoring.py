"""Scoring: log-likelihoods of many token sequences, by programs of a few shapes.

Sequences that share a context run it once (`packing`). The head runs at scored positions only, since prompts are long
and answers short. Rows and their batches depend on the sequences alone: an attempt that resumes leaves out whole
batches, and its scores are bitwise those of an undisturbed one.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int32

from runtime.evaluation.answers import Answers, answer_key
from runtime.evaluation.device_memory import QUERIES_PER_BATCH
from runtime.evaluation.packing import Group, Place, arranged, batches, groups, pack, row_length
from runtime.evaluation.placed_model import BY_DEVICE, ModelProgram, PlacedModel
from runtime.model.cache import PackedRows
from runtime.model.model import Params

TOKENS_PER_BATCH = 4_096
FEW_QUERIES = 128
"""Scored positions of the program for batches with few of them."""

OnProgress = Callable[[int, int], None]
"""Receives how many requests are done, of how many."""


class Scored(NamedTuple):
    """Model input with the tokens to score: the last `len(targets)` positions predict `targets`."""

    inputs: tuple[int, ...]
    targets: tuple[int, ...]


class Score(NamedTuple):
    """Natural log-likelihood of the targets, and whether each is the likeliest token."""

    log_likelihood: float
    is_greedy: bool


class _Query(NamedTuple):
    """A position to score."""

    row: int
    position: int
    target: int
    sequence: int


class Scorer:
    """Scores sequences with a model.

    Args:
        model: the placed model.
        tokens_per_batch: tokens of a batch on each device.
        answers: scores that an earlier attempt found, and where new ones are kept.
        on_progress: called after each batch.
    """

    def __init__(
        self,
        model: PlacedModel,
        *,
        tokens_per_batch: int = TOKENS_PER_BATCH,
        answers: Answers | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        self._model = model
        self.max_length = model.config.max_position_embeddings
        self._tokens_per_batch = tokens_per_batch
        self._answers = Answers() if answers is None else answers
        self._on_progress = on_progress
        self._hidden_states = model.program(hidden_states, (BY_DEVICE,), BY_DEVICE)
        self._log_likelihoods = model.program(log_likelihoods, (BY_DEVICE, BY_DEVICE), (BY_DEVICE, BY_DEVICE))

    def score(self, sequences: Sequence[Scored]) -> list[Score]:
        """Return one score a sequence, in order. Equal sequences are computed once."""
        for number, sequence in enumerate(sequences):
            self._check(f"sequences[{number}]", sequence)
        keys = [answer_key("score", *sequence) for sequence in sequences]
        numbers = {key: number for number, key in reversed([*enumerate(keys)])}
        wanted: dict[tuple[int, ...], dict[tuple[int, ...], list[int]]] = {}
        for number in sorted(numbers.values()):
            inputs, targets = sequences[number]
            split = len(inputs) - len(targets) + 1
            wanted.setdefault(inputs[:split], {}).setdefault(inputs[split:], []).append(number)
        tails = {context: list(of_context) for context, of_context in wanted.items()}
        rows = pack(list(groups(tails, row_length(self.max_length))))
        num_done = 0
        for num_rows, batch in batches(rows, tokens_per_batch=self._tokens_per_batch, devices=self._model.num_devices):
            packed, places = arranged(batch, num_rows)
            members = [number for group, _ in places for tail in group.tails for number in wanted[group.context][tail]]
            if not all(keys[number] in self._answers for number in members):
                queries = [query for group, place in places for query in _queries(group, place, wanted, sequences)]
                for number, score in self._scores(packed, queries).items():
                    if keys[number] not in self._answers:  # another layout of batches may have answered some
                        self._answers.keep(keys[number], score)
            num_done += len(members)
            self._answers.flush(now=num_done == len(numbers))
            if self._on_progress:
                self._on_progress(num_done, len(numbers))
        return [Score(*answer) for answer in self._answers.take(keys)]

    def _check(self, name: str, sequence: Scored) -> None:
        inputs, targets = sequence
        if not 1 <= len(targets) <= len(inputs) <= self.max_length:
            raise ValueError(
                f"{name}: {len(inputs)} input tokens and {len(targets)} targets; use one or more targets, no more "
                f"targets than inputs, and no more inputs than the model's context of {self.max_length} tokens."
            )
        self._model.check_tokens(name, (*inputs, *targets))

    def _scores(self, packed: PackedRows, queries: Sequence[_Query]) -> dict[int, Score]:
        hidden = self._hidden_states(self._model.by_device(packed))
        rows_by_device = len(packed.tokens) // self._model.num_devices
        shares: list[list[_Query]] = [[] for _ in range(self._model.num_devices)]
        for query in queries:
            shares[query.row // rows_by_device].append(query._replace(row=query.row % rows_by_device))
        log_likelihoods = dict.fromkeys((query.sequence for query in queries), 0.0)
        is_greedy = dict.fromkeys(log_likelihoods, True)
        most = max(map(len, shares))
        for begin in range(0, most, QUERIES_PER_BATCH):
            size = QUERIES_PER_BATCH if most - begin > FEW_QUERIES else FEW_QUERIES
            padded = np.zeros((len(shares), size, 3), np.int32)
            for device, share in enumerate(shares):
                block = share[begin : begin + size]
                padded[device, : len(block)] = np.array([query[:3] for query in block], np.int32).reshape(-1, 3)
            found = self._log_likelihoods(hidden, self._model.by_device(padded.reshape(-1, 3)))
            values, greedy = (part.reshape(len(shares), size) for part in self._model.fetch(found))
            for device, share in enumerate(shares):
                for index, query in enumerate(share[begin : begin + size]):
                    log_likelihoods[query.sequence] += float(values[device, index])
                    is_greedy[query.sequence] &= bool(greedy[device, index])
        return {number: Score(value, is_greedy[number]) for number, value in log_likelihoods.items()}


def _queries(group: Group, place: Place, wanted: Any, sequences: Sequence[Scored]) -> list[_Query]:
    """Return the scored positions of a group: the context's last, then those of each continuation."""
    last = place.context + len(group.context) - 1
    return [
        _Query(place.row, last if index == 0 else start + index - 1, target, number)
        for tail, start in zip(group.tails, place.tails, strict=True)
        for number in wanted[group.context][tail]
        for index, target in enumerate(sequences[number].targets)
    ]


def hidden_states(
    run: ModelProgram, params: Params, frequencies: Any, rows: PackedRows
) -> Float[Array, "rows length hidden"]:
    states, _ = run.model.prefill(params, rows, frequencies, computation=run.computation)
    return states.hidden.reshape(*rows.tokens.shape, -1)


def log_likelihoods(
    run: ModelProgram,
    params: Params,
    frequencies: Any,
    hidden: Float[Array, "rows length hidden"],
    queries: Int32[Array, "queries 3"],
) -> tuple[Float32[Array, "queries"], Bool[Array, "queries"]]:
    """Return the log-likelihood of each target, and whether it is the likeliest token."""
    row, position, target = queries.T
    head = run.model.head(params, computation=run.computation)
    values = jnp.einsum("qh,hv->qv", hidden[row, position], head, preferred_element_type=jnp.float32)
    chosen = jnp.take_along_axis(values, target[:, None], axis=-1)[:, 0]
    return chosen - jax.nn.logsumexp(values, axis=-1), jnp.argmax(values, axis=-1) == target
