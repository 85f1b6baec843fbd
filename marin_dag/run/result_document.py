"""Result document: the result of a step or shard function as JSON data."""

import json
import re
from typing import Any

from pydantic import BaseModel

from marin_dag.store.redact import check_no_secrets


def result_document(name: str, wanted: type[BaseModel], result: object, prefix: str) -> Any:
    """Return the result of the step `name` as JSON data.

    Raises:
        TypeError: it is no `wanted`, or JSON does not keep it as it is.
        ValueError: it holds the prefix, so that the same step would differ elsewhere.
    """
    if not isinstance(result, wanted):
        raise TypeError(f"{name}: returned {result!r}. Return a {wanted.__qualname__}, as the signature says.")
    data = json_data(result, wanted, name)
    # A path of its own or the beginning of one: "gs://bucket/data/x" is not below "/data".
    below_prefix = rf"(?:(?<=://)|(?<![\w./-])){re.escape(prefix)}(?![\w-]|\.\w)"
    text = json.dumps(data, ensure_ascii=False)
    if re.search(below_prefix, re.sub(r"\\[nrt]", " ", text)):
        raise ValueError(
            f"{name}: its result holds the prefix {prefix}, so that the same step would differ under another prefix. "
            "Return paths relative to context.output_path."
        )
    return data


def json_data(value: Any, model: type[BaseModel] | None, name: str) -> Any:
    """Return a pydantic model or a JSON value as JSON data; raise TypeError if JSON does not keep it as it is."""
    try:
        data = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
        data = json.loads(json.dumps(data, allow_nan=False))  # pydantic writes null for an infinity
        is_kept = (data if model is None else model.model_validate(data)) == value
    except (TypeError, ValueError):
        is_kept = False
    if not is_kept:
        raise TypeError(
            f"{name}: JSON does not keep its result as it is ({value!r}): a NaN, an infinity, a tuple, another key "
            "than a string? Return finite numbers, strings, lists, and models of them."
        )
    check_no_secrets(data, f"{name}: its result")
    return data
