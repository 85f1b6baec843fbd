"""Shape of a Llama, as plain values: importable without JAX, so that a plan can read it."""

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Literal

from runtime.model.config import Rope
from runtime.model.initialization import FIXED, Initialization

if TYPE_CHECKING:
    from runtime.model.llama.model import Llama


@dataclasses.dataclass(frozen=True)
class LlamaConfig:
    """Everything that fixes the shapes of the parameters; names follow Hugging Face's `LlamaConfig`."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-5
    initialization: Initialization = FIXED
    tie_word_embeddings: bool = False
    use_qk_norm: bool = False
    architecture: Literal["llama"] = "llama"

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("architecture", "initialization"):
                continue
            if not isinstance(value, int | float):  # before the comparison, whose own error names no field
                raise ValueError(f"LlamaConfig.{field.name} is {value!r}; use a number.")
            if not isinstance(value, bool) and not value > 0:
                raise ValueError(f"LlamaConfig.{field.name} is {value}; use a number above 0.")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"LlamaConfig.num_key_value_heads is {self.num_key_value_heads}, which does not divide "
                f"num_attention_heads ({self.num_attention_heads}); use a divisor, so that each serves a whole group."
            )
        if self.head_dim % 2:
            raise ValueError(
                f"LlamaConfig.head_dim is {self.head_dim}; use an even number: rotary embedding turns pairs."
            )

    def check_divides(self, *, copy_size: int, model_axis: int) -> None:
        """Raise ValueError where `copy_size` devices, `model_axis` of them side by side, cannot share a copy."""
        if self.hidden_size % copy_size:
            able = math.gcd(self.hidden_size, copy_size)
            raise ValueError(
                f"LlamaConfig.hidden_size is {self.hidden_size}, which the {copy_size} devices of the data, context "
                f"and model axes do not divide; at most {able} of them can share a copy of the parameters. Use "
                f"other machines, or in a phase {copy_size // able} times the replica_parallel."
            )
        for field in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
            if getattr(self, field) % model_axis:
                raise ValueError(
                    f"LlamaConfig.{field} is {getattr(self, field)}, which the model axis of {model_axis} devices "
                    "does not divide; use a smaller model_parallel."
                )

    @property
    def title(self) -> str:
        """Name of the architecture in a model card."""
        return "Llama with query and key norms (in Hugging Face's names a Qwen3)" if self.use_qk_norm else "Llama"

    @property
    def num_parameters(self) -> int:
        """Exact count, as the sum over all tensors (8,030,261,248 for Llama-3.1-8B)."""
        norms = 2 * self.hidden_size + (2 * self.head_dim if self.use_qk_norm else 0)
        block = norms + sum(rows * columns for rows, columns in self.layer_matrices)
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_hidden_layers * block + embeddings + self.hidden_size

    @property
    def layer_matrices(self) -> tuple[tuple[int, int], ...]:
        """Shapes of the matrices of one layer, [in, out]: attention, MLP."""
        hidden, wide = self.hidden_size, self.intermediate_size
        queries, keys = (count * self.head_dim for count in (self.num_attention_heads, self.num_key_value_heads))
        attention = (hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden)
        return *attention, (hidden, wide), (hidden, wide), (wide, hidden)

    @property
    def layer_widths(self) -> tuple[int, ...]:
        """Sizes, beside hidden_size, of a layer's matrices: queries, keys and values, MLP."""
        heads = self.num_attention_heads, self.num_key_value_heads
        return (*(count * self.head_dim for count in heads), self.intermediate_size)

    @property
    def num_recomputed_parameters(self) -> int:
        """Parameters of all layers but their last matrices, whose results nothing in the backward pass needs."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        last_matrices = self.num_hidden_layers * self.intermediate_size * self.hidden_size
        return self.num_parameters - embeddings - last_matrices

    def flops_per_token(self, sequence_length: int) -> int:
        """Return training FLOPs (forward and backward) a token, attention counted causally.

        Matrix products cost 6 a parameter; the embedding look-up costs nothing; causal attention costs
        `6 * heads * head_dim * sequence_length` a layer (half of the full square).
        """
        looked_up = 0 if self.tie_word_embeddings else self.vocab_size * self.hidden_size
        attention = 6 * self.num_hidden_layers * self.num_attention_heads * self.head_dim * sequence_length
        return 6 * (self.num_parameters - looked_up) + attention

    def to_huggingface(self, rope: Rope, *, eos_token_id: int, bos_token_id: int | None, dtype: str) -> dict[str, Any]:
        """Return the document of Hugging Face's config.json."""
        from runtime.model.llama.huggingface import to_config_json

        return to_config_json(self, rope, eos_token_id=eos_token_id, bos_token_id=bos_token_id, dtype=dtype)

    def build(self) -> "Llama":
        """Return the model of this shape; loads JAX."""
        from runtime.model.llama.model import Llama

        return Llama(self)
