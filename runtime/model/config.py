"""Interface of a model's config, and the rotary embedding: plain values without JAX, so that a plan can read them."""

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from runtime.model.initialization import Initialization

if TYPE_CHECKING:
    from runtime.model.model import Model


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """Llama-3 frequency scaling (Llama 3.1 release): long wavelengths are stretched by `factor`."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if not 0 < getattr(self, field.name) < math.inf:
                raise ValueError(
                    f"RopeScaling.{field.name} is {getattr(self, field.name)}; use a finite number above 0."
                )
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"RopeScaling.low_freq_factor is {self.low_freq_factor}, not below high_freq_factor "
                f"{self.high_freq_factor}; swap them or lower the first."
            )


@dataclasses.dataclass(frozen=True)
class Rope:
    """Rotary position embedding (arXiv:2104.09864), plain or with Llama-3 scaling."""

    rope_theta: float
    scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        if not 1 < self.rope_theta < math.inf:
            raise ValueError(f"Rope.rope_theta is {self.rope_theta}; use a finite base above 1, such as 10000.")


LLAMA2_ROPE = Rope(rope_theta=10_000.0)
LLAMA3_ROPE = Rope(
    rope_theta=500_000.0,
    scaling=RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192),
)


@runtime_checkable
class ModelConfig(Protocol):
    """Shape of one architecture; names follow Hugging Face's.

    An implementation is a frozen dataclass of plain values. The rotary embedding is a setting of a phase instead: it
    has no parameters, and a recipe may change it between phases.
    """

    def __hash__(self) -> int: ...

    @property
    def architecture(self) -> str:
        """Key of the config's class in `architectures`."""
        ...

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def num_hidden_layers(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def max_position_embeddings(self) -> int: ...
    @property
    def initialization(self) -> Initialization: ...
    @property
    def tie_word_embeddings(self) -> bool: ...

    @property
    def title(self) -> str:
        """Name of the architecture in a model card."""
        ...

    @property
    def num_parameters(self) -> int: ...

    @property
    def layer_matrices(self) -> tuple[tuple[int, int], ...]:
        """Shapes of the matrices of one layer, [in, out]."""
        ...

    @property
    def layer_widths(self) -> tuple[int, ...]:
        """Sizes, beside hidden_size, of a layer's matrices; the model axis divides each of them."""
        ...

    @property
    def num_recomputed_parameters(self) -> int:
        """Parameters of all layers whose products run again when a layer is rematerialised in full."""
        ...

    def flops_per_token(self, sequence_length: int) -> int:
        """Return training FLOPs (forward and backward) a token, attention counted causally."""
        ...

    def check_divides(self, *, copy_size: int, model_axis: int) -> None:
        """Raise ValueError where `copy_size` devices, `model_axis` of them side by side, cannot share a copy."""
        ...

    def to_huggingface(self, rope: Rope, *, eos_token_id: int, bos_token_id: int | None, dtype: str) -> dict[str, Any]:
        """Return the document of Hugging Face's config.json."""
        ...

    def build(self) -> "Model":
        """Return the model of this shape; loads JAX."""
        ...
