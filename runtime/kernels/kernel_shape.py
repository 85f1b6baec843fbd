"""KernelShape: figures of a device's share of a step, by which kernels and block sizes are chosen. No JAX."""

from typing import NamedTuple

from runtime.model.config import ModelConfig


class Devices(NamedTuple):
    """All devices of a step; they need not be here."""

    platform: str
    """ "cpu", "gpu" or "tpu"."""
    kind: str
    """JAX's name of the kind; for a GPU also Ray's."""
    num_devices: int
    context_parallel: int = 1
    """Devices that share each row."""


class KernelShape(NamedTuple):
    """Everything that a choice of kernels and block sizes depends on."""

    platform: str
    device_kind: str
    head_dim: int
    query_length: int
    """Tokens of a row on a device."""
    first_row: int
    """First position of a row's last part."""
    hidden_size: int
    vocab_size: int
    num_tokens: int
    """Tokens of a micro-batch whose losses a device computes."""
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
        """Return the shape of a step over `num_rows` sequences on all devices together."""
        query_length = sequence_length // devices.context_parallel
        return cls(
            platform=devices.platform,
            device_kind=devices.kind,
            head_dim=model.head_dim,
            query_length=query_length,
            first_row=sequence_length - query_length,
            hidden_size=model.hidden_size,
            vocab_size=model.vocab_size,
            num_tokens=num_rows * sequence_length // devices.num_devices // num_microbatches,
            compute_dtype=compute_dtype,
        )

    @property
    def item_bytes(self) -> int:
        """Bytes of a number in the compute dtype."""
        return 2 if self.compute_dtype == "bfloat16" else 4
