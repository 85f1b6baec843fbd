"""Token predictions: what weights expect at each token of a few held-out windows, which the heat map shows.

A sample depends on the text alone: the windows of a domain with the smallest hashes, so that every phase and fork with
the same held-out text predicts the same tokens. Predictions read the weights and change nothing.
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Float32, Int32

from runtime.data.cache import TokenCache
from runtime.evaluation.bits_per_byte import PADDING_SEGMENT
from runtime.evaluation.windows import Windows, read_windows, window_starts
from runtime.model.computation import Computation, matmul_precision
from runtime.model.config import ModelConfig, Rope
from runtime.model.model import Params
from runtime.model.placement import check_placement
from runtime.parallel.hosts import HostRows, whole
from runtime.training.eval_step import forward_program
from runtime.training.objective import computation_on, next_tokens
from runtime.training.watchdog import Watchdog

CANDIDATES_PER_DOMAIN = 64
"""Windows of a domain, evenly spread, that a sample is chosen from."""
NUM_LIKELY = 3
TOKENS_PER_BLOCK = 256
"""Tokens whose logits are in memory at once: 131 MB at a vocabulary of 128,256."""


class Predictions(NamedTuple):
    """Predictions of the token after each position; undefined where `has_target` is false."""

    has_target: Bool[Array | np.ndarray, "batch sequence"]
    log_prob: Float32[Array | np.ndarray, "batch sequence"]
    """Natural logarithm of the token's probability."""
    rank: Int32[Array | np.ndarray, "batch sequence"]
    """Number of likelier tokens."""
    entropy: Float32[Array | np.ndarray, "batch sequence"]
    """Entropy of the prediction, in nats."""
    likely: Int32[Array | np.ndarray, "batch sequence likely"]
    """The likeliest tokens."""
    likely_log_prob: Float32[Array | np.ndarray, "batch sequence likely"]


PredictionStep = Callable[[Params, Any, Any], Predictions]


def build_prediction_step(
    config: ModelConfig, rope: Rope, mesh: Mesh, *, attention_kernel: str, compute_dtype: jax.typing.DTypeLike
) -> PredictionStep:
    """Return `step(params, tokens, segment_ids) -> Predictions`, for parameters sharded as in the train step."""
    check_placement(config, mesh)
    computation = computation_on(mesh, config, attention_kernel=attention_kernel, compute_dtype=compute_dtype)
    frequencies = config.build().frequencies(rope)
    program = _program(config, mesh, computation)
    return lambda params, tokens, segment_ids: program(params, tokens, segment_ids, frequencies)


@functools.cache
def _program(config: ModelConfig, mesh: Mesh, computation: Computation) -> Callable[..., Predictions]:
    spread = computation.spread

    def predict(params: Params, tokens: Array, segment_ids: Array, frequencies: Array) -> Predictions:
        labels, has_target = next_tokens(tokens, segment_ids, spread)
        tokens, segment_ids = computation.order.after((tokens, segment_ids), (labels, has_target), tokens)
        with matmul_precision(computation.compute_dtype):
            states = config.build().states(params, tokens, segment_ids, frequencies, computation=computation)
            predicted = lax.map(
                lambda row: _prediction(states.head, *row),
                (states.hidden, spread.own_tokens(labels.reshape(-1))),
                batch_size=TOKENS_PER_BLOCK,
            )
        gathered = (spread.gather_tokens(part) for part in predicted)
        return Predictions(has_target, *(part.reshape(*tokens.shape, *part.shape[1:]) for part in gathered))

    return forward_program(predict, config, mesh)


def _prediction(
    head: Float[Array, "hidden_size vocab_size"], hidden: Float[Array, "hidden_size"], label: Int32[Array, ""]
) -> tuple[Array, ...]:
    logits = jnp.einsum("h,hv->v", hidden, head, preferred_element_type=jnp.float32)
    log_probs = jax.nn.log_softmax(logits)
    log_prob = log_probs[label]
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs)
    likely_log_prob, likely = lax.top_k(log_probs, NUM_LIKELY)
    return log_prob, jnp.sum(log_probs > log_prob, dtype=jnp.int32), entropy, likely, likely_log_prob


class Sample(NamedTuple):
    """A few held-out windows, with the domain of each and the digest of its tokens."""

    domains: tuple[str, ...]
    digests: tuple[str, ...]
    windows: Windows


