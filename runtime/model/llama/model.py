"""Llama (arXiv:2302.13971, 2407.21783): stacked layers run by one `lax.scan`, which compiles in the time of one layer.

Parameters are float32; activations and matrix products have the computation's dtype. Norms, rotary angles, softmax and
loss are float32 whatever it is. Matrices are stored [in, out], the transpose of Hugging Face's.
"""

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Float32, Int32, Key

from runtime.kernels.attention import attend
from runtime.kernels.attention_chunked import chunked_with_prefix
from runtime.kernels.attention_paged import CacheKernel, attend_to_cache, attend_to_pages
from runtime.kernels.shapes import KeyValue, Query, Visibility
from runtime.model.cache import KeyValueCache, Layers, PackedRows, appended
from runtime.model.computation import Computation
from runtime.model.config import Rope
from runtime.model.layers import first_values, over_layers, rms_norm
from runtime.model.llama.config import LlamaConfig
from runtime.model.model import Frequencies, Head, States, Tensor, Tokens
from runtime.model.rotary import inverse_frequencies, rotate, rotation
from runtime.parallel.mesh import COPY_AXES
from runtime.platform.collective_order import CollectiveOrder

Hidden = Float[Array, "tokens hidden_size"]  # batch and sequence as one axis: matrix products in two dimensions
HalfAngles = Float32[Array, "*rows sequence half_head_dim"]
Attention = Callable[[Query, KeyValue, KeyValue, Any], tuple[Query, Any]]
"""Attention of one layer, from query, key, value and the layer's part of `by_layer`; also returns a value to keep.

If a value is carried from layer to layer, the last argument is a pair of value and part, and the next is returned."""

# Each tensor but the QK-norms has a dimension of hidden_size, which one copy's devices split. The other dimension of a
# layer's matrices is split by the model axis, for good: a device computes its own heads and columns.
_FIRST, _SECOND = PartitionSpec(COPY_AXES), PartitionSpec(None, COPY_AXES)
_BUT_MODEL = tuple(axis for axis in COPY_AXES if axis != "model")
_IN, _OUT = PartitionSpec(_BUT_MODEL, "model"), PartitionSpec("model", _BUT_MODEL)


def _norm(name: str, spec: PartitionSpec = _FIRST) -> Tensor:
    return Tensor(spec, is_decayed=False, huggingface_name=f"model.layers.{{layer}}.{name}.weight")


def _matrix(name: str, spec: PartitionSpec) -> Tensor:
    return Tensor(spec, True, huggingface_name=f"model.layers.{{layer}}.{name}.weight", is_transposed=True)


_TENSORS = {
    "embed_tokens": Tensor(_SECOND, is_decayed=False, huggingface_name="model.embed_tokens.weight"),
    "layers.input_layernorm": _norm("input_layernorm"),
    "layers.q_proj": _matrix("self_attn.q_proj", _IN),
    "layers.k_proj": _matrix("self_attn.k_proj", _IN),
    "layers.v_proj": _matrix("self_attn.v_proj", _IN),
    "layers.o_proj": _matrix("self_attn.o_proj", _OUT),
    "layers.post_attention_layernorm": _norm("post_attention_layernorm"),
    "layers.gate_proj": _matrix("mlp.gate_proj", _IN),
    "layers.up_proj": _matrix("mlp.up_proj", _IN),
    "layers.down_proj": _matrix("mlp.down_proj", _OUT),
    "layers.q_norm": _norm("self_attn.q_norm", PartitionSpec()),
    "layers.k_norm": _norm("self_attn.k_norm", PartitionSpec()),
    "norm": Tensor(_FIRST, is_decayed=False, huggingface_name="model.norm.weight"),
    "lm_head": Tensor(_FIRST, is_decayed=True, huggingface_name="lm_head.weight", is_transposed=True),
}


