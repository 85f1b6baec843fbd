"""Stored weights: the tensors of a model in safetensors files, under our names, each read when it is asked for.

No file is read whole: one of 5 GB would take its size in memory to give a tensor of 0.1 GB.
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

from runtime.interop.huggingface_config import read_json
from runtime.model.huggingface import InteropError
from runtime.model.model import STACKED, Model, Tensor, UnknownTensorError, abstract_params, leaves_by_name
from runtime.text.array_files import read_bytes

# safetensors.numpy writes bfloat16 but cannot read it, so tensors are taken from the bytes here.
STORED_DTYPES = {"F32": np.dtype(np.float32), "BF16": np.dtype(ml_dtypes.bfloat16), "F16": np.dtype(np.float16)}
MOST_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library."""
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
HEAD = "lm_head.weight"


class StoredTensor(NamedTuple):
    """Place of one tensor's bytes."""

    name: str
    file: str
    dtype: np.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclasses.dataclass(frozen=True)
class StoredLeaf:
    """Leaf of the parameters: a tensor, or those of all layers stacked."""

    tensors: tuple[StoredTensor, ...]
    is_stacked: bool
    is_transposed: bool

    @property
    def shape(self) -> tuple[int, ...]:
        own = self.tensors[0].shape
        own = own[::-1] if self.is_transposed else own
        return (len(self.tensors), *own) if self.is_stacked else own

    @property
    def chunk_shape(self) -> None:
        """A tensor is read whole, so that no chunk is cheaper than another."""

    def whole(self) -> np.ndarray:
        """Return the leaf in the dtype that is stored."""
        parts = [self._read(tensor) for tensor in self.tensors]
        return np.stack(parts) if self.is_stacked else parts[0]

    def pieces(self, chunk_shape: tuple[int, ...]) -> Iterator[np.ndarray]:
        """Yield its chunks as float32, the last axis fastest, with the tensors of one chunk in memory.

        Raise InteropError if a value is not finite.
        """
        layers, inner = (chunk_shape[0], chunk_shape[1:]) if self.is_stacked else (1, chunk_shape)
        for first in range(0, len(self.tensors), layers):
            read = []
            for tensor in self.tensors[first : first + layers]:
                read.append(self._read(tensor))
                if not np.isfinite(read[-1]).all():
                    problem = f"{tensor.file}: {tensor.name} has values that are not finite"
                    raise InteropError(f"{problem}; use another export.")
            starts = (range(0, size, step) for size, step in zip(read[0].shape, inner, strict=True))
            for start in itertools.product(*starts):
                within = tuple(slice(at, at + size) for at, size in zip(start, inner, strict=True))
                parts = [np.ascontiguousarray(tensor[within], np.float32) for tensor in read]
                yield np.stack(parts) if self.is_stacked else parts[0]

    def _read(self, tensor: StoredTensor) -> np.ndarray:
        stored = np.frombuffer(read_bytes(tensor.file, tensor.begin, tensor.end), tensor.dtype).reshape(tensor.shape)
        return stored.T if self.is_transposed else stored


class Stored(NamedTuple):
    """The stored form of a leaf of the parameters."""

    row: Tensor
    names: tuple[str, ...]
    """Hugging Face's names of its tensors: one, or one per layer."""
    shape: tuple[int, ...]
    """Shape of each tensor there."""


def stored_as(model: Model, params: Any) -> dict[str, Stored]:
    """Return how each leaf of `params`, or of their shapes, is stored, by our name, in the order of the model's table.

    Raise UnknownTensorError if the model's table has no row for a leaf, so that an export would omit it.
    """
    table, leaves = model.tensors(), leaves_by_name(params)
    if unknown := [name for name in leaves if name not in table]:
        raise UnknownTensorError(model, unknown[0])
    found = {}
    for name, row in table.items():
        shape = leaves[name].shape
        names: tuple[str, ...] = (row.huggingface_name,)
        own = shape
        if name.startswith(STACKED):
            names, own = tuple(row.huggingface_name.format(layer=layer) for layer in range(shape[0])), shape[1:]
        found[name] = Stored(row, names, own[::-1] if row.is_transposed else own)
    return found


