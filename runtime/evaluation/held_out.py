"""Held-out text: windows of several domains, and the program that scores weights on them.

Evaluations of finished phases and validations of running ones use the same windows. The windows of all domains form
one sequence, which is cut into batches across domains, so that only the last batch is padded. Batches of single
domains would be mostly padding where there are more chips than windows of a domain.

With several hosts, each reads the windows on its own devices, and all reach the same sums: results are gathered and
added window by window, in order.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from runtime.data.cache import TokenCache
from runtime.data.order import segments
from runtime.evaluation.bits_per_byte import (
    NOTHING_READ,
    PADDING_SEGMENT,
    BitsPerByte,
    BitsPerByteError,
    sums_of_window,
)
from runtime.model.model import Params
from runtime.parallel.hosts import HostRows, whole
from runtime.training.eval_step import EvalStep
from runtime.training.watchdog import Watchdog


class Windows(NamedTuple):
    """Windows of equal length, padded at the end of the text."""

    tokens: Int32[np.ndarray, "window position"]
    segment_ids: Int32[np.ndarray, "window position"]


class Domain(NamedTuple):
    """The windows of one domain, on all hosts."""

    num_windows: int
    token_bytes: Int32[np.ndarray, "vocab_size"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Windows of all domains, in the order of the domains' names."""

    eval_step: EvalStep
    domains: Mapping[str, Domain]
    windows: Windows
    """This host's rows of each batch, one batch after the other; the last batch is padded."""
    max_tokens_per_domain: int
    """Most tokens of each domain in the windows."""
    windows_per_batch: int
    rows: HostRows | None
    """This host's rows of a batch; None with one host."""

    @classmethod
    def open(
        cls,
        caches: Mapping[str, str],
        eval_step: EvalStep,
        *,
        sequence_length: int,
        max_tokens_per_domain: int,
        windows_per_batch: int,
        rows: HostRows | None,
    ) -> "HeldOut":
        """Read the windows of each domain from the token cache of its held-out documents.

        Raises:
            BitsPerByteError: a domain has no held-out text, or `max_tokens_per_domain` is less than a window.
        """
        opened = {name: TokenCache.open(path) for name, path in sorted(caches.items())}
        starts = {
            name: window_starts(cache, sequence_length=sequence_length, max_tokens=max_tokens_per_domain)
            for name, cache in opened.items()
        }
        num_batches = math.ceil(sum(map(len, starts.values())) / windows_per_batch)
        own = np.arange(windows_per_batch) if rows is None else rows.rows
        held = (windows_per_batch * np.arange(num_batches, dtype=np.int64)[:, None] + own).ravel()
        shape = len(held), sequence_length
        windows = Windows(np.zeros(shape, np.int32), np.full(shape, PADDING_SEGMENT, np.int32))
        begin = 0
        for name, cache in opened.items():
            end = begin + len(starts[name])
            is_here = (begin <= held) & (held < end)
            read = read_windows(cache, starts[name][held[is_here] - begin], sequence_length)
            windows.tokens[is_here], windows.segment_ids[is_here] = read
            begin = end
        return cls(
            eval_step=eval_step,
            domains={name: Domain(len(starts[name]), np.asarray(cache.token_bytes)) for name, cache in opened.items()},
            windows=windows,
            max_tokens_per_domain=max_tokens_per_domain,
            windows_per_batch=windows_per_batch,
            rows=rows,
        )

    @property
    def num_windows(self) -> int:
        """Windows of all domains, on all hosts."""
        return sum(domain.num_windows for domain in self.domains.values())

    @property
    def num_batches(self) -> int:
        """Runs of the program for one set of weights."""
        return math.ceil(self.num_windows / self.windows_per_batch)

    def scores(
        self,
        params: Params,
        *,
        on_batch: Callable[[int], None] = lambda done: None,
        watchdog: Watchdog | None = None,
    ) -> dict[str, BitsPerByte]:
        """Return the score of each domain; every host must call it.

        Args:
            params: sharded as in the train step.
            on_batch: receives the number of finished batches after each batch.
            watchdog: watches the device.

        Raises:
            BitsPerByteError: the windows of a domain have no text to predict, or its loss is not finite.
        """
        names = [name for name, domain in self.domains.items() for _ in range(domain.num_windows)]
        found = dict.fromkeys(self.domains, NOTHING_READ)
        for batch in range(self.num_batches):
            with contextlib.nullcontext() if watchdog is None else watchdog.awaits(batch + 1):
                losses, has_target, tokens, segment_ids = self._scored(params, batch)
            # Stops at the last window: the rows after it are padding.
            for row, name in enumerate(names[batch * self.windows_per_batch : (batch + 1) * self.windows_per_batch]):
                window = sums_of_window(
                    losses[row], has_target[row], tokens[row], segment_ids[row], self.domains[name].token_bytes
                )
                if not math.isfinite(window.bits):
                    raise BitsPerByteError(f"{name}: the loss on held-out text is not finite; the model has diverged.")
                found[name] = found[name].pooled(window)
            on_batch(batch + 1)
        for name, sums in found.items():
            if sums.num_bytes == 0:
                raise BitsPerByteError(
                    f"{name}: the held-out windows have no text to predict; hold out a larger share of the source."
                )
        return found

    def _scored(self, params: Params, batch: int) -> tuple[np.ndarray, ...]:
        """Return losses, target flags, tokens and segment ids of the whole batch, on each host."""
        num_held = self.windows_per_batch if self.rows is None else len(self.rows.rows)
        held = slice(batch * num_held, (batch + 1) * num_held)
        tokens: Any = self.windows.tokens[held]
        segment_ids: Any = self.windows.segment_ids[held]
        if self.rows is not None:
            tokens, segment_ids = self.rows.placed(tokens), self.rows.placed(segment_ids)
        of_batch: tuple[Any, ...] = (*self.eval_step(params, tokens, segment_ids), tokens, segment_ids)
        return tuple(np.asarray(part) if self.rows is None else whole(part) for part in of_batch)


