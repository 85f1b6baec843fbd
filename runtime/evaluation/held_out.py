"""Held-out text: windows of several domains and the program that scores them, as often as there are weights to score.

An evaluation scores a phase that has ended with it, and validation a phase that is training, over the same windows.

Windows of all domains stand in one row, one domain after the other, and the row is cut into batches across the borders
of domains, so that the last batch alone is padded. Batches of each domain by itself would be mostly padding where there
are more chips than a domain has windows.

On several hosts each reads the windows that lie on its own devices, and all of them come to the same sums: what a batch
gave is gathered, and added window by window, in the order of the row.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from runtime.data.cache import TokenCache
from runtime.data.loader import segments
from runtime.evaluation.bits_per_byte import (
    NOTHING_READ,
    PADDING_SEGMENT,
    BitsPerByte,
    BitsPerByteError,
    sums_of_window,
)
from runtime.model.model import Params
from runtime.parallel.host_rows import HostRows
from runtime.parallel.hosts import whole
from runtime.training.eval_step import EvalStep
from runtime.training.watchdog import Watchdog


class Windows(NamedTuple):
    """Equally long windows, padded at the end of the text."""

    tokens: Int32[np.ndarray, "window position"]
    segment_ids: Int32[np.ndarray, "window position"]


class Domain(NamedTuple):
    """What is scored of one domain, on whatever host."""

    num_windows: int
    token_bytes: Int32[np.ndarray, "vocab_size"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Windows of all domains, in the order of the domains' names."""

    eval_step: EvalStep
    domains: Mapping[str, Domain]
    windows: Windows
    """What this host holds of each batch, one batch after the other; all of it on one host. The last is padded."""
    max_tokens_per_domain: int
    """At most so many of each are in the windows."""
    windows_per_batch: int
    rows: HostRows | None
    """Which rows of a batch this host holds; None on one host."""

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
        """Reads the windows of each domain from the token cache of its held-out documents.

        Raises:
            BitsPerByteError: a domain holds nothing out, or not a window fits into `max_tokens_per_domain`.
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
        """Of all domains, on all hosts."""
        return sum(domain.num_windows for domain in self.domains.values())

    @property
    def num_batches(self) -> int:
        """How often the program runs for one set of weights."""
        return math.ceil(self.num_windows / self.windows_per_batch)

    def scores(
        self,
        params: Params,
        *,
        on_batch: Callable[[int], None] = lambda done: None,
        watchdog: Watchdog | None = None,
    ) -> dict[str, BitsPerByte]:
        """Of each domain; every host must ask.

        Args:
            params: placed as the train step leaves them.
            on_batch: told after each batch how many of `num_batches` are done.
            watchdog: watches that the device answers.

        Raises:
            BitsPerByteError: a domain's windows have no text to predict, or its loss is not finite.
        """
        names = [name for name, domain in self.domains.items() for _ in range(domain.num_windows)]
        found = dict.fromkeys(self.domains, NOTHING_READ)
        for batch in range(self.num_batches):
            with contextlib.nullcontext() if watchdog is None else watchdog.awaits(batch + 1):
                losses, has_target, tokens, segment_ids = self._scored(params, batch)
            # Of the last batch no further than the last window: the rows behind it are padding, of no domain.
            for row, name in enumerate(names[batch * self.windows_per_batch : (batch + 1) * self.windows_per_batch]):
                window = sums_of_window(
                    losses[row], has_target[row], tokens[row], segment_ids[row], self.domains[name].token_bytes
                )
                if not math.isfinite(window.bits):
                    raise BitsPerByteError(f"{name}: the loss on held-out text is not finite: the model has diverged.")
                found[name] = found[name].pooled(window)
            on_batch(batch + 1)
        for name, sums in found.items():
            if sums.num_bytes == 0:
                raise BitsPerByteError(
                    f"{name}: the held-out windows hold no predicted byte of text; hold out a larger share."
                )
        return found

    def _scored(self, params: Params, batch: int) -> tuple[np.ndarray, ...]:
        """Losses, whether there is a target, tokens and segment ids: of the whole batch, on each host."""
        num_held = self.windows_per_batch if self.rows is None else len(self.rows.rows)
        held = slice(batch * num_held, (batch + 1) * num_held)
        tokens: Any = self.windows.tokens[held]
        segment_ids: Any = self.windows.segment_ids[held]
        if self.rows is not None:
            tokens, segment_ids = self.rows.placed(tokens), self.rows.placed(segment_ids)
        of_batch: tuple[Any, ...] = (*self.eval_step(params, tokens, segment_ids), tokens, segment_ids)
        return tuple(np.asarray(part) if self.rows is None else whole(part) for part in of_batch)


def window_starts(cache: TokenCache, *, sequence_length: int, max_tokens: int) -> Int64[np.ndarray, "window"]:
    """Where the windows of a domain begin: at most `max_tokens` tokens, spread evenly over the cache; always the same.

    Windows begin at multiples of `sequence_length`, so that with room enough every token lies in one.

    Raises:
        BitsPerByteError: there is no text, or no room for a window.
    """
    if cache.num_tokens == 0:
        raise BitsPerByteError(f"{cache.path}: no held-out tokens; hold out a larger share of the source.")
    num_there = math.ceil(cache.num_tokens / sequence_length)
    num_windows = min(num_there, max_tokens // sequence_length)
    if num_windows == 0:
        raise BitsPerByteError(
            f"max_tokens_per_domain is {max_tokens}, less than one window of {sequence_length} tokens; give it more."
        )
    return (np.arange(num_windows, dtype=np.int64) * num_there // num_windows) * sequence_length


def read_windows(cache: TokenCache, starts: Int64[np.ndarray, "window"], sequence_length: int) -> Windows:
    """The windows that begin at `starts`; one that begins less than its length before the end of the text is padded."""
    tokens = np.zeros((len(starts), sequence_length), np.int32)
    segment_ids = np.full((len(starts), sequence_length), PADDING_SEGMENT, np.int32)
    is_whole = starts + sequence_length <= cache.num_tokens
    whole_windows = cache.read_windows(starts[is_whole], sequence_length)
    tokens[is_whole], segment_ids[is_whole] = whole_windows, segments(whole_windows, cache.eos_token_id)
    for index in np.flatnonzero(~is_whole):  # at most one: the end of the text
        rest = cache.read(int(starts[index]), int(cache.num_tokens - starts[index]))[None]
        tokens[index, : rest.size], segment_ids[index, : rest.size] = rest, segments(rest, cache.eos_token_id)
    return Windows(tokens, segment_ids)
