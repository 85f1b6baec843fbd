"""Hugging Face's config.json: what its readers and writers share across architectures. No JAX.

Written with the keys that every released reader knows (`rope_theta` and `rope_scaling` at the top level). Newer
`transformers` save the same facts under `rope_parameters`; both forms are read.
"""

from typing import Any

from runtime.model.config import Rope, RopeScaling

DEFAULT_ROPE_THETA = 10_000.0
SCALING_FIELDS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


class InteropError(ValueError):
    """A folder or a model that Hugging Face's libraries and this project would not read alike."""


def rope_to_json(rope: Rope, *, max_length: int) -> dict[str, Any]:
    """Return the rotary embedding's keys of config.json, for a model of `max_length` positions.

    `transformers` warns where the scaling's original length is not below the model's own (here 8192 for a context of
    4096). Frequencies depend on that length only through how often a wavelength fits into it, compared with two
    factors: halved together, the three give the same frequencies to the last bit.
    """
    scaling = rope.scaling
    if scaling is None:
        return {"rope_scaling": None, "rope_theta": rope.rope_theta}
    original = scaling.original_max_position_embeddings
    while original >= max_length and original > 1:
        original //= 2
    ratio = original / scaling.original_max_position_embeddings
    scaled = {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor * ratio,
        "high_freq_factor": scaling.high_freq_factor * ratio,
        "original_max_position_embeddings": original,
    }
    return {"rope_scaling": scaled, "rope_theta": rope.rope_theta}


def rope_from_json(document: dict[str, Any], file: str) -> Rope:
    """Return the rotary embedding of a config.json; raise InteropError where it has a form that no `Rope` has."""
    parameters = dict(document.get("rope_parameters") or document.get("rope_scaling") or {})
    theta = float(parameters.pop("rope_theta", document.get("rope_theta", DEFAULT_ROPE_THETA)))
    kind = parameters.pop("rope_type", parameters.pop("type", "default"))
    if kind not in ("default", "llama3"):
        raise InteropError(f"{file}: rotary scaling is {kind!r}; only 'default' and 'llama3' can be read.")
    if (share := parameters.pop("partial_rotary_factor", None)) not in (None, 1):
        raise InteropError(f"{file}: partial_rotary_factor is {share!r}; only 1 can be read.")
    if unknown := sorted({name for name, value in parameters.items() if value is not None} - {*SCALING_FIELDS}):
        raise InteropError(
            f"{file}: the rotary embedding has {', '.join(unknown)}; only {', '.join(SCALING_FIELDS)} can be read."
        )
    if kind == "default":
        return Rope(rope_theta=theta)
    if missing := [name for name in SCALING_FIELDS if name not in parameters]:
        raise InteropError(f"{file}: the llama3 rotary scaling has no {', '.join(missing)}; fetch the file again.")
    scaling = RopeScaling(
        factor=float(parameters["factor"]),
        low_freq_factor=float(parameters["low_freq_factor"]),
        high_freq_factor=float(parameters["high_freq_factor"]),
        original_max_position_embeddings=int(parameters["original_max_position_embeddings"]),
    )
    return Rope(rope_theta=theta, scaling=scaling)
