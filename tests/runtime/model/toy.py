"""A second architecture, as small as the interface allows: an embedding, one scale, a head and an auxiliary loss."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from runtime.model.cache import KeyValueCache, PackedRows
from runtime.model.computation import Computation
from runtime.model.config import Rope
from runtime.model.initialization import Initialization
from runtime.model.layers import first_values
from runtime.model.model import Frequencies, Head, States, Tensor, Tokens

WIDE = Initialization(factor=0.5)


@dataclasses.dataclass(frozen=True)
class ToyConfig:
    """Shape of a `Toy`."""

    vocab_size: int = 16
    hidden_size: int = 8
    num_hidden_layers: int = 1
    num_attention_heads: int = 1
    num_key_value_heads: int = 1
    head_dim: int = 2
    max_position_embeddings: int = 32
    initialization: Initialization = WIDE
    tie_word_embeddings: bool = False
    auxiliary_loss: float | None = None
    is_listed: bool = True
    """Whether the table has a row for the scale."""
    architecture: str = "toy"
    title: str = "toy"
    layer_matrices: tuple[tuple[int, int], ...] = ()
    layer_widths: tuple[int, ...] = ()
    num_recomputed_parameters: int = 0

    @property
    def num_parameters(self) -> int:
        return 2 * self.vocab_size * self.hidden_size + self.hidden_size

    def flops_per_token(self, sequence_length: int) -> int:
        return 6 * self.vocab_size * self.hidden_size

    def check_divides(self, *, copy_size: int, model_axis: int) -> None:
        pass

    def to_huggingface(self, rope: Rope, *, eos_token_id: int, bos_token_id: int | None, dtype: str) -> dict[str, Any]:
        return {"model_type": "toy"}

    def build(self) -> "Toy":
        return Toy(self)


@dataclasses.dataclass(frozen=True)
class Toy:
    """The `Model` of a `ToyConfig`; parameters are a plain dict."""

    config: ToyConfig

    def tensors(self) -> dict[str, Tensor]:
        whole = PartitionSpec()
        table = {
            "embed_tokens": Tensor(whole, is_decayed=False, huggingface_name="embed.weight"),
            "lm_head": Tensor(whole, is_decayed=True, huggingface_name="head.weight", is_transposed=True),
        }
        scale = {"scale": Tensor(whole, is_decayed=False, huggingface_name="scale.weight")}
        return table | scale if self.config.is_listed else table

    def init(self, key: jax.Array) -> dict[str, jax.Array]:
        vocab_size, hidden_size = self.config.vocab_size, self.config.hidden_size
        distribution = self.config.initialization
        return {
            "embed_tokens": first_values(key, "embed_tokens", (vocab_size, hidden_size), distribution, fan_in=1),
            "lm_head": first_values(key, "lm_head", (hidden_size, vocab_size), distribution, fan_in=1),
            "scale": jnp.ones(hidden_size, jnp.float32),
        }

    def frequencies(self, rope: Rope) -> Frequencies:
        return jnp.zeros(1, jnp.float32)

    def states(
        self,
        params: dict[str, jax.Array],
        tokens: Tokens,
        segment_ids: Tokens,
        frequencies: Frequencies,
        *,
        computation: Computation,
    ) -> States:
        parts = {name: computation.gather(name, part) for name, part in params.items()}
        hidden = parts["embed_tokens"][tokens.reshape(-1)] * parts["scale"][None]
        auxiliary = self.config.auxiliary_loss
        loss = None if auxiliary is None else auxiliary * jnp.mean(jnp.square(params["scale"]))
        return States(hidden, parts["lm_head"], loss)

    def prefill(
        self, params: dict[str, jax.Array], rows: PackedRows, frequencies: Frequencies, *, computation: Computation
    ) -> tuple[States, Any]:
        return self.states(params, rows.tokens, rows.tokens, frequencies, computation=computation), ((), ())

    def decode(
        self,
        params: dict[str, jax.Array],
        tokens: jax.Array,
        lengths: jax.Array,
        cache: KeyValueCache,
        frequencies: Frequencies,
        *,
        computation: Computation,
    ) -> tuple[States, KeyValueCache]:
        return self.states(params, tokens[:, None], tokens[:, None], frequencies, computation=computation), cache

    def head(self, params: dict[str, jax.Array], *, computation: Computation) -> Head:
        return computation.gather("lm_head", params["lm_head"])