def sample_windows(caches: Mapping[str, str], *, sequence_length: int, windows_per_domain: int) -> Sample:
    """Return windows of each domain's token cache of held-out documents, chosen by the hash of their tokens.

    Raises:
        BitsPerByteError: a domain has no held-out text.
    """
    domains: list[str] = []
    digests: list[str] = []
    chosen: list[Windows] = []
    for domain, path in sorted(caches.items()):
        cache = TokenCache.open(path)
        candidates = CANDIDATES_PER_DOMAIN * sequence_length
        starts = window_starts(cache, sequence_length=sequence_length, max_tokens=candidates)
        windows = read_windows(cache, starts, sequence_length)
        by_digest = {hashlib.sha256(row.tobytes()).hexdigest(): index for index, row in enumerate(windows.tokens)}
        for digest in sorted(by_digest)[:windows_per_domain]:
            domains.append(domain)
            digests.append(digest[:12])
            chosen.append(Windows(*(part[by_digest[digest]] for part in windows)))
    return Sample(tuple(domains), tuple(digests), Windows(*(np.stack(parts) for parts in zip(*chosen, strict=True))))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predictor:
    """A sample, and the program that predicts its tokens."""

    sample: Sample
    step: PredictionStep
    windows_per_batch: int
    """Windows of a call on all hosts; divides over the devices."""
    rows: HostRows | None
    """This host's rows of a batch; None with one host."""
    watchdog: Watchdog = dataclasses.field(default_factory=lambda: Watchdog("batch of the heat map"))

    def predict(self, params: Params) -> Predictions:
        """Return predictions of the whole sample in host memory; every host must call it."""
        size = self.windows_per_batch
        num_windows = len(self.sample.domains)
        padding = (0, -num_windows % size), (0, 0)
        tokens = np.pad(self.sample.windows.tokens, padding)
        segment_ids = np.pad(self.sample.windows.segment_ids, padding, constant_values=PADDING_SEGMENT)
        found = []
        for batch in range(math.ceil(num_windows / size)):
            rows: Any = slice(batch * size, (batch + 1) * size)
            parts: tuple[Any, ...] = (tokens[rows], segment_ids[rows])
            if self.rows is not None:
                parts = tuple(self.rows.placed(part[self.rows.rows]) for part in parts)
            with self.watchdog.watching(), self.watchdog.awaits(batch + 1):
                predicted = self.step(params, *parts)
                found.append(
                    [np.asarray(part) if self.rows is None else whole(jnp.asarray(part)) for part in predicted]
                )
        return Predictions(*(np.concatenate(parts)[:num_windows] for parts in zip(*found, strict=True)))

    def table(self, step: int, consumed_tokens: int, predictions: Mapping[str, Predictions]) -> pa.Table:
        """Return a row for each token of each window under each set of weights.

        Columns: step, consumed_tokens, weights, domain, window (digest), position, token, log_prob (null where a token
        is not predicted: the first of a document or window), rank, entropy, likely, likely_log_prob.
        """
        return pa.concat_tables(
            self._table_of_weights(step, consumed_tokens, which, predicted) for which, predicted in predictions.items()
        )

    def _table_of_weights(self, step: int, consumed_tokens: int, which: str, predicted: Predictions) -> pa.Table:
        tokens, segment_ids = self.sample.windows
        num_windows, length = tokens.shape
        # Position i predicts token i + 1: shift by one, so that a row holds a token and the prediction of it.
        shifted = Predictions(*(np.roll(np.asarray(part), 1, axis=1) for part in predicted))
        is_predicted = shifted.has_target.copy()
        is_predicted[:, 0] = False
        unknown = ~is_predicted.ravel()
        flat = {name: np.asarray(part).reshape(tokens.size, -1) for name, part in shifted._asdict().items()}
        numbers = {name: pa.array(flat[name][:, 0], mask=unknown) for name in ("log_prob", "rank", "entropy")}
        lists = {name: _lists(flat[name], np.asarray(unknown)) for name in ("likely", "likely_log_prob")}
        table = pa.table(
            {
                "step": np.full(tokens.size, step, np.int64),
                "consumed_tokens": np.full(tokens.size, consumed_tokens, np.int64),
                "weights": _repeated_each((which,), tokens.size),
                "domain": _repeated_each(self.sample.domains, length),
                "window": _repeated_each(self.sample.digests, length),
                "position": np.tile(np.arange(length, dtype=np.int32), num_windows),
                "token": tokens.ravel(),
                **numbers,
                **lists,
            }
        )
        return table.filter(pa.array(segment_ids.ravel() >= 0))


def _repeated_each(texts: Iterable[str], times: int) -> pa.DictionaryArray:
    # By value: a dictionary that holds a text twice is written as its memory happens to lie.
    return pa.array([text for text in texts for _ in range(times)]).dictionary_encode()


def _lists(values: np.ndarray, unknown: np.ndarray) -> pa.FixedSizeListArray:
    # Zeros, since undefined values may differ between equal runs.
    known = np.where(unknown[:, None], 0, values).astype(values.dtype)
    return pa.FixedSizeListArray.from_arrays(pa.array(known.ravel()), values.shape[1])
