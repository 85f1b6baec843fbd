"""KernelShape: what a device gives its kernels, which, as block sizes, are chosen by it. It loads no JAX."""

from typing import NamedTuple

from runtime.model.config import LlamaConfig


class KernelShape(NamedTuple):
    """All that a choice of kernels and block sizes depends on."""

    platform: str
    """ "cpu", "gpu" or "tpu"."""
    device_kind: str
    """As JAX calls it; a GPU also as Ray does."""
    head_dim: int
    stretch: int
    """Tokens of a row that a device holds."""
    first_row: int
    """Position at which the last stretch begins."""
    hidden_size: int
    vocab_size: int
    num_tokens: int
    """Of a micro-batch, whose losses a device computes."""
    compute_dtype: str
    """ "bfloat16" or "float32"."""

    @classmethod
    def of(
        cls,
        platform: str,
        device_kind: str,
        model: LlamaConfig,
        *,
        num_devices: int,
        num_rows: int,
        sequence_length: int,
        compute_dtype: str,
        context_parallel: int = 1,
        num_microbatches: int = 1,
    ) -> "KernelShape":
        """Of a step over `num_rows` sequences on all devices together, which need not be there."""
        stretch = sequence_length // context_parallel
        return cls(
            platform=platform,
            device_kind=device_kind,
            head_dim=model.head_dim,
            stretch=stretch,
            first_row=sequence_length - stretch,
            hidden_size=model.hidden_size,
            vocab_size=model.vocab_size,
            num_tokens=num_rows * sequence_length // num_devices // num_microbatches,
            compute_dtype=compute_dtype,
        )

    @property
    def item_bytes(self) -> int:
        """Of a number that is computed with."""
        return 2 if self.compute_dtype == "bfloat16" else 4
