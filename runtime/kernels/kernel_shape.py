"""KernelShape: what a device gives its kernels, which, as block sizes, are chosen by it. It loads no JAX."""

from typing import NamedTuple

from runtime.model.config import ModelConfig


class Devices(NamedTuple):
    """All that compute a step together; they need not be there."""

    platform: str
    """ "cpu", "gpu" or "tpu"."""
    kind: str
    """As JAX calls it; a GPU also as Ray does."""
    num_devices: int
    context_parallel: int = 1
    """How many share each row."""


class KernelShape(NamedTuple):
    """All that a choice of kernels and block sizes depends on."""

    platform: str
    device_kind: str
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
        devices: Devices,
        model: ModelConfig,
        *,
        num_rows: int,
        sequence_length: int,
        compute_dtype: str,
        num_microbatches: int = 1,
    ) -> "KernelShape":
        """Of a step over `num_rows` sequences on all devices together."""
        stretch = sequence_length // devices.context_parallel
        return cls(
            platform=devices.platform,
            device_kind=devices.kind,
            head_dim=model.head_dim,
            stretch=stretch,
            first_row=sequence_length - stretch,
            hidden_size=model.hidden_size,
            vocab_size=model.vocab_size,
            num_tokens=num_rows * sequence_length // devices.num_devices // num_microbatches,
            compute_dtype=compute_dtype,
        )

    @property
    def item_bytes(self) -> int:
        """Of a number that is computed with."""
        return 2 if self.compute_dtype == "bfloat16" else 4