def window_starts(cache: TokenCache, *, sequence_length: int, max_tokens: int) -> Int64[np.ndarray, "window"]:
    """Return the starts of windows of at most `max_tokens` in all, spread evenly over the cache; always the same.

    Windows start at multiples of `sequence_length`, so that a large enough `max_tokens` covers every token.

    Raises:
        BitsPerByteError: there is no text, or `max_tokens` is less than a window.
    """
    if cache.num_tokens == 0:
        raise BitsPerByteError(f"{cache.path}: no held-out tokens; hold out a larger share of the source.")
    num_there = math.ceil(cache.num_tokens / sequence_length)
    num_windows = min(num_there, max_tokens // sequence_length)
    if num_windows == 0:
        raise BitsPerByteError(
            f"max_tokens_per_domain is {max_tokens}, less than one window of {sequence_length} tokens; raise it."
        )
    return (np.arange(num_windows, dtype=np.int64) * num_there // num_windows) * sequence_length


def read_windows(cache: TokenCache, starts: Int64[np.ndarray, "window"], sequence_length: int) -> Windows:
    """Return the windows at `starts`; a window that reaches past the end of the text is padded."""
    tokens = np.zeros((len(starts), sequence_length), np.int32)
    segment_ids = np.full((len(starts), sequence_length), PADDING_SEGMENT, np.int32)
    is_whole = starts + sequence_length <= cache.num_tokens
    whole_windows = cache.read_windows(starts[is_whole], sequence_length)
    tokens[is_whole], segment_ids[is_whole] = whole_windows, segments(whole_windows, cache.eos_token_id)
    for index in np.flatnonzero(~is_whole):  # at most one: the end of the text
        rest = cache.read(int(starts[index]), int(cache.num_tokens - starts[index]))[None]
        tokens[index, : rest.size], segment_ids[index, : rest.size] = rest, segments(rest, cache.eos_token_id)
    return Windows(tokens, segment_ids)
