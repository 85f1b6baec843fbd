"""Hugging Face folders: a Llama and its tokenizer as `transformers` reads them, both ways, the same bytes each time.

What differs between the two sides, and how tensors are read, is in huggingface_weights.py.
"""

import json
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import fsspec
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import safetensors.numpy
from tokenizers import Tokenizer, processors

from runtime.interop.huggingface_config import InteropError, from_config_json, read_json, to_config_json
from runtime.interop.huggingface_weights import (
    CONFIG,
    EMBED,
    HEAD,
    INDEX,
    NORM,
    QK_NORM_NAMES,
    WEIGHTS,
    StoredLeaf,
    layer_names,
    stored_leaves,
)
from runtime.model.config import LlamaConfig, Rope
from runtime.model.llama import Llama, LlamaLayers

Dtype = Literal["float32", "bfloat16"]
DTYPES: dict[str, np.dtype] = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
MAX_SHARD_SIZE_IN_BYTES = 5_000_000_000


class SpecialTokens(NamedTuple):
    """Ids that the export names; `bos` only where the model was trained to see one."""

    eos_token_id: int
    bos_token_id: int | None


class ImportedModel(NamedTuple):
    """What a folder holds, as our own types."""

    params: Llama
    config: LlamaConfig
    rope: Rope
    special_tokens: SpecialTokens
    tokenizer: Tokenizer


def write_model(
    folder: str,
    params: Llama,
    config: LlamaConfig,
    rope: Rope,
    special_tokens: SpecialTokens,
    *,
    dtype: Dtype,
    max_shard_size_in_bytes: int = MAX_SHARD_SIZE_IN_BYTES,
) -> tuple[str, ...]:
    """Writes config.json, generation_config.json and the weights; returns the names of the files.

    One shard at a time is held in memory, beside `params`.
    """
    filesystem, path = fsspec.core.url_to_fs(folder)
    filesystem.makedirs(path, exist_ok=True)
    eos_token_id, bos_token_id = special_tokens
    config_json = to_config_json(config, rope, eos_token_id=eos_token_id, bos_token_id=bos_token_id, dtype=dtype)
    generation_json = {
        "bos_token_id": bos_token_id,
        "do_sample": False,
        "eos_token_id": eos_token_id,
        # Without one, each call of `generate` warns that it takes the end-of-text token, as it should.
        "pad_token_id": eos_token_id,
    }
    _write_json(folder, CONFIG, config_json)
    _write_json(folder, "generation_config.json", generation_json)
    weights = _write_weights(folder, params, DTYPES[dtype], max_shard_size_in_bytes)
    return (CONFIG, "generation_config.json", *weights)


