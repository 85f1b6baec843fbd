"""Hugging Face's `config.json`, read, and compared with a recipe's model: importable without JAX."""

import dataclasses
import json
import shlex
from typing import Any

from runtime.model.architectures import config_from_huggingface
from runtime.model.config import ModelConfig, Rope
from runtime.model.huggingface import InteropError, rope_from_json, rope_to_json
from runtime.text.extraction.extracted import DamagedFileError
from runtime.text.extraction.limits import read_bounded


def read_json(file: str) -> dict[str, Any]:
    """Return a JSON object. Raise InteropError if the file holds no JSON object."""
    try:
        document = json.loads(read_bounded(file))
    except DamagedFileError as error:
        raise InteropError(str(error)) from error
    except (ValueError, RecursionError) as error:
        raise InteropError(f"{file}: torn or not JSON ({error}); fetch or export it again.") from error
    if not isinstance(document, dict):
        raise InteropError(f"{file}: holds a {type(document).__name__}, not a JSON object; fetch it again.")
    return document


def read_text(file: str) -> str:
    """Return the text of a file. Raise InteropError if the file is too large or not in UTF-8."""
    try:
        return read_bounded(file).decode()
    except DamagedFileError as error:
        raise InteropError(str(error)) from error
    except UnicodeDecodeError as error:
        raise InteropError(f"{file}: not in UTF-8 ({error}); fetch or export it again.") from error


def check_same_model(document: dict[str, Any], file: str, config: ModelConfig, rope: Rope) -> None:
    """Raise InteropError, with the settings to type, where a recipe's `config` and `rope` are not the document's."""
    found_config, found_rope = config_from_huggingface(document, file)
    found_config = dataclasses.replace(found_config, initialization=config.initialization)  # trained weights keep none
    # An export writes a scaling in other numbers of the same meaning, which depend on the folder's context.
    written = rope_from_json(rope_to_json(rope, max_length=found_config.max_position_embeddings), file)
    if found_rope == written:
        found_rope = rope
    pairs: list[tuple[str, Any, Any]] = [("model", found_config, config), ("rope", found_rope, rope)]
    others = [
        f"  {what}.{field.name} is {getattr(wanted, field.name)!r} in the recipe and {there!r} in the file"
        for what, found, wanted in pairs
        for field in dataclasses.fields(wanted)
        if getattr(wanted, field.name) != (there := getattr(found, field.name))
    ]
    if others:
        settings = " ".join(f"--set {shlex.quote(text)}" for pair in pairs for text in _settings(*pair))
        first = f"{file}: these weights are of another model than the recipe's:"
        last = f"Set it in each phase that starts from this import: {settings}"
        raise InteropError("\n".join([first, *others, last]))


def _settings(what: str, found: Any, wanted: Any) -> list[str]:
    """Return `PHASE.FIELD=TEXT` that turns `wanted` into `found`; one setting for several fields, valid together."""
    there, here = dataclasses.asdict(found), dataclasses.asdict(wanted)
    others = [field for field in there if there[field] != here[field]]
    if len(others) == 1:
        return [f"PHASE.{what}.{others[0]}={json.dumps(there[others[0]])}"]
    return [f"PHASE.{what}={json.dumps(there)}"] if others else []