class LlamaLayers(eqx.Module):
    """All layers, stacked on a leading axis; inside the scan the axis is gone."""

    input_layernorm: Float[Array, "*layers hidden_size"]
    q_proj: Float[Array, "*layers hidden_size q_size"]
    k_proj: Float[Array, "*layers hidden_size kv_size"]
    v_proj: Float[Array, "*layers hidden_size kv_size"]
    o_proj: Float[Array, "*layers q_size hidden_size"]
    q_norm: Float[Array, "*layers head_dim"] | None
    k_norm: Float[Array, "*layers head_dim"] | None
    post_attention_layernorm: Float[Array, "*layers hidden_size"]
    gate_proj: Float[Array, "*layers hidden_size intermediate_size"]
    up_proj: Float[Array, "*layers hidden_size intermediate_size"]
    down_proj: Float[Array, "*layers intermediate_size hidden_size"]


class LlamaParams(eqx.Module):
    """Parameters of the model; field names follow Hugging Face's state dict."""

    embed_tokens: Float[Array, "vocab_size hidden_size"]
    layers: LlamaLayers
    norm: Float[Array, "hidden_size"]
    lm_head: Float[Array, "hidden_size vocab_size"] | None  # None: tied to embed_tokens

    @property
    def output(self) -> Float[Array, "..."]:
        """The head as it is stored."""
        return self.embed_tokens if self.lm_head is None else self.lm_head