def write_tokenizer(
    folder: str, tokenizer_file: str, special_tokens: SpecialTokens, *, vocab_size: int, max_length: int
) -> tuple[str, ...]:
    """Writes tokenizer.json and tokenizer_config.json; returns the names of the files.

    A model trained on documents that open with BOS must be given one: where the file does not say so itself, its
    post-processor is told to; and it pads and cuts nothing. Otherwise tokenizer.json is copied byte for byte.
    """
    with fsspec.open(tokenizer_file, "rb") as source:
        content = source.read()
    tokenizer = Tokenizer.from_str(content.decode())
    # Not their number: ids may have gaps, and one behind the last row is as wrong as one token too many.
    if (num_ids := max(tokenizer.get_vocab().values(), default=-1) + 1) > vocab_size:
        raise InteropError(
            f"{tokenizer_file}: {num_ids} ids, but the model's vocab_size is {vocab_size}; "
            "this is not the tokenizer that the model was trained with."
        )
    if tokenizer.padding is not None or tokenizer.truncation is not None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        content = tokenizer.to_str(pretty=True).encode()
    eos, bos = (
        _token_text(tokenizer, token_id, role, tokenizer_file)
        for token_id, role in zip(special_tokens, ("eos_token", "bos_token"), strict=True)
    )
    added = tokenizer.encode("").ids
    wanted = [] if bos is None else [special_tokens.bos_token_id]
    if not added and bos is not None:
        _add_bos(tokenizer, bos, special_tokens)
        content = tokenizer.to_str(pretty=True).encode()
    elif added != wanted:
        raise InteropError(
            f"{tokenizer_file}: its post-processor adds the ids {added} to a text, and the model was trained "
            f"with {wanted}; give the right bos_token_id, or a tokenizer without that post-processor."
        )
    tokenizer_config: dict[str, Any] = {
        "added_tokens_decoder": {},
        "bos_token": bos,
        "clean_up_tokenization_spaces": False,
        "eos_token": eos,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": max_length,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    with fsspec.open(f"{folder}/tokenizer.json", "wb") as target:
        target.write(content)
    _write_json(folder, "tokenizer_config.json", tokenizer_config)
    return ("tokenizer.json", "tokenizer_config.json")


def read_model(folder: str, *, as_stored: bool = False) -> ImportedModel:
    """Reads a folder that this module or `transformers` wrote; every tensor must be known and present.

    Args:
        folder: Local, or anything that fsspec opens.
        as_stored: Keep the dtype that was stored, half of the memory for a bfloat16 model; by default parameters are
            float32, as training has them. A model computes the same from both: it casts each layer when it uses it.
    """
    filesystem, path = fsspec.core.url_to_fs(folder)
    names = (entry.rpartition("/")[2] for entry in filesystem.ls(path, detail=False))
    files = {name: f"{folder}/{name}" for name in names}
    config_file = f"{folder}/{CONFIG}"
    document = read_json(config_file)
    config, rope = from_config_json(document, config_file)
    eos = document.get("eos_token_id")
    eos = eos[0] if isinstance(eos, list) else eos  # chat models list several; the first ends a text
    if eos is None:
        raise InteropError(f"{config_file}: eos_token_id is not given; without it no text has an end.")
    with fsspec.open(f"{folder}/tokenizer.json", "rb") as file:
        tokenizer = Tokenizer.from_str(file.read().decode())
    tokenizer.no_padding()
    tokenizer.no_truncation()
    special_tokens = SpecialTokens(eos, document.get("bos_token_id"))
    leaves = {name: _whole(leaf, as_stored=as_stored) for name, leaf in stored_leaves(files, config).items()}
    norms: dict[str, Any] = dict.fromkeys(QK_NORM_NAMES)
    layers = {field: leaves[f"layers.{field}"] for field in layer_names(use_qk_norm=config.use_qk_norm)}
    params = Llama(
        embed_tokens=leaves["embed_tokens"],
        layers=LlamaLayers(**(norms | layers)),
        norm=leaves["norm"],
        lm_head=leaves.get("lm_head"),
    )
    return ImportedModel(params, config, rope, special_tokens, tokenizer)


def state_dict(params: Llama) -> Iterator[tuple[str, np.ndarray]]:
    """Hugging Face names and float32 arrays, in the order of the forward pass, a layer at a time."""
    yield EMBED, np.asarray(params.embed_tokens)
    names = layer_names(use_qk_norm=params.layers.q_norm is not None)
    for index in range(params.layers.q_proj.shape[0]):
        for field, name in names.items():
            value = np.asarray(getattr(params.layers, field)[index])
            yield f"model.layers.{index}.{name}.weight", np.ascontiguousarray(value.T)
    yield NORM, np.asarray(params.norm)
    if params.lm_head is not None:
        yield HEAD, np.ascontiguousarray(np.asarray(params.lm_head).T)


def _write_weights(folder: str, params: Llama, dtype: np.dtype, max_shard_size_in_bytes: int) -> tuple[str, ...]:
    sizes = {name: size * dtype.itemsize for name, size in _sizes(params).items()}
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > max_shard_size_in_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    files = (
        [WEIGHTS]
        if len(shards) == 1
        else [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    )
    tensors = state_dict(params)
    for file, names in zip(files, shards, strict=True):
        content = {}
        for name in names:
            found, value = next(tensors)
            assert found == name
            if not np.isfinite(value).all():
                raise InteropError(f"{name}: values that are not finite; a diverged model is not exported.")
            content[name] = value.astype(dtype)
        with fsspec.open(f"{folder}/{file}", "wb") as target:
            # One key only: safetensors writes the keys of its metadata in an order that changes from run to run.
            target.write(safetensors.numpy.save(content, metadata={"format": "pt"}))
    if len(files) == 1:
        return tuple(files)
    index = {
        "metadata": {"total_size": sum(sizes.values())},
        "weight_map": {name: file for file, names in zip(files, shards, strict=True) for name in names},
    }
    _write_json(folder, INDEX, index)
    return (*files, INDEX)


def _sizes(params: Llama) -> dict[str, int]:
    """Numbers of values, in the order of `state_dict`, without touching them."""
    sizes = {EMBED: params.embed_tokens.size}
    depth, names = params.layers.q_proj.shape[0], layer_names(use_qk_norm=params.layers.q_norm is not None)
    for index in range(depth):
        for field, name in names.items():
            sizes[f"model.layers.{index}.{name}.weight"] = getattr(params.layers, field).size // depth
    sizes[NORM] = params.norm.size
    if params.lm_head is not None:
        sizes[HEAD] = params.lm_head.size
    return sizes


def _whole(leaf: StoredLeaf, *, as_stored: bool) -> jax.Array:
    value = leaf.whole()
    return jnp.asarray(value if as_stored else value.astype(np.float32))


def _token_text(tokenizer: Tokenizer, token_id: int | None, role: str, file: str) -> str | None:
    if token_id is None:
        return None
    text = tokenizer.id_to_token(token_id)
    if text is None:
        raise InteropError(f"{file}: no token has the id {token_id} that is meant as {role}.")
    return text


def _add_bos(tokenizer: Tokenizer, bos: str, special_tokens: SpecialTokens) -> None:
    template = processors.TemplateProcessing(
        single=f"{bos}:0 $A:0",
        pair=f"{bos}:0 $A:0 {bos}:1 $B:1",
        special_tokens=[(bos, special_tokens.bos_token_id)],
    )
    before = tokenizer.post_processor
    tokenizer.post_processor = template if before is None else processors.Sequence([before, template])


def _write_json(folder: str, name: str, document: dict[str, Any]) -> None:
    with fsspec.open(f"{folder}/{name}", "wb") as file:
        file.write((json.dumps(document, indent=2, sort_keys=True) + "\n").encode())
