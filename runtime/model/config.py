"""Shape of a Llama and its rotary embedding, as plain values: importable without JAX, so that a plan can read them."""

import dataclasses
import math


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
                raise ValueError(f"RopeScaling.{field.name} is {getattr(self, field.name)}; take more than 0.")
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"RopeScaling.low_freq_factor is {self.low_freq_factor} and high_freq_factor {self.high_freq_factor}; "
                "between the two the stretch grows, so the first is the smaller."
            )


@dataclasses.dataclass(frozen=True)
class Rope:
    """Rotary position embedding (arXiv:2104.09864), plain or with Llama-3 scaling."""

    rope_theta: float
    scaling: RopeScaling | None = None

    def __post_init__(self) -> None:
        if not 1 < self.rope_theta < math.inf:
            raise ValueError(f"Rope.rope_theta is {self.rope_theta}; the base of the wavelengths is more than 1.")


LLAMA2_ROPE = Rope(rope_theta=10_000.0)
LLAMA3_ROPE = Rope(
    rope_theta=500_000.0,
    scaling=RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192),
)


@dataclasses.dataclass(frozen=True)
class LlamaConfig:
    """Everything that fixes the shapes of the parameters; names follow Hugging Face's `LlamaConfig`.

    The rotary embedding is not here: it has no parameters, and a recipe may change it between phases.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-5
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False
    use_qk_norm: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int | float):  # before it is compared: Python's own words for that name no field
                raise ValueError(f"LlamaConfig.{field.name} is {value!r}; it must be a number.")
            if not isinstance(value, bool) and not value > 0:
                raise ValueError(f"LlamaConfig.{field.name} is {value}; take more than 0.")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"LlamaConfig.num_key_value_heads is {self.num_key_value_heads}, which does not divide "
                f"num_attention_heads = {self.num_attention_heads}; every key-value head serves a whole group."
            )
        if self.head_dim % 2:
            raise ValueError(
                f"LlamaConfig.head_dim is {self.head_dim}; rotary embedding turns pairs, so it must be even."
            )

    def refuse_undivided(self, *, copy_size: int, model_axis: int) -> None:
        """Raises where `copy_size` devices, `model_axis` of them beside each other, cannot share the parameters."""
        if self.hidden_size % copy_size:
            able = math.gcd(self.hidden_size, copy_size)
            raise ValueError(
                f"LlamaConfig.hidden_size is {self.hidden_size}, which the data, context and model axes of "
                f"{copy_size} devices do not divide; at most {able} of them can share a copy of the parameters: take "
                f"{copy_size // able} times the replica_parallel where the machines can be cut like that, or others."
            )
        for field in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
            if getattr(self, field) % model_axis:
                raise ValueError(
                    f"LlamaConfig.{field} is {getattr(self, field)}, which the model axis of {model_axis} devices "
                    "does not divide; choose a smaller one, and give the other devices to data or context."
                )

    @property
    def num_parameters(self) -> int:
        """Exact count, as the sum over all tensors (8,030,261,248 for Llama-3.1-8B)."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_attention_heads + 2 * self.num_key_value_heads)
        qk_norm = 2 * self.head_dim if self.use_qk_norm else 0
        block = attention + qk_norm + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_hidden_layers * block + embeddings + self.hidden_size

    def flops_per_token(self, sequence_length: int) -> int:
        """Training FLOPs (forward and backward) a token, attention counted causally.

        Matrix products cost 6 a parameter; the embedding look-up costs nothing; causal attention costs
        `6 * heads * head_dim * sequence_length` a layer (half of the full square).
        """
        looked_up = 0 if self.tie_word_embeddings else self.vocab_size * self.hidden_size
        attention = 6 * self.num_hidden_layers * self.num_attention_heads * self.head_dim * sequence_length
        return 6 * (self.num_parameters - looked_up) + attention
