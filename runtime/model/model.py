"""Model: the interface of an architecture, and the table by which all else treats its tensors.

Parameters are a pytree of float32 arrays. Tensors are known by the dotted paths of its leaves (`layers.q_proj`). Those
that begin with `layers.` stack all layers on their first axis.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Float32, Int32, Key

from runtime.model.cache import KeyValueCache, Layers, PackedRows
from runtime.model.computation import Computation
from runtime.model.config import ModelConfig, Rope

Params = Any
"""Parameters of a model, or a tree of the same structure."""
Tokens = Int32[Array, "batch sequence"]
Frequencies = Float32[Array | np.ndarray, "half_head_dim"]
Head = Float[Array, "hidden_size vocab_size"]

STACKED = "layers."
"""Beginning of the names of tensors that stack all layers."""


class UnknownTensorError(ValueError):
    """A tensor of the parameters that the model's table has no row for."""

    def __init__(self, model: "Model", tensor: str) -> None:
        self.tensor = tensor
        super().__init__(
            f"{tensor}: {type(model).__name__}.tensors() has no row for it, so its placement, weight decay and name in "
            "Hugging Face's format are unknown; add one."
        )


class Tensor(NamedTuple):
    """Row of a model's table: how the mesh, the optimizer and Hugging Face's format treat a tensor."""

    spec: PartitionSpec
    """Placement of one layer's tensor, or of the whole where it is not stacked."""
    is_decayed: bool
    """Whether weight decay applies."""
    huggingface_name: str
    """Name in Hugging Face's state dict, `{layer}` for the layer's number."""
    is_transposed: bool = False
    """Whether Hugging Face stores the transpose."""


class States(NamedTuple):
    """Result of a forward pass."""

    hidden: Float[Array, "tokens hidden_size"]
    """Final hidden states after the last norm, of this device's own tokens."""
    head: Head
    auxiliary_loss: Float32[Array, ""] | None = None
    """Mean over this device's own tokens of a term that the objective adds; None where there is none."""


@runtime_checkable
class Model(Protocol):
    """An architecture at one shape: a frozen value that hashes, since compiled programs are cached by it."""

    def __hash__(self) -> int: ...

    @property
    def config(self) -> ModelConfig: ...

    def tensors(self) -> Mapping[str, Tensor]:
        """Return a row for each tensor, in the order of Hugging Face's forward pass."""
        ...

    def init(self, key: Key[Array, ""]) -> Params:
        """Return first values in float32, the same on every device count."""
        ...

    def frequencies(self, rope: Rope) -> Frequencies:
        """Return what the program takes for the rotary embedding."""
        ...

    def states(
        self,
        params: Params,
        tokens: Tokens,
        segment_ids: Tokens,
        frequencies: Frequencies,
        *,
        computation: Computation,
    ) -> States:
        """Run the model over the tokens that `computation.spread` gives this device.

        Tokens attend to earlier ones with the same segment id beside them. The head comes with the hidden states:
        gathered beside the layers, its collective could meet one of theirs (`CollectiveOrder`).
        """
        ...

    def prefill(
        self, params: Params, rows: PackedRows, frequencies: Frequencies, *, computation: Computation
    ) -> tuple[States, tuple[Layers, Layers]]:
        """Run packed sequences, without a gradient; return also the keys and values of each layer, for a cache.

        Parameters may be those of `layers.written_out`. Keys and values are [rows, length, kv_heads, head_dim].
        """
        ...

    def decode(
        self,
        params: Params,
        tokens: Int32[Array, "slots"],
        lengths: Int32[Array, "slots"],
        cache: KeyValueCache,
        frequencies: Frequencies,
        *,
        computation: Computation,
    ) -> tuple[States, KeyValueCache]:
        """Run one more token of each slot behind the first `lengths` that the cache holds; return both after it."""
        ...

    def head(self, params: Params, *, computation: Computation) -> Head:
        """Return the output matrix in its computing form, for a program without layers."""
        ...


def leaves_by_name(tree: object) -> dict[str, Any]:
    """Return leaves by their dotted paths, in the order of the tree."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {_name(path): leaf for path, leaf in leaves}


def map_tensors(model: Model, of: Callable[[str, Tensor, Any], Any], tree: Params, *, prefix: str = "") -> Params:
    """Return the tree with `of(name, row, leaf)` for each leaf of the parameters, or of the part named `prefix`.

    Raises:
        UnknownTensorError: the model's table has no row for a leaf.
    """
    table = model.tensors()

    def treat(path: tuple, leaf: Any) -> Any:
        name = f"{prefix}.{_name(path)}".strip(".")
        if name not in table:
            raise UnknownTensorError(model, name)
        return of(name, table[name], leaf)

    return jax.tree_util.tree_map_with_path(treat, tree)


def materialized(model: Model, gradients: Params, computation: Computation) -> Params:
    """Return gradients, those of unrolled layers written to memory once where the platform is faster with it."""
    if computation.unrolled_layers(model.config.num_hidden_layers) == 1:
        return gradients

    def written(name: str, _: Tensor, gradient: Array) -> Array:
        return computation.platform.materialized(gradient) if name.startswith(STACKED) else gradient

    return map_tensors(model, written, gradients)


def abstract_params(model: Model) -> Params:
    """Return the parameters' tree with shapes and dtypes only."""
    return jax.eval_shape(lambda: model.init(jax.random.key(0)))


def logits(
    model: Model,
    params: Params,
    tokens: Tokens,
    segment_ids: Tokens,
    frequencies: Frequencies,
    *,
    computation: Computation,
) -> Float32[Array, "batch sequence vocab_size"]:
    """Return float32 logits, all at once: for evaluation and tests. Training uses `kernels.cross_entropy`."""
    hidden, head, _ = model.states(params, tokens, segment_ids, frequencies, computation=computation)
    scores = jnp.einsum("th,hv->tv", hidden, head, preferred_element_type=jnp.float32)
    return scores.reshape(*tokens.shape, -1)


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")
