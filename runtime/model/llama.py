"""Llama (arXiv:2302.13971, 2407.21783): stacked layers run by one `lax.scan`, whose time to compile is that of one.

How it is run on a device of a mesh is the `computation` that its methods take.

Parameters are float32; `compute_dtype` is the dtype of activations and matrix products. Norms, rotary angles,
softmax and loss are float32 whatever it is. Matrices are stored [in, out], the transpose of Hugging Face's.
"""

import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Primitive
from jaxtyping import Array, Float, Float32, Int32, Key

from runtime.kernels import attention_chunked
from runtime.kernels.attention import attend
from runtime.kernels.embedding import look_up
from runtime.kernels.gated import gated
from runtime.kernels.linear import linear
from runtime.model.computation import REMATS, Computation
from runtime.model.config import LlamaConfig
from runtime.model.rotary import Frequencies, rotate, rotation
from runtime.parallel.collectives import GATHERED

Hidden = Float[Array, "tokens hidden_size"]  # batch and sequence as one axis: matrix products in two dimensions


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


class Llama(eqx.Module):
    """The parameters of the model; field names follow Hugging Face's state dict."""

    embed_tokens: Float[Array, "vocab_size hidden_size"]
    layers: LlamaLayers
    norm: Float[Array, "hidden_size"]
    lm_head: Float[Array, "hidden_size vocab_size"] | None  # None: tied to embed_tokens

    @staticmethod
    def init(config: LlamaConfig, *, key: Key[Array, ""]) -> "Llama":
        """Normal with `config.initializer_range`, norms at one; the same values on every device count."""
        hidden, depth = config.hidden_size, config.num_hidden_layers
        q_size, kv_size = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim

        def matrix(name: str, *shape: int) -> Float32[Array, "..."]:
            return normal(key, name, shape, config.initializer_range)

        def ones(*shape: int) -> Float32[Array, "..."]:
            return jnp.ones(shape, jnp.float32)

        return Llama(
            embed_tokens=matrix("embed_tokens", config.vocab_size, hidden),
            layers=LlamaLayers(
                input_layernorm=ones(depth, hidden),
                q_proj=matrix("q_proj", depth, hidden, q_size),
                k_proj=matrix("k_proj", depth, hidden, kv_size),
                v_proj=matrix("v_proj", depth, hidden, kv_size),
                o_proj=matrix("o_proj", depth, q_size, hidden),
                q_norm=ones(depth, config.head_dim) if config.use_qk_norm else None,
                k_norm=ones(depth, config.head_dim) if config.use_qk_norm else None,
                post_attention_layernorm=ones(depth, hidden),
                gate_proj=matrix("gate_proj", depth, hidden, config.intermediate_size),
                up_proj=matrix("up_proj", depth, hidden, config.intermediate_size),
                down_proj=matrix("down_proj", depth, config.intermediate_size, hidden),
            ),
            norm=ones(hidden),
            lm_head=None if config.tie_word_embeddings else matrix("lm_head", hidden, config.vocab_size),
        )

    def hidden_states(
        self,
        tokens: Int32[Array, "batch sequence"],
        segment_ids: Int32[Array, "batch sequence"],
        frequencies: Frequencies,
        *,
        config: LlamaConfig,
        computation: Computation,
    ) -> Float[Array, "batch sequence hidden_size"]:
        """Final hidden states after the last norm. Tokens attend to earlier ones of their document only, those beside
        them that have the same segment id."""
        hidden, _ = self.own_hidden_states_and_head(
            tokens, segment_ids, frequencies, config=config, computation=computation
        )
        return hidden.reshape(*tokens.shape, -1)

    def own_hidden_states_and_head(
        self,
        tokens: Int32[Array, "batch sequence"],
        segment_ids: Int32[Array, "batch sequence"],
        frequencies: Frequencies,
        *,
        config: LlamaConfig,
        computation: Computation,
    ) -> tuple[Hidden, Float[Array, "hidden_size vocab_size"]]:
        """The same of the tokens that `computation.spread` gives this device, as rows; without one, of all.

        With the `head`: gathered beside the layers, its collective could meet one of theirs (`CollectiveOrder`).
        """
        spread = computation.spread
        embedding = computation.gather("embed_tokens", self.embed_tokens)
        hidden = look_up(embedding, spread.own_tokens(tokens.reshape(-1)), gradient=computation.forms.look_up)
        cosine, sine = rotation(frequencies, tokens.shape[1] * spread.context)
        turn = spread.own_positions(cosine), spread.own_positions(sine)
        row_segments = spread.gather_sequence(segment_ids)

        def layer(hidden: Hidden, stored: LlamaLayers) -> tuple[Hidden, None]:
            weights = computation.gather("layers", stored)
            return _layer(weights, hidden, tokens.shape, row_segments, turn, config, computation), None

        unroll = computation.unrolled_layers(config.num_hidden_layers)
        hidden, _ = lax.scan(_rematerialised(layer, computation), hidden, self.layers, unroll=unroll)
        late = self.norm, self._output
        hidden, (norm, output) = computation.order.before_and_after(hidden, late, tokens)
        normed = rms_norm(hidden, computation.gather("norm", norm), config.rms_norm_eps)
        return normed, self._head(output, computation)

    def head(self, computation: Computation) -> Float[Array, "hidden_size vocab_size"]:
        """The output matrix in its computing form; the transposed embedding where tied.

        For a program without layers in it; others take it from `own_hidden_states_and_head`.
        """
        return self._head(self._output, computation)

    @property
    def _output(self) -> Float[Array, "..."]:
        return self.embed_tokens if self.lm_head is None else self.lm_head

    def _head(self, output: Float[Array, "..."], computation: Computation) -> Float[Array, "hidden_size vocab_size"]:
        if self.lm_head is None:
            return computation.gather("embed_tokens", output).T
        return computation.gather("lm_head", output)

    def logits(
        self,
        tokens: Int32[Array, "batch sequence"],
        segment_ids: Int32[Array, "batch sequence"],
        frequencies: Frequencies,
        *,
        config: LlamaConfig,
        computation: Computation,
    ) -> Float32[Array, "batch sequence vocab_size"]:
        """Float32 logits, all at once: for evaluation and tests. Training uses `kernels.cross_entropy`."""
        hidden, head = self.own_hidden_states_and_head(
            tokens, segment_ids, frequencies, config=config, computation=computation
        )
        logits = jnp.einsum("th,hv->tv", hidden, head, preferred_element_type=jnp.float32)
        return logits.reshape(*tokens.shape, -1)


