"""Hugging Face folders: a model and its tokenizer as `transformers` reads them, both ways, the same bytes each time."""

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import fsspec
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import safetensors.numpy
from tokenizers import Tokenizer, processors

from runtime.interop import chat_template
from runtime.interop.chat_template import ChatTemplate, ChatTemplateError
from runtime.interop.huggingface_config import read_json, read_text
from runtime.interop.huggingface_weights import CONFIG, INDEX, WEIGHTS, Stored, stored_as, stored_leaves
from runtime.model.architectures import config_from_huggingface
from runtime.model.config import ModelConfig, Rope
from runtime.model.huggingface import InteropError
from runtime.model.model import STACKED, Model, Params, abstract_params, leaves_by_name, map_tensors

Dtype = Literal["float32", "bfloat16"]
DTYPES: dict[str, np.dtype] = {"float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
TOKENIZER = "tokenizer.json"
GENERATION = "generation_config.json"
MAX_SHARD_SIZE_IN_BYTES = 5_000_000_000


class SpecialTokens(NamedTuple):
    """Ids that the export names; `bos_token_id` is None where the model was trained without one."""

    eos_token_id: int
    bos_token_id: int | None


class ImportedModel(NamedTuple):
    """Contents of a folder, as our own types."""

    params: Params
    config: ModelConfig
    rope: Rope
    special_tokens: SpecialTokens
    tokenizer: Tokenizer
    end_token_ids: tuple[int, ...]
    """Tokens that end a text; chat models have several."""
    template: ChatTemplate | None


def write_model(
    folder: str,
    params: Params,
    config: ModelConfig,
    rope: Rope,
    special_tokens: SpecialTokens,
    *,
    dtype: Dtype,
    max_shard_size_in_bytes: int = MAX_SHARD_SIZE_IN_BYTES,
) -> tuple[str, ...]:
    """Write config.json, generation_config.json and the weights; return the names of the files.

    Memory holds one shard at a time, beside `params`. Raise UnknownTensorError if a parameter has no name in Hugging
    Face's format. Raise InteropError if a value is not finite.
    """
    filesystem, path = fsspec.core.url_to_fs(folder)
    filesystem.makedirs(path, exist_ok=True)
    eos_token_id, bos_token_id = special_tokens
    config_json = config.to_huggingface(rope, eos_token_id=eos_token_id, bos_token_id=bos_token_id, dtype=dtype)
    # Without `pad_token_id`, each call of `generate` warns that it pads with the end-of-text token, as it should.
    generation_json = {"bos_token_id": bos_token_id, "do_sample": False}
    generation_json |= {"eos_token_id": eos_token_id, "pad_token_id": eos_token_id}
    _write_json(folder, CONFIG, config_json)
    _write_json(folder, GENERATION, generation_json)
    weights = _write_weights(folder, config.build(), params, DTYPES[dtype], max_shard_size_in_bytes)
    return (CONFIG, GENERATION, *weights)


def exported_tokenizer(
    tokenizer_file: str, special_tokens: SpecialTokens, *, vocab_size: int
) -> tuple[Tokenizer, bytes]:
    """Return the tokenizer of an export, and its tokenizer.json.

    The post-processor gets to add BOS where the model was trained with it, and padding and truncation are removed.
    Where neither is needed, the content of the file is as it was.
    """
    with fsspec.open(tokenizer_file, "rb") as source:
        content = source.read()
    tokenizer = Tokenizer.from_str(content.decode())
    # Not the number of tokens: ids may have gaps, and one past the last row is wrong.
    if (num_ids := max(tokenizer.get_vocab().values(), default=-1) + 1) > vocab_size:
        raise InteropError(
            f"{tokenizer_file}: has {num_ids} ids, and the model's vocab_size is {vocab_size}; use the tokenizer that "
            "the model was trained with."
        )
    if tokenizer.padding is not None or tokenizer.truncation is not None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        content = tokenizer.to_str(pretty=True).encode()
    bos = _token_text(tokenizer, special_tokens.bos_token_id, "bos_token", tokenizer_file)
    added = tokenizer.encode("").ids
    wanted = [] if bos is None else [special_tokens.bos_token_id]
    if not added and bos is not None:
        _add_bos(tokenizer, bos, special_tokens.bos_token_id)
        content = tokenizer.to_str(pretty=True).encode()
    elif added != wanted:
        raise InteropError(
            f"{tokenizer_file}: its post-processor adds the ids {added} to a text, and the model was trained with "
            f"{wanted}; use the bos_token_id of training, or a tokenizer without that post-processor."
        )
    return tokenizer, content


def write_tokenizer(
    folder: str, tokenizer_file: str, special_tokens: SpecialTokens, *, vocab_size: int, max_length: int
) -> tuple[str, ...]:
    """Write tokenizer.json and tokenizer_config.json; return the names of the files."""
    tokenizer, content = exported_tokenizer(tokenizer_file, special_tokens, vocab_size=vocab_size)
    tokenizer_config: dict[str, Any] = {
        "added_tokens_decoder": {},
        "bos_token": _token_text(tokenizer, special_tokens.bos_token_id, "bos_token", tokenizer_file),
        "clean_up_tokenization_spaces": False,
        "eos_token": _token_text(tokenizer, special_tokens.eos_token_id, "eos_token", tokenizer_file),
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": max_length,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    with fsspec.open(f"{folder}/tokenizer.json", "wb") as target:
        target.write(content)
    _write_json(folder, "tokenizer_config.json", tokenizer_config)
    return ("tokenizer.json", "tokenizer_config.json")


def read_model(folder: str, *, as_stored: bool = False) -> ImportedModel:
    """Read a folder that this module or `transformers` wrote; every tensor must be known and present.

    Parameters are float32, as in training. With `as_stored` they keep the stored dtype, half of the memory for a
    bfloat16 model, which computes the same: it casts each layer when it uses it.
    """
    filesystem, path = fsspec.core.url_to_fs(folder)
    names = (entry.rpartition("/")[2] for entry in filesystem.ls(path, detail=False))
    return read_model_files({name: f"{folder}/{name}" for name in names}, folder, as_stored=as_stored)


def read_model_files(files: Mapping[str, str], source: str, *, as_stored: bool = False) -> ImportedModel:
    """Read a model as `read_model` does, from paths by name in the folder; messages name their `source`."""
    if missing := [name for name in (CONFIG, TOKENIZER) if name not in files]:
        raise InteropError(
            f"{source}: has no {' and no '.join(missing)}, only {', '.join(sorted(files)) or 'nothing'}."
        )
    config_file = files[CONFIG]
    document = read_json(config_file)
    config, rope = config_from_huggingface(document, config_file)
    tokenizer = _tokenizer(files[TOKENIZER])
    tokenizer.no_padding()
    tokenizer.no_truncation()
    special_tokens, ends = _special_tokens(document, files, tokenizer)
    model = config.build()
    leaves = stored_leaves(files, model)
    dtype = None if as_stored else jnp.float32
    params = map_tensors(model, lambda name, *_: jnp.asarray(leaves[name].whole(), dtype), abstract_params(model))
    return ImportedModel(params, config, rope, special_tokens, tokenizer, ends, _template(files, source))


def _tokenizer(file: str) -> Tokenizer:
    content = read_text(file)
    try:
        return Tokenizer.from_str(content)
    except Exception as error:  # the library raises nothing narrower
        raise InteropError(f"{file}: no tokenizer ({error}); fetch or export it again.") from error


def _special_tokens(
    document: Mapping[str, Any], files: Mapping[str, str], tokenizer: Tokenizer
) -> tuple[SpecialTokens, tuple[int, ...]]:
    """Return EOS and BOS as `transformers` reads them, and all tokens that end a text.

    The tokenizer's own description goes before the model's, which often names a BOS that no text has. The tokens that
    end a text are those of generation_config.json, where it names any.
    """
    named = _token_ids(document, "eos_token_id", files[CONFIG])
    generation = read_json(files[GENERATION]) if GENERATION in files else {}
    ends = _token_ids(generation, "eos_token_id", files.get(GENERATION, "")) or named
    if not ends:
        raise InteropError(f"{files[CONFIG]}: has no eos_token_id, so no text would end; add it.")
    described_in = files.get(chat_template.CONFIG)
    described = {} if described_in is None else read_json(described_in)
    ids = {
        role: _described_id(described[role], role, str(described_in), tokenizer)
        for role in ("eos_token", "bos_token")
        if role in described
    }
    eos = ids.get("eos_token")
    eos = (named or ends)[0] if eos is None else eos
    bos = next(iter(_token_ids(document, "bos_token_id", files[CONFIG])), None)
    bos = ids.get("bos_token", bos)
    return SpecialTokens(eos, bos), tuple(dict.fromkeys((eos, *ends)))


def _token_ids(document: Mapping[str, Any], field: str, file: str) -> list[int]:
    value = document.get(field)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(token) is int for token in ids):
        raise InteropError(f"{file}: {field} is {value!r}, neither an id nor a list of ids; correct it.")
    return ids


def _described_id(token: Any, role: str, file: str, tokenizer: Tokenizer) -> int | None:
    """Return the id of a token that tokenizer_config.json names by its text, or None where it names none."""
    text = token.get("content") if isinstance(token, dict) else token
    if token is None:
        return None
    if not isinstance(text, str):
        raise InteropError(f'{file}: {role} is {token!r}, neither a text nor {{"content": TEXT}}; correct it.')
    found = tokenizer.token_to_id(text)
    if found is None:
        raise InteropError(
            f"{file}: {role} {text!r} is no token of {TOKENIZER}. `transformers` would give it a new id, which the "
            f"model was not trained with; name a token of {TOKENIZER}, or null."
        )
    return found


def _template(files: Mapping[str, str], source: str) -> ChatTemplate | None:
    """Return the chat template of a folder; raise InteropError where it cannot be read."""
    names = (chat_template.FILE, chat_template.CONFIG)
    texts = {name: read_text(files[name]) for name in names if name in files}
    try:
        return chat_template.chat_template(texts)
    except ChatTemplateError as error:
        raise InteropError(f"{source}: {error}; correct the file.") from error


def state_dict(model: Model, params: Params) -> Iterator[tuple[str, np.ndarray]]:
    """Yield Hugging Face's names and float32 arrays, in the order of the model's table, a layer at a time."""
    stored, leaves = stored_as(model, params), leaves_by_name(params)
    for name, layer in _in_order(stored):
        value = np.asarray(leaves[name][layer] if name.startswith(STACKED) else leaves[name])
        yield stored[name].names[layer], np.ascontiguousarray(value.T if stored[name].row.is_transposed else value)


def _in_order(stored: Mapping[str, Stored]) -> Iterator[tuple[str, int]]:
    """Yield the leaf and the layer of each of Hugging Face's tensors; of the stacked leaves, layer by layer."""
    for _, group in itertools.groupby(stored, lambda name: name.startswith(STACKED)):
        names = list(group)
        yield from ((name, layer) for layer in range(len(stored[names[0]].names)) for name in names)


def _write_weights(
    folder: str, model: Model, params: Params, dtype: np.dtype, max_shard_size_in_bytes: int
) -> tuple[str, ...]:
    stored = stored_as(model, params)
    sizes = {
        stored[name].names[layer]: math.prod(stored[name].shape) * dtype.itemsize for name, layer in _in_order(stored)
    }
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > max_shard_size_in_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    count = len(shards)
    files = [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]
    files = [WEIGHTS] if count == 1 else files
    tensors = state_dict(model, params)
    for file, names in zip(files, shards, strict=True):
        content = {}
        for name in names:
            found, value = next(tensors)
            assert found == name
            if not np.isfinite(value).all():
                raise InteropError(
                    f"{name}: has values that are not finite, so the model diverged; export an earlier checkpoint."
                )
            content[name] = value.astype(dtype)
        with fsspec.open(f"{folder}/{file}", "wb") as target:
            # One key only: safetensors writes the keys of metadata in an order that changes from run to run.
            target.write(safetensors.numpy.save(content, metadata={"format": "pt"}))
    if count == 1:
        return tuple(files)
    weight_map = {name: file for file, names in zip(files, shards, strict=True) for name in names}
    _write_json(folder, INDEX, {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map})
    return (*files, INDEX)


def _token_text(tokenizer: Tokenizer, token_id: int | None, role: str, file: str) -> str | None:
    if token_id is None:
        return None
    text = tokenizer.id_to_token(token_id)
    if text is None:
        raise InteropError(f"{file}: has no token with the id {token_id}, the {role}; use the tokenizer of training.")
    return text


def _add_bos(tokenizer: Tokenizer, bos: str, bos_token_id: int | None) -> None:
    single, pair = f"{bos}:0 $A:0", f"{bos}:0 $A:0 {bos}:1 $B:1"
    template = processors.TemplateProcessing(single=single, pair=pair, special_tokens=[(bos, bos_token_id)])
    before = tokenizer.post_processor
    tokenizer.post_processor = template if before is None else processors.Sequence([before, template])


def _write_json(folder: str, name: str, document: dict[str, Any]) -> None:
    with fsspec.open(f"{folder}/{name}", "wb") as file:
        file.write((json.dumps(document, indent=2, sort_keys=True) + "\n").encode())
