"""Stored weights: the tensors of a Llama in safetensors files, under our names, each read when it is asked for.

No file is read whole: one of 5 GB would take its size in memory to give a tensor of 0.1. Matrices are stored [in, out]
here and [out, in] there; rotary pairs are (i, i + head_dim / 2) on both sides, so nothing else is permuted.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import fsspec
import ml_dtypes
import numpy as np

from runtime.interop.huggingface_config import InteropError, read_json
from runtime.model.config import LlamaConfig
from runtime.text.ranged_reads import read_bytes

# safetensors.numpy writes bfloat16 but cannot read it, so that tensors are taken from the bytes here.
STORED_DTYPES = {"F32": np.dtype(np.float32), "BF16": np.dtype(ml_dtypes.bfloat16), "F16": np.dtype(np.float16)}
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"

# Field of LlamaLayers -> name inside `model.layers.{i}`, in the order of the forward pass.
LAYER_NAMES = {
    "input_layernorm": "input_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "o_proj": "self_attn.o_proj",
    "post_attention_layernorm": "post_attention_layernorm",
    "gate_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "down_proj": "mlp.down_proj",
}
# The same of a model that has them: behind the projections that they are of, before the rotary embedding.
QK_NORM_NAMES = {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"}
EMBED, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


class StoredTensor(NamedTuple):
    """Where the bytes of one tensor lie."""

    name: str
    file: str
    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int
    end: int

    def read(self) -> np.ndarray:
        """As it is stored."""
        return np.frombuffer(read_bytes(self.file, self.begin, self.end), self.dtype).reshape(self.shape)


@dataclasses.dataclass(frozen=True)
class StoredLeaf:
    """One leaf of our `Llama`: a tensor, or those of all layers stacked."""

    tensors: tuple[StoredTensor, ...]
    is_stacked: bool
    is_transposed: bool

    @property
    def shape(self) -> tuple[int, ...]:
        own = self.tensors[0].shape
        own = own[::-1] if self.is_transposed else own
        return (len(self.tensors), *own) if self.is_stacked else own

    def whole(self) -> np.ndarray:
        """In the dtype that was stored."""
        parts = [self._turned(tensor.read()) for tensor in self.tensors]
        return np.stack(parts) if self.is_stacked else parts[0]

    def pieces(self, chunk_shape: tuple[int, ...]) -> Iterator[np.ndarray]:
        """Its chunks as float32, the last axis fastest, holding one tensor at a time, or as many as one chunk has.

        Raises:
            InteropError: a value is not finite.
        """
        layers, inner = (chunk_shape[0], chunk_shape[1:]) if self.is_stacked else (1, chunk_shape)
        for first in range(0, len(self.tensors), layers):
            held = [self._finite(tensor) for tensor in self.tensors[first : first + layers]]
            starts = (range(0, size, step) for size, step in zip(held[0].shape, inner, strict=True))
            for start in itertools.product(*starts):
                within = tuple(slice(at, at + size) for at, size in zip(start, inner, strict=True))
                parts = [np.ascontiguousarray(tensor[within], np.float32) for tensor in held]
                yield np.stack(parts) if self.is_stacked else parts[0]

    def _turned(self, stored: np.ndarray) -> np.ndarray:
        return stored.T if self.is_transposed else stored

    def _finite(self, tensor: StoredTensor) -> np.ndarray:
        stored = tensor.read()
        if not np.isfinite(stored).all():
            raise InteropError(f"{tensor.file}: {tensor.name} has values that are not finite; take another export.")
        return self._turned(stored)


def layer_names(*, use_qk_norm: bool) -> dict[str, str]:
    """Field of LlamaLayers -> name inside `model.layers.{i}`, of a model with or without query and key norms."""
    return LAYER_NAMES | QK_NORM_NAMES if use_qk_norm else LAYER_NAMES


def stored_leaves(files: Mapping[str, str], config: LlamaConfig) -> dict[str, StoredLeaf]:
    """Leaves by their dotted paths in our `Llama`; of the files only what they say of themselves is read.

    Args:
        files: Name in the folder -> where it lies, for anything that fsspec opens.
        config: What config.json says.

    Raises:
        InteropError: a file is torn or missing, or a tensor is missing, there twice, of another shape, or none of a
            Llama's.
    """
    tensors: dict[str, StoredTensor] = {}
    for file in _weight_files(files):
        for tensor in _tensors_of(file):
            if (other := tensors.setdefault(tensor.name, tensor)) is not tensor:
                raise InteropError(
                    f"{file}: {tensor.name} stands in {other.file} too, and only one can be meant; these files "
                    "are of two exports: fetch or export them again."
                )
    heads, kv_heads = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    hidden, intermediate = config.hidden_size, config.intermediate_size
    shapes = {
        "input_layernorm": (hidden,),
        "q_proj": (heads, hidden),
        "k_proj": (kv_heads, hidden),
        "v_proj": (kv_heads, hidden),
        "o_proj": (hidden, heads),
        "post_attention_layernorm": (hidden,),
        "gate_proj": (intermediate, hidden),
        "up_proj": (intermediate, hidden),
        "down_proj": (hidden, intermediate),
        "q_norm": (config.head_dim,),
        "k_norm": (config.head_dim,),
    }

    def take(name: str, shape: tuple[int, ...]) -> StoredTensor:
        if name not in tensors:
            raise InteropError(f"{files[CONFIG]}: no tensor {name}; config.json and weights do not belong together.")
        tensor = tensors.pop(name)
        if tensor.shape != shape:
            raise InteropError(f"{tensor.file}: {name} has shape {tensor.shape}, config.json says {shape}.")
        return tensor

    leaves = {"embed_tokens": StoredLeaf((take(EMBED, (config.vocab_size, hidden)),), False, is_transposed=False)}
    for field, name in layer_names(use_qk_norm=config.use_qk_norm).items():
        layers = (take(f"model.layers.{i}.{name}.weight", shapes[field]) for i in range(config.num_hidden_layers))
        leaves[f"layers.{field}"] = StoredLeaf(tuple(layers), True, is_transposed=len(shapes[field]) == 2)
    leaves["norm"] = StoredLeaf((take(NORM, (hidden,)),), False, is_transposed=False)
    if config.tie_word_embeddings:
        tensors.pop(HEAD, None)  # some writers store the shared matrix twice
    else:
        leaves["lm_head"] = StoredLeaf((take(HEAD, (config.vocab_size, hidden)),), False, is_transposed=True)
    # Old exports carry the rotary frequencies, which config.json determines.
    if unknown := sorted(name for name in tensors if not name.endswith("rotary_emb.inv_freq")):
        raise InteropError(f"{files[CONFIG]}: tensors that a Llama does not have: {', '.join(unknown[:5])}.")
    return leaves


def _weight_files(files: Mapping[str, str]) -> Sequence[str]:
    # Of both, `transformers` too takes the one file.
    is_one = WEIGHTS in files or INDEX not in files
    names = [WEIGHTS] if is_one else sorted(set(read_json(files[INDEX])["weight_map"].values()))
    if missing := [name for name in names if name not in files]:
        named = f"which {files[INDEX]} names" if INDEX in files else f"nor {INDEX}"
        raise InteropError(
            f"{missing[0]} is not there, {named}; the folder has {', '.join(sorted(files))}. Fetch the rest of it; "
            "weights in another format than safetensors are to be converted first."
        )
    return [files[name] for name in names]


def _tensors_of(path: str) -> list[StoredTensor]:
    """By the file's header, which must tell of all its bytes."""
    system, name = fsspec.core.url_to_fs(path)
    size = system.size(name)
    try:
        first = 8 + int.from_bytes(read_bytes(path, 0, 8), "little")
        if first > size:
            raise ValueError(f"{size:,} bytes, and its header alone would take {first:,}")
        header = json.loads(read_bytes(path, 8, first))
        header.pop("__metadata__", None)
        tensors = [_tensor(path, name, entry, first) for name, entry in header.items()]
        end = max((tensor.end for tensor in tensors), default=first)
        if end != size:
            raise ValueError(f"{size:,} bytes, and its header tells of {end:,}")
    except InteropError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InteropError(f"{path}: torn or not safetensors ({error}); fetch or export it again.") from error
    return tensors


def _tensor(path: str, name: str, entry: dict[str, Any], first: int) -> StoredTensor:
    if entry["dtype"] not in STORED_DTYPES:
        raise InteropError(f"{path}: {name} is stored as {entry['dtype']}; this reads {', '.join(STORED_DTYPES)}.")
    dtype, shape = STORED_DTYPES[entry["dtype"]], tuple(entry["shape"])
    begin, end = (first + offset for offset in entry["data_offsets"])
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name} of shape {shape} has {end - begin:,} bytes")
    return StoredTensor(name, path, dtype, shape, begin, end)