def normal(key: Key[Array, ""], name: str, shape: tuple[int, ...], standard_deviation: float) -> Float32[Array, "..."]:
    """Initial values of a matrix, which depend on the key, the parameter's name and its shape alone.

    Keyed by name and not by position, so that a new parameter does not change the initial values of the others.
    """
    named_key = jax.random.fold_in(key, zlib.crc32(name.encode()))
    return standard_deviation * jax.random.normal(named_key, shape, jnp.float32)


def rms_norm(
    values: Float[Array, "*lead size"], weight: Float[Array, "size"], eps: float
) -> Float[Array, "*lead size"]:
    """Root-mean-square norm (arXiv:1910.07467), in float32, before the weight is applied in the dtype of `values`."""
    wide = values.astype(jnp.float32)
    normed = wide * lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + eps)
    return normed.astype(values.dtype) * weight.reshape((1,) * (values.ndim - 1) + weight.shape)


def _layer(
    weights: LlamaLayers,
    hidden: Hidden,
    shape: tuple[int, ...],
    row_segments: Int32[Array, "batch row"],
    turn: tuple[Float32[Array, "sequence half_head_dim"], Float32[Array, "sequence half_head_dim"]],
    config: LlamaConfig,
    computation: Computation,
) -> Hidden:
    """`hidden` is of this device's tokens; `shape` is that of its batch, whose stretches are part of longer rows."""
    spread, forms = computation.spread, computation.forms
    product = partial(linear, way=forms.weight_gradient)
    normed = spread.gather_tokens(rms_norm(hidden, weights.input_layernorm, config.rms_norm_eps))
    query = product(normed, weights.q_proj).reshape(*shape, -1, config.head_dim)
    key = product(normed, weights.k_proj).reshape(*shape, -1, config.head_dim)
    value = product(normed, weights.v_proj).reshape(*shape, -1, config.head_dim)
    if weights.q_norm is not None and weights.k_norm is not None:
        query = rms_norm(query, weights.q_norm, config.rms_norm_eps)
        key = rms_norm(key, weights.k_norm, config.rms_norm_eps)
    query = rotate(query, *turn, scale=config.head_dim**-0.5)
    key, value = (spread.gather_sequence(part) for part in (rotate(key, *turn), value))

    def mixed_from(first_row: int) -> Array:
        kernel = computation.attention_kernel
        return attend(query, key, value, row_segments, first_row=first_row, kernel=kernel)

    mixed = spread.by_stretch(shape[1], mixed_from)
    hidden = hidden + spread.scatter_tokens(product(mixed.reshape(normed.shape[0], -1), weights.o_proj))
    normed = spread.gather_tokens(rms_norm(hidden, weights.post_attention_layernorm, config.rms_norm_eps))
    gate, up = product(normed, weights.gate_proj), product(normed, weights.up_proj)
    # Plain: these rows are the widest and of one product only; their copy takes longer than it spares.
    down = linear(gated(gate, up, gradient=forms.gate_gradient), weights.down_proj, way="plain")
    return hidden + spread.scatter_tokens(down)