@dataclasses.dataclass(frozen=True)
class Llama:
    """The `Model` of a `LlamaConfig`."""

    config: LlamaConfig

    def tensors(self) -> dict[str, Tensor]:
        """Return a row for each tensor, in the order of Hugging Face's forward pass."""
        return _tensors_of(self.config)

    def init(self, key: Key[Array, ""]) -> LlamaParams:
        """Return first values: matrices from `config.initialization`, norms at one."""
        config = self.config
        hidden, depth = config.hidden_size, config.num_hidden_layers
        q_size, kv_size = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim

        def matrix(
            name: str, *shape: int, fan_in: int = hidden, residual_layers: int | None = None
        ) -> Float32[Array, "..."]:
            distribution = config.initialization
            return first_values(key, name, shape, distribution, fan_in=fan_in, residual_layers=residual_layers)

        def ones(*shape: int) -> Float32[Array, "..."]:
            return jnp.ones(shape, jnp.float32)

        return LlamaParams(
            embed_tokens=matrix("embed_tokens", config.vocab_size, hidden),
            layers=LlamaLayers(
                input_layernorm=ones(depth, hidden),
                q_proj=matrix("q_proj", depth, hidden, q_size),
                k_proj=matrix("k_proj", depth, hidden, kv_size),
                v_proj=matrix("v_proj", depth, hidden, kv_size),
                o_proj=matrix("o_proj", depth, q_size, hidden, fan_in=q_size, residual_layers=depth),
                q_norm=ones(depth, config.head_dim) if config.use_qk_norm else None,
                k_norm=ones(depth, config.head_dim) if config.use_qk_norm else None,
                post_attention_layernorm=ones(depth, hidden),
                gate_proj=matrix("gate_proj", depth, hidden, config.intermediate_size),
                up_proj=matrix("up_proj", depth, hidden, config.intermediate_size),
                down_proj=matrix(
                    *("down_proj", depth, config.intermediate_size, hidden),
                    fan_in=config.intermediate_size,
                    residual_layers=depth,
                ),
            ),
            norm=ones(hidden),
            lm_head=None if config.tie_word_embeddings else matrix("lm_head", hidden, config.vocab_size),
        )

    def frequencies(self, rope: Rope) -> Frequencies:
        """Return radians a position for each pair of a head."""
        return inverse_frequencies(rope, self.config.head_dim)

    def states(
        self,
        params: LlamaParams,
        tokens: Tokens,
        segment_ids: Tokens,
        frequencies: Frequencies,
        *,
        computation: Computation,
    ) -> States:
        """Run the model over the tokens that `computation.spread` gives this device."""
        spread = computation.spread
        positions = jnp.arange(tokens.shape[1] * spread.context, dtype=jnp.int32)
        cosine, sine = rotation(frequencies, positions)
        angles = spread.own_positions(cosine), spread.own_positions(sine)
        row_segments = spread.gather_sequence(segment_ids)

        def attention(query: Query, key: KeyValue, value: KeyValue, _: None) -> tuple[Query, None]:
            key, value = spread.gather_sequence(key), spread.gather_sequence(value)
            kernel = computation.attention_kernel

            def of_part(first_row: int) -> Query:
                return attend(query, key, value, row_segments, kernel=kernel, first_row=first_row)

            return spread.by_part(tokens.shape[1], of_part), None

        return self._run(params, tokens, angles, attention, None, computation)[0]

    def prefill(
        self, params: LlamaParams, rows: PackedRows, frequencies: Frequencies, *, computation: Computation
    ) -> tuple[States, tuple[Layers, Layers]]:
        """Run packed sequences; return also the keys and values of each layer."""
        visibility = Visibility(rows.begin, rows.prefix_begin, rows.prefix_end)

        def attention(query: Query, key: KeyValue, value: KeyValue, _: None) -> tuple[Query, tuple[KeyValue, KeyValue]]:
            return chunked_with_prefix(query, key, value, visibility), (key, value)

        angles = rotation(frequencies, rows.positions)
        return self._run(params, rows.tokens, angles, attention, None, computation)

    def decode(
        self,
        params: LlamaParams,
        tokens: Int32[Array, "slots"],
        lengths: Int32[Array, "slots"],
        cache: KeyValueCache,
        frequencies: Frequencies,
        *,
        computation: Computation,
    ) -> tuple[States, KeyValueCache]:
        """Run one more token of each slot."""
        angles = rotation(frequencies, lengths[:, None])
        if computation.cache_kernel != "reference":
            in_pages = partial(_attend_in_pages, lengths=lengths, kernel=computation.cache_kernel)
            layers = jnp.arange(self.config.num_hidden_layers, dtype=jnp.int32)
            return self._run(params, tokens[:, None], angles, in_pages, layers, computation, carried=cache)
        is_stacked = not isinstance(cache.keys, tuple)

        def attention(query: Query, key: KeyValue, value: KeyValue, past: Any) -> tuple[Query, tuple[Array, Array]]:
            key, value = key[:, 0], value[:, 0]
            cached_keys, cached_values = past
            cached_keys = jnp.swapaxes(cached_keys, 2, 3) if is_stacked else cached_keys
            mixed = attend_to_cache(query[:, 0], key, value, cached_keys, cached_values, lengths)
            return mixed[:, None], (key, value)

        past = cache.keys, cache.values
        states, new = self._run(params, tokens[:, None], angles, attention, past, computation)
        # Written before all of it is read, the cache would be copied.
        new = CollectiveOrder(by_data=True).after(new, states.hidden, tokens[:, None])
        return states, appended(cache, new, lengths)

    def head(self, params: LlamaParams, *, computation: Computation) -> Head:
        """Return the output matrix in its computing form; the transposed embedding where tied."""
        return self._head(params.output, computation)

    def _run(
        self,
        params: LlamaParams,
        tokens: Tokens,
        angles: tuple[HalfAngles, HalfAngles],
        attention: Attention,
        by_layer: Any,
        computation: Computation,
        carried: Any = None,
    ) -> tuple[States, Any]:
        """Run all layers; return the states, and the values that `attention` keeps of each layer.

        `attention` gets its layer's part of `by_layer`. A `carried` value goes from layer to layer, and its last value
        is returned instead.
        """
        embedding = computation.gather("embed_tokens", params.embed_tokens)
        hidden = computation.platform.look_up(embedding, computation.spread.own_tokens(tokens.reshape(-1)))

        def layer(state: tuple[Hidden, Any], parts: tuple[LlamaLayers, Any]) -> tuple[tuple[Hidden, Any], Any]:
            hidden, carried = state
            weights = computation.gather("layers", parts[0])
            own = parts[1] if carried is None else (carried, parts[1])

            def own_attention(query: Query, key: KeyValue, value: KeyValue) -> tuple[Query, Any]:
                return attention(query, key, value, own)

            hidden, kept = _layer(weights, hidden, tokens.shape, angles, own_attention, self.config, computation)
            return ((hidden, None), kept) if carried is None else ((hidden, kept), None)

        unroll = computation.unrolled_layers(self.config.num_hidden_layers)
        layer = computation.rematerialized(layer)
        (hidden, carried), kept = over_layers(layer, (hidden, carried), params.layers, by_layer, unroll=unroll)
        late = params.norm, params.output
        hidden, (norm, output) = computation.order.before_and_after(hidden, late, tokens)
        normed = rms_norm(hidden, computation.gather("norm", norm), self.config.rms_norm_eps)
        return States(normed, self._head(output, computation)), kept if carried is None else carried

    def _head(self, output: Float[Array, "..."], computation: Computation) -> Head:
        if self.config.tie_word_embeddings:
            return computation.gather("embed_tokens", output).T
        return computation.gather("lm_head", output)


