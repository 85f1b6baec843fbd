"""Held-out text: windows of several domains and the program that scores them, as often as there are weights to score.

An evaluation scores a phase that has ended with it, and validation a phase that is training, over the same windows.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from runtime.data.cache import TokenCache
from runtime.evaluation.bits_per_byte import BitsPerByte, Windows, bits_per_byte, held_out_windows
from runtime.model.llama import Llama
from runtime.parallel.host_rows import HostRows
from runtime.training.eval_step import EvalStep


class Domain(NamedTuple):
    """What this host reads of one domain."""

    windows: Windows
    token_bytes: Int32[np.ndarray, "vocab_size"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Windows of each domain, in the order of the domains' names."""

    eval_step: EvalStep
    domains: Mapping[str, Domain]
    max_tokens_per_domain: int
    """At most so many of each are in the windows."""
    windows_per_batch: int
    rows: HostRows | None
    """What this host holds of each batch; None on one host."""

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
        domains = {}
        for name, path in sorted(caches.items()):
            cache = TokenCache.open(path)
            windows = held_out_windows(
                cache, sequence_length=sequence_length, max_tokens=max_tokens_per_domain, rows=rows
            )
            domains[name] = Domain(windows, np.asarray(cache.token_bytes))
        return cls(
            eval_step=eval_step,
            domains=domains,
            max_tokens_per_domain=max_tokens_per_domain,
            windows_per_batch=windows_per_batch,
            rows=rows,
        )

    def scores(self, params: Llama) -> Iterator[tuple[str, BitsPerByte]]:
        """Of each domain, one after the other; every host must ask for all of them.

        Raises:
            BitsPerByteError: a domain's windows have no text to predict, or its loss is not finite.
        """
        for name, (windows, token_bytes) in self.domains.items():
            yield (
                name,
                bits_per_byte(
                    self.eval_step,
                    params,
                    windows,
                    token_bytes,
                    windows_per_batch=self.windows_per_batch,
                    rows=self.rows,
                ),
            )
