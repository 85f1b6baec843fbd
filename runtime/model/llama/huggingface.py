"""Hugging Face's `config.json` of a Llama, both ways: importable without JAX.

A Llama with query and key norms is a Qwen3 there (arXiv:2505.09388); Marin's 32B is one.
"""

from typing import Any, get_type_hints

from runtime.model.config import Rope
from runtime.model.huggingface import InteropError, rope_from_json, rope_to_json
from runtime.model.initialization import FIXED, Initialization
from runtime.model.llama.config import LlamaConfig

LLAMA, QWEN3 = "llama", "qwen3"
MODEL_TYPES = {LLAMA: "LlamaForCausalLM", QWEN3: "Qwen3ForCausalLM"}
SHAPE_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
)
PLAIN = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "partial_rotary_factor": 1,
    "pretraining_tp": 1,
    "quantization_config": None,
}
"""Only values, where a file has the key, of features that `Llama` does not have."""
DEFAULTS = {"rms_norm_eps": 1e-6, "tie_word_embeddings": False}
"""Values that Hugging Face's LlamaConfig and Qwen3Config give to keys that a file omits; it must have all others."""


def to_config_json(
    config: LlamaConfig, rope: Rope, *, eos_token_id: int, bos_token_id: int | None, dtype: str
) -> dict[str, Any]:
    """Return the document for `config.json`."""
    kind = QWEN3 if config.use_qk_norm else LLAMA
    own = {"use_sliding_window": False} if config.use_qk_norm else {"mlp_bias": False}
    return {
        "architectures": [MODEL_TYPES[kind]],
        "model_type": kind,
        **{name: getattr(config, name) for name in SHAPE_FIELDS},
        "initializer_range": config.initialization.deviation(config.hidden_size),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": bos_token_id,
        "eos_token_id": eos_token_id,
        "hidden_act": "silu",
        **own,
        **rope_to_json(rope, max_length=config.max_position_embeddings),
        "torch_dtype": dtype,
        "use_cache": True,
    }


def from_config_json(document: dict[str, Any], file: str) -> tuple[LlamaConfig, Rope]:
    """Return the configuration in a `config.json`; `file` is its name in errors.

    Raises:
        InteropError: the model is neither a plain Llama nor a plain Qwen3.
    """
    kind = document["model_type"]
    for name, expected in PLAIN.items():
        if (found := document.get(name)) is not None and found != expected:
            raise InteropError(f"{file}: {name} is {found!r}; only {expected!r} can be read.")
    values = {**DEFAULTS, **{name: document[name] for name in SHAPE_FIELDS if document.get(name) is not None}}
    for name, type_ in get_type_hints(LlamaConfig).items():
        if name in values and type(values[name]) not in ((int, float) if type_ is float else (type_,)):
            raise InteropError(
                f"{file}: {name} is {values[name]!r}, not of type {type_.__name__}; fetch the file again."
            )
    layers = document.get("layer_types") or []
    if not isinstance(layers, list) or any(layer != "full_attention" for layer in layers):
        raise InteropError(f"{file}: layer_types is {layers!r}; only 'full_attention' can be read.")
    # A Qwen3Config's defaults of these do not follow from the model's other sizes; its files always have them.
    if kind == LLAMA and "num_attention_heads" in values and "hidden_size" in values:
        values.setdefault("num_key_value_heads", values["num_attention_heads"])
        values.setdefault("head_dim", values["hidden_size"] // values["num_attention_heads"])
    if missing := [name for name in SHAPE_FIELDS if name not in values]:
        raise InteropError(f"{file}: has no {', '.join(missing)}; fetch the file of a model that states its shape.")
    try:
        deviation = document.get("initializer_range")
        initialization = FIXED if deviation is None else Initialization(factor=deviation)
        config = LlamaConfig(**values, initialization=initialization, use_qk_norm=kind == QWEN3)
        return config, rope_from_json(document, file)
    except InteropError:
        raise
    except (TypeError, ValueError) as error:  # a value of another type, or out of range
        raise InteropError(f"{file}: the shape or the rotary embedding cannot be read: {error}") from error