def _rematerialised(layer: Callable, computation: Computation) -> Callable:
    """What the backward pass finds saved: all, products with weights and fused attention, or the layer's input."""
    match computation.remat:
        case "none" if not computation.regather:
            return layer
        case "none":
            return jax.checkpoint(layer, policy=_all_but_gathered_parameters, prevent_cse=False)
        case "dots":
            return jax.checkpoint(layer, policy=_products_and_kernels, prevent_cse=False)
        case "full":
            return jax.checkpoint(layer, prevent_cse=False)
    raise ValueError(f"remat is {computation.remat!r}; it must be one of {', '.join(REMATS)}.")


_KERNELS = ("pallas_call", "mpmd_map")  # the second is what Pallas makes of a kernel for Mosaic GPU
_HOLDS = {"custom_vjp_call": "call_jaxpr", "remat_opt": "fwd_jaxpr"}  # operations and their programs


def _all_but_gathered_parameters(primitive: Primitive, *arguments: Any, **parameters: Any) -> bool:
    """Whether to keep what an operation gives. A gather is refused as a whole: were only its name, what the name is
    given to would be kept."""
    held = _HOLDS.get(primitive.name)
    return held is None or not _holds(parameters[held].jaxpr, _is_named_gathered)


def _is_named_gathered(equation: JaxprEqn) -> bool:
    return equation.primitive.name == "name" and equation.params["name"] == GATHERED


def _products_and_kernels(primitive: Primitive, *arguments: Any, **parameters: Any) -> bool:
    """Whether to keep what an operation gives; what attention names or a kernel gives takes no more than a product."""
    if primitive.name == "name":
        return bool(parameters["name"] == attention_chunked.KEPT)
    if primitive.name in _HOLDS:
        return _holds(parameters[_HOLDS[primitive.name]].jaxpr, _is_kernel)
    is_product = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    return primitive.name in _KERNELS or bool(is_product(primitive, *arguments, **parameters))


def _is_kernel(equation: JaxprEqn) -> bool:
    return equation.primitive.name in _KERNELS


def _holds(program: Jaxpr, is_wanted: Callable[[JaxprEqn], bool]) -> bool:
    return any(
        is_wanted(equation)
        or any(_holds(part.jaxpr, is_wanted) for part in equation.params.values() if isinstance(part, ClosedJaxpr))
        for equation in program.eqns
    )
