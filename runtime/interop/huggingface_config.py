"""Hugging Face's `config.json` for a Llama, both ways: importable without JAX.

One with query and key norms is a Qwen3 there, which is a Llama with just these (arXiv:2505.09388); Marin's 32B is one.

Written with the keys that every released reader knows (`rope_theta` and `rope_scaling` at the top level); newer
`transformers` save the same facts under `rope_parameters`, and both forms are read.
"""

import dataclasses
import json
import shlex
from typing import Any, get_type_hints

import fsspec

from runtime.model.config import LlamaConfig, Rope, RopeScaling

LLAMA, QWEN3 = "llama", "qwen3"
ARCHITECTURES = {LLAMA: "LlamaForCausalLM", QWEN3: "Qwen3ForCausalLM"}
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
    "initializer_range",
    "tie_word_embeddings",
)
PLAIN = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "partial_rotary_factor": 1,
}
"""What a file says of what neither side has, if it says anything."""
# What Hugging Face's LlamaConfig and Qwen3Config assume of keys that a file leaves out; the rest must be written.
DEFAULTS = {"rms_norm_eps": 1e-6, "initializer_range": 0.02, "tie_word_embeddings": False}
DEFAULT_ROPE_THETA = 10_000.0
SCALING_FIELDS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


class InteropError(ValueError):
    """A folder or a model that the two sides would not read alike."""


def read_json(file: str) -> dict[str, Any]:
    """A document of a folder.

    Raises:
        InteropError: it is no JSON object.
    """
    with fsspec.open(file, "rb") as source:
        content = source.read()
    try:
        document = json.loads(content)
    except ValueError as error:
        raise InteropError(f"{file}: torn or not JSON ({error}); fetch or export it again.") from error
    if not isinstance(document, dict):
        raise InteropError(f"{file}: {type(document).__name__}, where a JSON object belongs; fetch it again.")
    return document


def to_config_json(
    config: LlamaConfig, rope: Rope, *, eos_token_id: int, bos_token_id: int | None, dtype: str
) -> dict[str, Any]:
    """The document for `config.json`."""
    kind = QWEN3 if config.use_qk_norm else LLAMA
    own = {"use_sliding_window": False} if config.use_qk_norm else {"mlp_bias": False}
    return {
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        **{name: getattr(config, name) for name in SHAPE_FIELDS},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": bos_token_id,
        "eos_token_id": eos_token_id,
        "hidden_act": "silu",
        **own,
        "rope_scaling": None
        if rope.scaling is None
        else _rope_scaling(rope.scaling, max_length=config.max_position_embeddings),
        "rope_theta": rope.rope_theta,
        "torch_dtype": dtype,
        "use_cache": True,
    }


def _rope_scaling(scaling: RopeScaling, *, max_length: int) -> dict[str, Any]:
    """Llama-3 scaling for a model of a shorter context than the scaling was made for, in words `transformers` accepts.

    It warns where the original length is not below the model's own, and ours is 8192 for a context of 4096. The
    frequencies depend on the length only through how often a wavelength fits into it, against two factors: with all
    three halved together they stay the same to the last bit, and the context that the file names stays the true one.
    """
    original = scaling.original_max_position_embeddings
    while original >= max_length and original > 1:
        original //= 2
    ratio = original / scaling.original_max_position_embeddings
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor * ratio,
        "high_freq_factor": scaling.high_freq_factor * ratio,
        "original_max_position_embeddings": original,
    }


