"""Items: the strings of evaluation sets, from JSON-lines files given by task."""

import codecs
import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import fsspec

from runtime.text.extraction.limits import bounded_lines


class ItemField(NamedTuple):
    """A string of an evaluation item."""

    task: str
    item: int
    """The row in the task's file, from 0."""
    field: str
    text: str

    @property
    def is_listed(self) -> bool:
        """Whether it is an entry of a list, such as an answer to choose from."""
        return self.field.endswith("]")


def copy_item_files(files: Mapping[str, str], folder: str) -> dict[str, int]:
    """Copy JSON-lines files, given by task, to `TASK.jsonl`; return how many items each has.

    Raise ValueError if a line is no JSON object.
    """
    num_items = {}
    for task, path in sorted(files.items()):
        with fsspec.open(path, "rb") as file, fsspec.open(f"{folder}/{task}.jsonl", "wb", auto_mkdir=True) as copy:
            number = 0
            lines = (line.removeprefix(codecs.BOM_UTF8).strip() for line in bounded_lines(file, f"{task}.jsonl"))
            for number, line in enumerate(filter(None, lines), start=1):
                _check_object(line, f"{task}.jsonl: item {number}")
                # A carriage return is a blank in JSON, but would end a line for readers of text.
                copy.write(line.replace(b"\r", b" ") + b"\n")
            num_items[task] = number
    return num_items


def _check_object(line: bytes, where: str) -> None:
    try:
        row = json.loads(line.decode())
        json.dumps(row, ensure_ascii=False).encode()  # raises for a lone surrogate
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON ({error}). Write one JSON object per line.") from error
    if not isinstance(row, dict):
        raise ValueError(f"{where} is a {type(row).__name__}; write one JSON object per line.")


def read_item_fields(files: Mapping[str, str]) -> Iterator[ItemField]:
    """Yield every string in every row of JSON-lines files, which are given by task."""
    for task, path in sorted(files.items()):
        with fsspec.open(path, "rb") as lines:
            for item, line in enumerate(lines):
                for field, text in _strings(json.loads(line), ""):
                    yield ItemField(task, item, field, text)


def _strings(value: object, path: str) -> Iterator[tuple[str, str]]:
    match value:
        case str():
            yield path, value
        case dict():
            for key, item in value.items():
                yield from _strings(item, f"{path}.{key}" if path else key)
        case list():
            for index, item in enumerate(value):
                yield from _strings(item, f"{path}[{index}]")