@cache
def _tensors_of(config: LlamaConfig) -> dict[str, Tensor]:
    absent = set() if config.use_qk_norm else {"layers.q_norm", "layers.k_norm"}
    absent |= {"lm_head"} if config.tie_word_embeddings else set()
    return {name: tensor for name, tensor in _TENSORS.items() if name not in absent}


def _attend_in_pages(
    query: Query,
    key: KeyValue,
    value: KeyValue,
    past: tuple[KeyValueCache, Int32[Array, ""]],
    *,
    lengths: Int32[Array, "slots"],
    kernel: CacheKernel,
) -> tuple[Query, KeyValueCache]:
    """Write a layer's new token to the cache of all layers, then attend to it there: no layer is copied."""
    cache, layer = past
    cache = appended(cache, (key[:, 0], value[:, 0]), lengths, layer)
    return attend_to_pages(query[:, 0], cache, lengths + 1, layer, kernel=kernel)[:, None], cache


def _layer(
    weights: LlamaLayers,
    hidden: Hidden,
    shape: tuple[int, ...],
    angles: tuple[HalfAngles, HalfAngles],
    attention: Callable[[Query, KeyValue, KeyValue], tuple[Query, Any]],
    config: LlamaConfig,
    computation: Computation,
) -> tuple[Hidden, Any]:
    """Run one layer over this device's tokens; `shape` is that of its batch, whose rows may be parts of longer ones."""
    spread, platform = computation.spread, computation.platform
    normed = spread.gather_tokens(rms_norm(hidden, weights.input_layernorm, config.rms_norm_eps))
    query = platform.linear(normed, weights.q_proj).reshape(*shape, -1, config.head_dim)
    key = platform.linear(normed, weights.k_proj).reshape(*shape, -1, config.head_dim)
    value = platform.linear(normed, weights.v_proj).reshape(*shape, -1, config.head_dim)
    if weights.q_norm is not None and weights.k_norm is not None:
        query = rms_norm(query, weights.q_norm, config.rms_norm_eps)
        key = rms_norm(key, weights.k_norm, config.rms_norm_eps)
    query = rotate(query, *angles, scale=config.head_dim**-0.5)
    mixed, kept = attention(query, rotate(key, *angles), value)
    hidden = hidden + spread.scatter_tokens(platform.linear(mixed.reshape(normed.shape[0], -1), weights.o_proj))
    normed = spread.gather_tokens(rms_norm(hidden, weights.post_attention_layernorm, config.rms_norm_eps))
    gate, up = platform.linear(normed, weights.gate_proj), platform.linear(normed, weights.up_proj)
    down = platform.wide_linear(platform.gated(gate, up), weights.down_proj)
    return hidden + spread.scatter_tokens(down), kept
