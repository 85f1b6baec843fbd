"""Held-out text and answers: windows of several domains, and the program that scores weights on them.

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
from typing import Any

import numpy as np

from runtime.evaluation.bits_per_byte import (
    NOTHING_READ,
    PADDING_SEGMENT,
    BitsPerByte,
    BitsPerByteError,
    sums_of_window,
)
from runtime.evaluation.windows import ScoredWindows, WindowSource
from runtime.model.model import Params
from runtime.parallel.hosts import HostRows, whole
from runtime.training.eval_step import EvalStep
from runtime.training.watchdog import Watchdog


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Windows of all domains, in the order of the domains' names."""

    eval_step: EvalStep
    domains: Mapping[str, int]
    """Number of windows of each domain, on all hosts."""
    windows: ScoredWindows
    """This host's rows of each batch, one batch after the other; the last batch is padded."""
    windows_per_batch: int
    rows: HostRows | None
    """This host's rows of a batch; None with one host."""

    @classmethod
    def open(
        cls,
        sources: Mapping[str, WindowSource],
        eval_step: EvalStep,
        *,
        sequence_length: int,
        windows_per_batch: int,
        rows: HostRows | None,
    ) -> "HeldOut":
        """Read this host's windows of each domain."""
        domains = {name: source.num_windows for name, source in sorted(sources.items())}
        num_batches = math.ceil(sum(domains.values()) / windows_per_batch)
        own = np.arange(windows_per_batch) if rows is None else rows.rows
        held = (windows_per_batch * np.arange(num_batches, dtype=np.int64)[:, None] + own).ravel()
        shape = len(held), sequence_length
        padding = np.full(shape, PADDING_SEGMENT, np.int32)
        windows = ScoredWindows(np.zeros(shape, np.int32), padding, np.zeros(shape, np.int32))
        begin = 0
        for name, num_windows in domains.items():
            is_here = (begin <= held) & (held < begin + num_windows)
            for part, read in zip(windows, sources[name].read(held[is_here] - begin), strict=True):
                part[is_here] = read
            begin += num_windows
        return cls(
            eval_step=eval_step, domains=domains, windows=windows, windows_per_batch=windows_per_batch, rows=rows
        )

    @property
    def num_windows(self) -> int:
        """Windows of all domains, on all hosts."""
        return sum(self.domains.values())

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
        names = [name for name, num_windows in self.domains.items() for _ in range(num_windows)]
        found = dict.fromkeys(self.domains, NOTHING_READ)
        for batch in range(self.num_batches):
            with contextlib.nullcontext() if watchdog is None else watchdog.awaits(batch + 1):
                losses, has_target, text_bytes = self._scored(params, batch)
            # Stops at the last window: the rows after it are padding.
            for row, name in enumerate(names[batch * self.windows_per_batch : (batch + 1) * self.windows_per_batch]):
                window = sums_of_window(losses[row], has_target[row], text_bytes[row])
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
        """Return losses, target flags and bytes of text of the whole batch, on each host."""
        num_held = self.windows_per_batch if self.rows is None else len(self.rows.rows)
        held: tuple[Any, ...] = tuple(part[batch * num_held : (batch + 1) * num_held] for part in self.windows)
        if self.rows is not None:
            held = tuple(map(self.rows.placed, held))
        tokens, segment_ids, text_bytes = held
        of_batch: tuple[Any, ...] = (*self.eval_step(params, tokens, segment_ids), text_bytes)
        return tuple(np.asarray(part) if self.rows is None else whole(part) for part in of_batch)