def from_config_json(document: dict[str, Any], file: str) -> tuple[LlamaConfig, Rope]:
    """Our configuration for a `config.json`; refuses a model that is neither a plain Llama nor a plain Qwen3.

    Args:
        document: what the file holds.
        file: for messages.
    """
    kind = document.get("model_type")
    if kind not in ARCHITECTURES:
        raise InteropError(
            f"{file}: model_type is {kind!r}; only {' and '.join(map(repr, ARCHITECTURES))} are read here."
        )
    for name, expected in PLAIN.items():
        if document.get(name) is not None:
            _require(document, file, name, expected)
    if document.get("pretraining_tp", 1) != 1:
        raise InteropError(f"{file}: pretraining_tp is {document['pretraining_tp']}; only 1 gives the same logits.")
    values = {**DEFAULTS, **{name: document[name] for name in SHAPE_FIELDS if document.get(name) is not None}}
    for name, kind_of in get_type_hints(LlamaConfig).items():
        if name in values and type(values[name]) not in ((int, float) if kind_of is float else (kind_of,)):
            raise InteropError(f"{file}: {name} is {values[name]!r}, where {kind_of.__name__} belongs.")
    layers = document.get("layer_types") or []
    if not isinstance(layers, list) or any(layer != "full_attention" for layer in layers):
        raise InteropError(f"{file}: layer_types is {layers!r}; only 'full_attention' is known here.")
    # What Qwen3Config assumes of these has nothing to do with the model's other sizes; its files write them.
    if kind == LLAMA and "num_attention_heads" in values and "hidden_size" in values:
        values.setdefault("num_key_value_heads", values["num_attention_heads"])
        values.setdefault("head_dim", values["hidden_size"] // values["num_attention_heads"])
    if missing := [name for name in SHAPE_FIELDS if name not in values]:
        raise InteropError(f"{file}: {', '.join(missing)} not given; a model's config.json states its shape.")
    try:
        return LlamaConfig(**values, use_qk_norm=kind == QWEN3), _rope(document, file)
    except InteropError:
        raise
    except (TypeError, ValueError) as error:  # a number that is none, or none that a model has
        raise InteropError(f"{file}: shape or rotary embedding cannot be read ({error}).") from error


def refuse_another_model(document: dict[str, Any], file: str, config: LlamaConfig, rope: Rope) -> None:
    """Raises InteropError where `config` and `rope`, as a recipe says them, are not what config.json says."""
    found_config, found_rope = from_config_json(document, file)
    if rope.scaling is not None:  # an export says a scaling in other numbers that mean the same
        # Which numbers, the folder's context decides; where the recipe's is another, that alone is wrong.
        scaling = _rope_scaling(rope.scaling, max_length=found_config.max_position_embeddings)
        if found_rope == _rope({"rope_theta": rope.rope_theta, "rope_scaling": scaling}, file):
            found_rope = rope
    pairs: list[tuple[str, Any, Any]] = [("model", found_config, config), ("rope", found_rope, rope)]
    others = [
        f"  {what}.{field.name} is {getattr(said, field.name)!r}, and there {there!r}: write {field.name}={there!r}"
        for what, found, said in pairs
        for field in dataclasses.fields(said)
        if getattr(said, field.name) != (there := getattr(found, field.name))
    ]
    if others:
        first = f"{file}: these weights are of another model than the recipe says:"
        settings = " ".join(f"--set {shlex.quote(text)}" for pair in pairs for text in _settings(*pair))
        last = f"Write the same in each phase that starts from this import: `{settings}`"
        raise InteropError("\n".join([first, *others, last]))


def _settings(what: str, found: LlamaConfig | Rope, said: LlamaConfig | Rope) -> list[str]:
    """`PHASE.FIELD=TEXT` that turns `said` into `found`; as one where several fields differ, of which some alone may be
    refused."""
    there, here = dataclasses.asdict(found), dataclasses.asdict(said)
    others = [field for field in there if there[field] != here[field]]
    if len(others) == 1:
        return [f"PHASE.{what}.{others[0]}={json.dumps(there[others[0]])}"]
    return [f"PHASE.{what}={json.dumps(there)}"] if others else []


def _rope(document: dict[str, Any], file: str) -> Rope:
    parameters = dict(document.get("rope_parameters") or document.get("rope_scaling") or {})
    theta = float(parameters.pop("rope_theta", document.get("rope_theta", DEFAULT_ROPE_THETA)))
    kind = parameters.pop("rope_type", parameters.pop("type", "default"))
    if kind not in ("default", "llama3"):
        raise InteropError(f"{file}: rotary scaling {kind!r} is not known here; only 'default' and 'llama3' are.")
    if (share := parameters.pop("partial_rotary_factor", None)) not in (None, 1):
        raise InteropError(f"{file}: partial_rotary_factor is {share!r}; only 1 can be read as our Llama.")
    if unknown := sorted({name for name, value in parameters.items() if value is not None} - {*SCALING_FIELDS}):
        raise InteropError(
            f"{file}: {', '.join(unknown)} of its rotary embedding is not known here; only {', '.join(SCALING_FIELDS)} "
            "are."
        )
    if kind == "default":
        return Rope(rope_theta=theta)
    try:
        scaling = RopeScaling(
            factor=float(parameters["factor"]),
            low_freq_factor=float(parameters["low_freq_factor"]),
            high_freq_factor=float(parameters["high_freq_factor"]),
            original_max_position_embeddings=int(parameters["original_max_position_embeddings"]),
        )
    except KeyError as error:
        raise InteropError(f"{file}: llama3 rotary scaling without {error}; all four factors are needed.") from error
    return Rope(rope_theta=theta, scaling=scaling)


def _require(document: dict[str, Any], file: str, name: str, expected: object) -> None:
    if document.get(name) != expected:
        raise InteropError(f"{file}: {name} is {document.get(name)!r}; only {expected!r} can be read as our Llama.")