def stored_leaves(files: Mapping[str, str], model: Model) -> dict[str, StoredLeaf]:
    """Return leaves by their dotted paths in our parameters, of files by their names in the folder; read only headers.

    Raise InteropError if a file is torn or missing, or a tensor is missing, there twice, of another shape, or unknown
    to the model.
    """
    tensors: dict[str, StoredTensor] = {}
    for file in _weight_files(files):
        for tensor in _tensors_of(file):
            if (other := tensors.setdefault(tensor.name, tensor)) is not tensor:
                raise InteropError(
                    f"{file}: {tensor.name} is in {other.file} too, so these files are of two exports; fetch or export "
                    "them again."
                )

    def take(name: str, shape: tuple[int, ...]) -> StoredTensor:
        if (tensor := tensors.pop(name, None)) is None:
            problem = f"{files[CONFIG]}: the weights have no tensor {name}, which this config.json needs"
        elif tensor.shape != shape:
            problem = f"{tensor.file}: {name} has shape {tensor.shape}, and config.json gives {shape}"
        else:
            return tensor
        raise InteropError(f"{problem}; fetch both again.")

    leaves = {}
    for name, (row, names, shape) in stored_as(model, abstract_params(model)).items():
        parts = tuple(take(each, shape) for each in names)
        leaves[name] = StoredLeaf(parts, name.startswith(STACKED), row.is_transposed)
    if model.config.tie_word_embeddings:
        tensors.pop(HEAD, None)  # some writers store the shared matrix twice
    # Old exports have the rotary frequencies, which config.json determines.
    if unknown := sorted(name for name in tensors if not name.endswith("rotary_emb.inv_freq")):
        raise InteropError(
            f"{files[CONFIG]}: the weights have tensors that the model does not: {', '.join(unknown[:5])}. Only models "
            "without them can be read."
        )
    return leaves


def _weight_files(files: Mapping[str, str]) -> Sequence[str]:
    # With both there, `transformers` too takes the one file.
    is_one = WEIGHTS in files or INDEX not in files
    weight_map = {"": WEIGHTS} if is_one else read_json(files[INDEX]).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise InteropError(f"{files[INDEX]}: has no weight_map from tensors to files; fetch or export it again.")
    names = sorted(set(weight_map.values()))
    if missing := [name for name in names if name not in files]:
        named = f"which {files[INDEX]} names" if INDEX in files else f"nor {INDEX}"
        raise InteropError(
            f"{missing[0]} is not there, {named}; the folder has {', '.join(sorted(files))}. Fetch the rest of it, or "
            "convert weights of another format to safetensors."
        )
    return [files[name] for name in names]


def _tensors_of(path: str) -> list[StoredTensor]:
    """Return the tensors in a file's header, which must account for all its bytes."""
    system, name = fsspec.core.url_to_fs(path)
    size = system.size(name)
    try:
        first = 8 + int.from_bytes(read_bytes(path, 0, 8), "little")
        if first > min(size, MOST_HEADER_BYTES):
            raise ValueError(f"{size:,} bytes, and its header alone would take {first:,}")
        header = json.loads(read_bytes(path, 8, first))
        header.pop("__metadata__", None)
        tensors = [_tensor(path, name, entry, first) for name, entry in header.items()]
        end = first
        for tensor in sorted(tensors, key=lambda each: (each.begin, each.end)):
            if tensor.begin != end:
                raise ValueError(f"{tensor.name} begins at byte {tensor.begin:,}, and the one before ends at {end:,}")
            end = tensor.end
        if end != size:
            raise ValueError(f"{size:,} bytes, and its header describes {end:,}")
    except InteropError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InteropError(f"{path}: torn or not safetensors ({error}); fetch or export it again.") from error
    return tensors


def _tensor(path: str, name: str, entry: dict[str, Any], first: int) -> StoredTensor:
    if entry["dtype"] not in STORED_DTYPES:
        raise InteropError(
            f"{path}: {name} is stored as {entry['dtype']}; only {', '.join(STORED_DTYPES)} can be read: convert it."
        )
    dtype, shape = STORED_DTYPES[entry["dtype"]], tuple(entry["shape"])
    begin, end = (first + offset for offset in entry["data_offsets"])
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name} of shape {shape} has {end - begin:,} bytes")
    return StoredTensor(name, path, dtype, shape, begin, end)
