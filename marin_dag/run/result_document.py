"""Result document: the result of a step function as the JSON data of its record."""

import json
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from marin_dag.store.redact import refuse_secrets


def result_document(name: str, wanted: type[BaseModel], result: object, prefix: str) -> Any:
    """Return the result of the step `name` as JSON data.

    Raises:
        TypeError: it is no `wanted`, or JSON does not keep it as it is.
        ValueError: it holds the prefix, so that the same step would differ elsewhere.
        UserError: it holds a secret.
    """
    if not isinstance(result, wanted):
        raise TypeError(f"{name}: returned {result!r}. Return a {wanted.__qualname__}, as the signature says.")
    data = result.model_dump(mode="json")
    try:
        json.dumps(data, allow_nan=False)  # pydantic writes null for an infinity
        is_kept = wanted.model_validate(data) == result
    except ValueError:
        is_kept = False
    if not is_kept:
        raise TypeError(
            f"{name}: JSON does not keep its result as it is ({result!r}); is it because of a NaN or an infinity? "
            "Use finite numbers, strings, and models of them."
        )
    # A path of its own or the beginning of one: "gs://bucket/data/x" is not below "/data".
    below_prefix = re.compile(rf"(?:(?<=://)|(?<![\w./-])){re.escape(prefix)}(?![\w-]|\.\w)")
    if any(below_prefix.search(text) for text in _texts(data)):
        raise ValueError(
            f"{name}: its result holds the prefix {prefix}, so that the same step would differ under another prefix. "
            "Return paths relative to context.output_path."
        )
    refuse_secrets(data, f"{name}: its result")
    return data


def _texts(data: Any) -> Iterator[str]:
    """Yield every string of a JSON document, including keys."""
    match data:
        case str():
            yield data
        case list():
            for item in data:
                yield from _texts(item)
        case dict():
            for name, item in data.items():
                yield name
                yield from _texts(item)
